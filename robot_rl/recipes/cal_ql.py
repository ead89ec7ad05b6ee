"""Calibrated Q-learning: Nakamoto et al. 2023, "Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online
Fine-Tuning" (arXiv 2303.05479).

Policy: tanh-Gaussian; critics: 2 with LayerNorm, conservative, bounded below by the data's return; data: offline
updates, then half demonstrations, half online; reward: success, or the task's, for which --agent.value-low sets the
bound. With --agent.conservative 0 the method is SAC."""

from dataclasses import dataclass

from policies.networks.gaussian import GaussianConfig
from robot_rl.learning.algorithms.cal_ql import CalQL, CalQLConfig
from robot_rl.learning.parts.explore import ExplorationConfig
from robot_rl.recipes.recipe import OffPolicyRecipe
from robot_rl.training.off_policy import OFFLINE, OffPolicyConfig


@dataclass(frozen=True)
class CalibratedQ(OffPolicyRecipe):
    """Learn calibrated values offline, then continue online."""

    policy: GaussianConfig = GaussianConfig(initial_std=0.5)
    agent: CalQLConfig = CalQLConfig(
        tau=0.005, discount=0.99, n_step=1, entropy=True, l2=0.0, ema_decay=0.99,
        exploration=ExplorationConfig(noise_memory=0.0),
    )  # fmt: skip
    training: OffPolicyConfig = OFFLINE
    agent_class = CalQL
