"""Diffusion steering: Wagenmaker et al. 2025, "Steering Your Diffusion Policy with Latent Space Reinforcement Learning"
(DSRL, arXiv 2506.15799).

Policy: a frozen diffusion or flow base, and a tanh-Gaussian on its noise; critics: 2 on a chunk's noise (DSRL-SAC), or
with --agent.critic-on action on executed actions, distilled into values of noise (DSRL-NA); data: online, after a
warm-up with the base; reward: success. With --steering.scale 0 the policy is the base with zero noise. As in rlpd, the
temperature starts at 0.01 and the backup has no entropy: a larger entropy term would outweigh the success reward, 1."""

from dataclasses import dataclass, replace

from policies.steered import SteeredConfig, SteeredPolicy
from robot_rl.learning.algorithms.dsrl import DSRL, DSRLConfig
from robot_rl.learning.parts.explore import ExplorationConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import OffPolicyRecipe
from robot_rl.training.off_policy import ONE_ENV, OffPolicyConfig


@dataclass(frozen=True)
class DiffusionSteering(OffPolicyRecipe):
    """Learn to choose the noise of a frozen policy."""

    steering: SteeredConfig = SteeredConfig()
    agent: DSRLConfig = DSRLConfig(
        critic_on="latent", tau=0.005, discount=0.99, n_step=1, entropy=True, target_entropy=0.0, pooling="min",
        l2=0.0, ema_decay=0.99,
        exploration=ExplorationConfig(warmup_noise=0.67, noise_memory=0.0),
    )  # fmt: skip
    training: OffPolicyConfig = replace(ONE_ENV, steps=20_000, warmup=1_500, learning_starts=500, demo_share=0.0)
    agent_class = DSRL
    needs_base = True

    def make_policy(self, job: Job) -> SteeredPolicy:
        return SteeredPolicy(job.require_base().policy, self.steering)
