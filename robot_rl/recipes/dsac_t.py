"""Distributional soft actor-critic: Duan et al. 2025, "Distributional Soft Actor-Critic With Three Refinements" (arXiv
2310.05858, DSAC-T).

Policy: tanh-Gaussian with a learned standard deviation; critics: 2 of mean and standard deviation of the return, the
less-valued one in the backup; actor: maximizes the lesser mean at every second update; data: online; reward: the
task's. With --agent.head scalar it is sac with a delayed actor."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from robot_rl.learning.algorithms.actor_critic import ActorCriticConfig
from robot_rl.recipes.sac import SAC


@dataclass(frozen=True)
class DistributionalSAC(SAC):
    """Learn how far returns spread, so that the scale of rewards does not matter."""

    agent: ActorCriticConfig = field(default_factory=lambda: replace(SAC().agent, head="gaussian", actor_delay=2))
