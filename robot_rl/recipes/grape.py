"""GRAPE: Zhang et al. 2024, "GRAPE: Generalizing Robot Policy via Preference Alignment" (arXiv 2411.19309).

Parts are those of `srpo`, but the loss compares pairs of a group's episodes. Episodes rank by success, then by
duration, then by the policy's log-probability."""

from dataclasses import dataclass

from robot_rl.learning.algorithms.grape import GRAPE, GRAPEConfig
from robot_rl.recipes.srpo import GroupRecipe


@dataclass(frozen=True)
class Preferences(GroupRecipe):
    """Improve a token policy by preferences for its better episodes."""

    reduced = "no costs of stages; a shorter episode is better"
    agent: GRAPEConfig = GRAPEConfig()
    agent_class = GRAPE
