"""Guidance as policy improvement: Frans et al. 2025, "Diffusion Guidance Is a Controllable Policy Improvement Operator"
(CFGRL, arXiv 2505.23458).

Policy: a guided flow; values: as iql; actor: clones all actions unconditionally, and the better ones conditionally;
data: offline updates; reward: success, or the task's. With policy.guidance 0 it clones all actions, with 1 the better
ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from policies.base import Policy
from policies.generative import GenerativeConfig, GenerativePolicy
from robot_rl.learning.algorithms.actor_critic import ActorCritic
from robot_rl.learning.algorithms.cfgrl import CFGRL, CFGRLConfig
from robot_rl.recipes.iql import ImplicitQ
from robot_rl.recipes.recipe import OffPolicyRecipe
from robot_rl.training.off_policy import OFFLINE, OffPolicyConfig


@dataclass(frozen=True)
class Guidance(OffPolicyRecipe):
    """Learn a policy offline that guidance improves at run time."""

    policy: GenerativeConfig = field(default_factory=lambda: GenerativeConfig("flow", guided=True, guidance=1.5))
    agent: CFGRLConfig = field(default_factory=lambda: CFGRLConfig(**vars(ImplicitQ().agent) | {"ema_decay": 0.999}))
    training: OffPolicyConfig = field(default_factory=lambda: OFFLINE)
    agent_class: ClassVar[type[ActorCritic]] = CFGRL
    policy_class: ClassVar[type[Policy]] = GenerativePolicy
