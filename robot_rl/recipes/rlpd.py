"""RL with prior data: Ball et al. 2023, "Efficient Online Reinforcement Learning with Offline Data" (RLPD, arXiv
2302.02948).

Policy: tanh-Gaussian; critics: 10 with LayerNorm, minimum of 2 random ones, no entropy in the backup; actor: maximizes
their mean; data: half demonstrations, half online; reward: success, or the task's (--training.reward task). Without
demonstrations (--training.demo-share 0) it is SAC with many regularized critics. The temperature starts at 0.01, as in
HIL-SERL: at 0.1, entropy outweighs a success of 1 for 60,000 steps of panda-lift."""

from __future__ import annotations

from dataclasses import dataclass, field

from policies.networks.gaussian import GaussianConfig
from robot_rl.learning.algorithms.actor_critic import ActorCriticConfig
from robot_rl.learning.parts.explore import ExplorationConfig
from robot_rl.recipes.recipe import OffPolicyRecipe
from robot_rl.training.off_policy import ONE_ENV, OffPolicyConfig


@dataclass(frozen=True)
class RLPD(OffPolicyRecipe):
    """Learn from demonstrations and online data at once."""

    policy: GaussianConfig = field(default_factory=lambda: GaussianConfig(initial_std=0.5))
    agent: ActorCriticConfig = field(
        default_factory=lambda: ActorCriticConfig(
            critics=10, tau=0.005, discount=0.99, n_step=1, entropy=True, initial_temperature=0.01,
            l2=0.0, actor_delay=4, ema_decay=0.99,
            exploration=ExplorationConfig(warmup_noise=None, noise_memory=0.0),
        )
    )  # fmt: skip
    training: OffPolicyConfig = field(default_factory=lambda: ONE_ENV)
