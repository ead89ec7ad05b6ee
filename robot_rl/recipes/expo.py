"""EXPO: Dong et al. 2025, "EXPO: Stable Reinforcement Learning with Expressive Policies" (arXiv 2507.07986).

Policy: the best of 8 actions of a cloned flow and their 8 edits; critics: 10 with LayerNorm, minimum of 2, no entropy
in the backup; data: half demonstrations, half online; reward: success, or the task's. With --policy.scale 0 there are
no edits, as in qc. The paper makes 20 updates per environment step, this recipe 1."""

from dataclasses import dataclass, replace

from policies.best_of import BestOfConfig
from policies.networks.gaussian import GaussianConfig
from robot_rl.learning.algorithms.actor_critic import ActorCriticConfig
from robot_rl.learning.parts.explore import ExplorationConfig
from robot_rl.recipes.qc import QChunking
from robot_rl.training.off_policy import ONE_ENV, OffPolicyConfig


@dataclass(frozen=True)
class EXPO(QChunking):
    """Learn to edit the actions of a cloned flow, and execute the action or edit of largest value."""

    reduced = "1 update per step of 20"
    policy: BestOfConfig = BestOfConfig(candidates=8, scale=0.3, actor=GaussianConfig(initial_std=0.5))
    agent: ActorCriticConfig = ActorCriticConfig(
        critics=10, tau=0.005, discount=0.99, n_step=1, entropy=True, l2=0.0, ema_decay=0.99,
        exploration=ExplorationConfig(warmup_epsilon=0.0, noise_memory=0.0),
    )  # fmt: skip
    training: OffPolicyConfig = replace(ONE_ENV, offline_updates=5_000, steps=40_000, demos="all")
