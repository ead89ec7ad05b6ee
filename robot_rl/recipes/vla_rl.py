"""PPO on the tokens of a vision-language-action policy: Lu et al. 2025, "VLA-RL" (arXiv 2505.18719).

Policy: a vla-tokens base, whose token decoder learns; critic: one value with privileged state and the instruction;
target: GAE of chunks; data: on-policy; reward: success, optionally with learned progress; schedule: critic first."""

import copy
from dataclasses import dataclass
from typing import Any

import torch

from policies.base import Policy
from policies.vla.tokens import VLATokensPolicy
from robot_rl.learning.algorithms.ppo import PPO
from robot_rl.learning.algorithms.token_ppo import TokenPPO, TokenPPOConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import Need, OnPolicyRecipe
from robot_rl.training.on_policy import OnPolicyConfig
from robot_rl.util.errors import ConfigError


@dataclass(frozen=True)
class VlaRL(OnPolicyRecipe):
    """Improve a token policy from rewards, in many environments at once."""

    reduced = "frozen backbone; small model"
    agent: TokenPPOConfig = TokenPPOConfig(
        hidden=(256, 256), entropy_coef=0.0, epochs=2, minibatches=4, actor_lr=1e-4, target_kl=None, critic_only=3
    )
    training: OnPolicyConfig = OnPolicyConfig(
        steps=200_000, num_envs=64, rollout=80, reward="success", checkpoint_every=50_000
    )
    needs_base = True

    @property
    def needs(self) -> tuple[Need, ...]:
        return (*super().needs, "demonstrations") if self.agent.progress else super().needs

    def build(self, job: Job, env: Any = None) -> TokenPPO:
        torch.manual_seed(job.seed)
        policy = token_policy(job.require_base().policy).to(job.device)
        return TokenPPO(policy, env.privileged_size, self.agent, job.seed, self.terms(job))

    def practise(self, job: Job, agent: PPO, env: Any) -> None:
        if isinstance(agent, TokenPPO) and agent.progress is not None and not job.opened.checkpoint_file.exists():
            job.opened.log(0, {"progress/error": agent.learn_progress(job.demonstrations(), job.seed)})
        super().practise(job, agent, env)


def token_policy(base: Policy) -> VLATokensPolicy:
    """Return a copy of `base`; ConfigError if `base` is not a policy that predicts action tokens."""
    if not isinstance(base, VLATokensPolicy):
        raise ConfigError(f"a {base.class_name} policy writes no tokens; take one of vla-tokens")
    return copy.deepcopy(base)
