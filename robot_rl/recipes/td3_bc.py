"""TD3+BC: Fujimoto and Gu 2021, "A Minimalist Approach to Offline Reinforcement Learning" (arXiv 2106.06860).

Policy, critics: as td3; actor: maximizes the first critic, scaled to a mean size of 1, and clones the data's actions;
data: offline updates, then half demonstrations, half online; reward: success, or the task's. With agent.alpha 0 it is
behaviour cloning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from robot_rl.learning.algorithms.actor_critic import ActorCritic
from robot_rl.learning.algorithms.td3_bc import TD3BC, TD3BCConfig
from robot_rl.recipes.td3 import TD3
from robot_rl.training.off_policy import OFFLINE, OffPolicyConfig


@dataclass(frozen=True)
class TD3PlusBC(TD3):
    """Learn offline from any data by cloning it as far as its values are good, then online."""

    agent: TD3BCConfig = field(default_factory=lambda: TD3BCConfig(**vars(TD3().agent)))
    training: OffPolicyConfig = field(default_factory=lambda: OFFLINE)
    agent_class: ClassVar[type[ActorCritic]] = TD3BC
