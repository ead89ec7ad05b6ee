"""Q-learning with one-step flow policies: Park et al. 2025 (FQL, arXiv 2502.02538). With --policy.horizon 5, fql is
QC-FQL (Li et al. 2025, "Reinforcement Learning with Action Chunking", arXiv 2507.07969).

Critics: 2, minimum; data: offline updates, then half demonstrations, half online; reward: success, or the task's."""

from dataclasses import dataclass

from policies.generative import GenerativeConfig, GenerativePolicy
from robot_rl.learning.algorithms.fql import FQL, OFQL, FQLConfig, OFQLConfig
from robot_rl.learning.parts.explore import ExplorationConfig
from robot_rl.recipes.recipe import OffPolicyRecipe
from robot_rl.training.off_policy import OFFLINE, OffPolicyConfig


@dataclass(frozen=True)
class FlowQ(OffPolicyRecipe):
    """Learn a one-step policy near a cloned flow, offline, then online.

    The paper tunes alpha, the weight of cloning, for each task: 10 to 1000, with values that are not normalized. Here
    values are normalized to a mean magnitude of 1."""

    policy: GenerativeConfig = GenerativeConfig("one-step")
    agent: FQLConfig = FQLConfig(
        tau=0.005, discount=0.99, n_step=1, l2=0.0, actor_delay=1, ema_decay=0.99,
        exploration=ExplorationConfig(noise_memory=0.0),
    )  # fmt: skip
    training: OffPolicyConfig = OFFLINE
    agent_class = FQL
    policy_class = GenerativePolicy


@dataclass(frozen=True)
class OneStepFlowQ(OffPolicyRecipe):
    """Learn a flow with one network evaluation per action, offline, then online.

    OFQL: Nguyen et al. 2025 (arXiv 2508.13904). Policy: a flow of averaged velocities. With --agent.eta 0 the method is
    behaviour cloning."""

    policy: GenerativeConfig = GenerativeConfig("mean-flow")
    agent: OFQLConfig = OFQLConfig(
        tau=0.005, discount=0.99, n_step=1, l2=0.0, actor_delay=1, ema_decay=0.995,
        exploration=ExplorationConfig(noise_memory=0.0),
    )  # fmt: skip
    training: OffPolicyConfig = OFFLINE
    agent_class = OFQL
    policy_class = GenerativePolicy
