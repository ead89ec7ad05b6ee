"""Sample-efficient soft actor-critic: Kim et al. 2026, "FlashSAC: Fast and Stable Off-Policy Reinforcement Learning for
High-Dimensional Robot Control" (arXiv 2604.04539), with the critics of Bhatt et al. 2024 (CrossQ, arXiv 1902.05605).

Policy: tanh-Gaussian with LayerNorm; critics: 2 without target networks, residual layers with batch normalization;
actor: maximizes the critics' minimum at every third update, with the entropy of a standard deviation of 0.15; data:
online; reward: the task's. Left out for their cost on a CPU: residual blocks four times as wide and batches of 512,
together about forty times the multiply-adds of an update. Other parts of the paper left out: distributional critics,
RMSNorm after blocks, weights of unit norm, repeated exploration noise."""

from dataclasses import dataclass, replace

from policies.networks.gaussian import GaussianConfig
from robot_rl.learning.algorithms.cross_q import CrossQ, CrossQConfig
from robot_rl.recipes.sac import SAC


@dataclass(frozen=True)
class FlashSAC(SAC):
    """Learn from the task's reward with few environment steps, without target networks."""

    reduced = "scalar critics, no unit-norm weights, no repeated noise"
    policy: GaussianConfig = replace(SAC().policy, layer_norm=True)
    agent: CrossQConfig = CrossQConfig(
        **vars(SAC().agent) | {
            "critic_lr": 1e-3, "actor_lr": 1e-3, "actor_delay": 3, "initial_temperature": 0.01,
            "entropy_per_action": -0.48,
        }
    )  # fmt: skip
    agent_class = CrossQ
