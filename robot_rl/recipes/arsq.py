"""Autoregressive soft Q-network: Liu et al. 2025, "Learning from Suboptimal Data in Continuous Control via
Auto-Regressive Soft Q-Network" (ARSQ, arXiv 2502.00288).

Policy: bins of one dimension after another, at 2 levels of 5 bins, sampled in training, the most probable bins when
deployed; critic: 2 values and advantages, minimum; no actor; data: half demonstrations of any quality, half online;
reward: success, or the task's. Unlike in the paper, values have their own network, and the averaged network acts. With
--policy.no-conditional the dimensions of a level are independent, as in cqn."""

from dataclasses import dataclass, replace

from policies.autoregressive import AutoregressiveConfig, AutoregressivePolicy
from robot_rl.learning.algorithms.arsq import ARSQ, ARSQConfig
from robot_rl.recipes.recipe import OffPolicyRecipe
from robot_rl.training.off_policy import ONE_ENV, OffPolicyConfig


@dataclass(frozen=True)
class AutoregressiveSoftQ(OffPolicyRecipe):
    """Learn values of dependent action bins from data of any quality."""

    policy: AutoregressiveConfig = AutoregressiveConfig()
    agent: ARSQConfig = ARSQConfig(tau=0.005, noise=0.0)
    training: OffPolicyConfig = replace(ONE_ENV, demos="all")
    agent_class = ARSQ
    policy_class = AutoregressivePolicy
