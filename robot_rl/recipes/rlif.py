"""Takeovers as reward: Luo et al. 2023, "RLIF: Interactive Imitation Learning as Reinforcement Learning" (arXiv
2311.12996).

Reward: -1 in the policy's last step before a takeover, 0 elsewhere; the task's reward is not used, and the person need
not be an expert. Policy and critics: as `rlpd`; data: half demonstrations, whose reward is 0, half online, including
the person's steps.

The paper keeps only the last step of a takeover; here all steps of a takeover are kept, with reward 0."""

from dataclasses import dataclass
from typing import ClassVar

from robot_rl.learning.algorithms.actor_critic import ActorCriticConfig
from robot_rl.recipes.corrected import CorrectedRecipe
from robot_rl.rewards import TakeoverReward
from robot_rl.training.learner import HumanInTheLoopConfig


@dataclass(frozen=True)
class RLIF(CorrectedRecipe):
    """Learn to act so that a person does not take over."""

    agent: ActorCriticConfig = ActorCriticConfig(
        critics=10, tau=0.005, discount=0.99, n_step=1, entropy=True, initial_temperature=0.01, l2=0.0,
        actor_delay=4, ema_decay=0.99,
    )  # fmt: skip
    training: HumanInTheLoopConfig = HumanInTheLoopConfig(correct_demos=False)
    reward: ClassVar[TakeoverReward] = TakeoverReward()
