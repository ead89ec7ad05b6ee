"""Off-policy RL within a range of actions that grows: Smith et al. 2023, "Grow Your Limits: Continuous Improvement with
Real-World RL for Robotic Locomotion" (APRL, arXiv 2310.17634).

Policy: tanh-Gaussian; critics: 2 with LayerNorm, minimum in the target, entropy in the backup; actor: maximizes the
critics' mean and entropy, with a penalty for actions outside the range; data: online; reward: the task's; schedule:
random actions within the range first; the range grows, and shrinks when a model of the dynamics is surprised."""

from dataclasses import dataclass, replace

from robot_rl.learning.algorithms.aprl import APRL, APRLConfig
from robot_rl.recipes.sac import SAC
from robot_rl.training.off_policy import OffPolicyConfig


@dataclass(frozen=True)
class GrowingRange(SAC):
    """Learn from the task's reward, with small actions first."""

    reduced = "no dropout; 1 update per step of 20"
    agent: APRLConfig = APRLConfig(**vars(SAC().agent) | {"layer_norm": True, "pooling": "mean"})
    training: OffPolicyConfig = replace(SAC().training, steps=60_000)
    agent_class = APRL
