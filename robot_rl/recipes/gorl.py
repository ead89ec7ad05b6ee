"""PPO on the noise of a flow: Zhang et al. 2025, "GoRL: An Algorithm-Agnostic Framework for Online Reinforcement
Learning with Generative Policies" (arXiv 2512.02581).

Policy: a Gaussian on the noise of a flow, but on the action itself in the first stage; critic: one value with
privileged state; target: GAE; data: on-policy; reward: the task's; schedule: stages, between which the flow is fitted
to executed actions and the noise reset to N(0, I). A --base, a flow-bc policy of single actions, is the first flow."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from policies.feedforward import DecodedConfig, DecodedPolicy
from policies.flow import FlowPolicy
from robot_rl.learning.algorithms.gorl import GoRL, GoRLConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import Need, OnPolicyRecipe
from robot_rl.training.on_policy import OnPolicyConfig
from robot_rl.util.errors import ConfigError

_HIDDEN = (128, 128, 128)


@dataclass(frozen=True)
class GenerativeOnline(OnPolicyRecipe):
    """Learn a generative policy from rewards, in many environments at once."""

    reduced = "noise is not pulled to N(0, I)"
    policy: DecodedConfig = DecodedConfig(hidden=_HIDDEN, initial_std=0.3)
    agent: GoRLConfig = GoRLConfig(hidden=_HIDDEN, epochs=4, clip=0.15)
    training: OnPolicyConfig = OnPolicyConfig(steps=3_800_000)
    may_use: ClassVar[tuple[Need, ...]] = ("base",)

    def build(self, job: Job, env: Any = None) -> GoRL:
        torch.manual_seed(job.seed)
        if job.base is None:
            policy = DecodedPolicy(job.size, self.policy)
        else:
            base = job.require_base().policy
            if not isinstance(base, FlowPolicy) or base.horizon > 1:
                raise ConfigError(
                    f"a {base.class_name} policy of {base.horizon} actions is not a flow of single ones; take one of "
                    "flow-bc --policy.horizon 1 --policy.execute 1"
                )
            policy = DecodedPolicy(base.size, replace(self.policy, decoder=base.config))
            policy.decoder.load_state_dict(base.state_dict())
            policy.anchor()
        return GoRL(policy.to(job.device), env.privileged_size, self.agent, job.seed, self.terms(job))
