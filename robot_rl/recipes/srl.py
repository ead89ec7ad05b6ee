"""Sequences of actions at low decision rates: Patel and Siegelmann 2025, "Overcoming Slow Decision Frequencies in
Continuous Control: Model-Based Sequence Reinforcement Learning for Model-Free Control" (SRL, arXiv 2410.08979).

Soft actor-critic whose actor gives --policy.horizon actions at once, with a model of one step that tells critics the
states in between; the actor is an MLP, the paper's a GRU. With --policy.horizon 1 it is sac."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from policies.networks.gaussian import GaussianConfig
from robot_rl.learning.algorithms.actor_critic import ActorCritic
from robot_rl.learning.algorithms.sequence import SequenceConfig, SequenceRL
from robot_rl.recipes.sac import SAC


@dataclass(frozen=True)
class SequenceSAC(SAC):
    """Learn to decide seldom."""

    policy: GaussianConfig = field(default_factory=lambda: replace(SAC().policy, horizon=8))
    agent: SequenceConfig = field(default_factory=lambda: SequenceConfig(**vars(SAC().agent)))
    agent_class: ClassVar[type[ActorCritic]] = SequenceRL
