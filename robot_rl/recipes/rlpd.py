"""RL with prior data: Ball et al. 2023, "Efficient Online Reinforcement Learning with Offline Data" (RLPD, arXiv
2302.02948).

Policy: tanh-Gaussian; critics: 10 with LayerNorm, minimum of 2 random critics, no entropy in the backup; actor:
maximizes the critics' mean; data: half demonstrations, half online; reward: success, or the task's (--training.reward
task). Without demonstrations (--training.demo-share 0) it is SAC with many regularized critics. The temperature starts
at 0.01, as in HIL-SERL: from 0.1, entropy outweighs the success reward, 1, for 60,000 steps of panda-lift."""

from dataclasses import dataclass, replace

from policies.actor import GaussianPolicy, gaussian_from
from policies.networks.gaussian import GaussianConfig
from robot_rl.learning.algorithms.actor_critic import ActorCriticConfig
from robot_rl.learning.parts.explore import ExplorationConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import OffPolicyRecipe
from robot_rl.training.off_policy import ONE_ENV, OffPolicyConfig
from robot_rl.util.limits import ActionStd


@dataclass(frozen=True)
class RLPD(OffPolicyRecipe):
    """Learn from demonstrations and online data at once."""

    policy: GaussianConfig = GaussianConfig(initial_std=0.5)
    agent: ActorCriticConfig = ActorCriticConfig(
        critics=10, tau=0.005, discount=0.99, n_step=1, entropy=True, initial_temperature=0.01,
        l2=0.0, actor_delay=4, ema_decay=0.99,
        exploration=ExplorationConfig(warmup_noise=None, noise_memory=0.0),
    )  # fmt: skip
    training: OffPolicyConfig = ONE_ENV


@dataclass(frozen=True)
class PolicyOnly(OffPolicyRecipe):
    """Improve a given policy without using its training data or critics.

    Xiao et al. 2025, "Efficient Online RL Fine-Tuning with Offline Pre-Trained Policy Only" (PORL, arXiv 2505.16856).
    Policy: a tanh-Gaussian base, cloned or trained; critics: 10 with initial weights; data: online only; schedule: at
    first only the critics learn, while the base acts with 10 % random actions."""

    initial_std: ActionStd = 0.1
    """Initial standard deviation of the policy's actions, in units of the action range [-1, 1]."""
    agent: ActorCriticConfig = ActorCriticConfig(
        critics=10, tau=0.005, discount=0.99, n_step=1, entropy=True, actor_lr=1e-4, l2=0.0, ema_decay=0.99,
        exploration=ExplorationConfig(warmup_epsilon=0.1, noise_memory=0.0),
    )  # fmt: skip
    training: OffPolicyConfig = replace(ONE_ENV, steps=40_000, warmup=5_000, demo_share=0.0)
    needs_base = True

    def make_policy(self, job: Job) -> GaussianPolicy:
        return gaussian_from(job.require_base().policy, self.initial_std)
