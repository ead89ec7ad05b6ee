"""Residual off-policy RL on a frozen base: Ankile et al. 2025, "Residual Off-Policy RL for Finetuning Behavior Cloning
Policies" (ResFiT, arXiv 2509.19301).

Critics: 2 with LayerNorm, minimum; transform: residual on the base's action, by an actor that starts at 0; data: half
demonstrations, half online; reward: success; schedule: warm-up with random residuals, in which only critics learn, then
actor and critics. The paper's 10 critics and actor learning rate of 1e-6 suit hours of training; the values
here suit minutes."""

from dataclasses import dataclass

from policies.residual import ResidualConfig, ResidualPolicy
from robot_rl.learning.algorithms.actor_critic import ActorCriticConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import OffPolicyRecipe
from robot_rl.util.errors import ConfigError


@dataclass(frozen=True)
class ResFiT(OffPolicyRecipe):
    """Learn a residual on a base policy's action at every step."""

    residual: ResidualConfig = ResidualConfig()
    agent: ActorCriticConfig = ActorCriticConfig()
    needs_base = True

    def make_policy(self, job: Job) -> ResidualPolicy:
        base = job.require_base().policy
        if base.horizon == 1:
            raise ConfigError(f"recipe resfit needs a base that plans chunks, not a {base.class_name} policy")
        return ResidualPolicy(base, self.residual)
