"""GRAPE: Zhang et al. 2024, "GRAPE: Generalizing Robot Policy via Preference Alignment" (arXiv 2411.19309).

As `srpo`, with a loss on preferences between the episodes of a group. Reward: success, then duration, then the policy's
log-probability."""

from dataclasses import dataclass

from robot_rl.learning.algorithms.grape import GRAPE, GRAPEConfig
from robot_rl.recipes.srpo import GroupRecipe


@dataclass(frozen=True)
class Preferences(GroupRecipe):
    """Improve a token policy by preferring its better episodes."""

    agent: GRAPEConfig = GRAPEConfig()
    agent_class = GRAPE
