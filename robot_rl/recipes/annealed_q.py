"""Annealed Q-learning: Omura et al. 2025, "Gradual Transition from Bellman Optimality Operator to Bellman Operator in
Online Reinforcement Learning" (arXiv 2506.05968).

Soft actor-critic whose critics first regress an expectile of their targets near the best action's, then, as it falls to
0.5, the policy's own value; after agent.anneal_updates it is sac."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from robot_rl.learning.algorithms.actor_critic import ActorCriticConfig
from robot_rl.recipes.sac import SAC


@dataclass(frozen=True)
class AnnealedQ(SAC):
    """Learn values of the best action first, of the policy's action later."""

    agent: ActorCriticConfig = field(default_factory=lambda: replace(SAC().agent, optimism=0.9))
