"""Iterated Q-networks: Vincent et al. 2025, "Iterated Q-Network: Beyond One-Step Bellman Updates in Deep Reinforcement
Learning" (arXiv 2403.02107).

Soft actor-critic with a row of critics, each the target of the next one; the actor maximizes the last. With
--agent.iterates 1 it is sac."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from robot_rl.learning.algorithms.actor_critic import ActorCritic
from robot_rl.learning.algorithms.iterated import IteratedConfig, IteratedQ
from robot_rl.recipes.sac import SAC


@dataclass(frozen=True)
class IteratedSAC(SAC):
    """Learn several Bellman updates ahead of the target."""

    agent: IteratedConfig = field(default_factory=lambda: IteratedConfig(**vars(SAC().agent)))
    agent_class: ClassVar[type[ActorCritic]] = IteratedQ
