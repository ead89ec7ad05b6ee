"""Model-based representations for Q-learning: Fujimoto et al. 2025, "Towards General-Purpose Model-Free Reinforcement
Learning" (MR.Q, arXiv 2501.16142).

Policy: deterministic with exploration noise of 0.2, on a state embedding; critics: 2 on an embedding of state and
action, minimum, 3-step targets; model: predicts embedding, reward and termination five steps ahead; data: online;
reward: the task's. The embedding has a quarter of the paper's width, and the replay is sampled uniformly."""

from dataclasses import dataclass, replace

from policies.actor import EmbeddedConfig, EmbeddedPolicy
from robot_rl.learning.algorithms.mr_q import MRQ, MRQConfig
from robot_rl.learning.parts.explore import ExplorationConfig
from robot_rl.recipes.recipe import OffPolicyRecipe
from robot_rl.training.off_policy import ONE_ENV, OffPolicyConfig


@dataclass(frozen=True)
class ModelRepresentations(OffPolicyRecipe):
    """Learn values on an embedding that predicts the next step."""

    reduced = "a quarter of the width; uniform sampling"
    policy: EmbeddedConfig = EmbeddedConfig(std=0.2)
    agent: MRQConfig = MRQConfig(
        tau=0.0, discount=0.99, n_step=3, l2=0.0, actor_delay=1, target_noise=0.2, target_noise_clip=0.3,
        target_actor=True, grad_clip=20.0, ema_decay=0.99,
        exploration=ExplorationConfig(warmup_noise=None, noise_memory=0.0),
    )  # fmt: skip
    training: OffPolicyConfig = replace(ONE_ENV, reward="task", demo_share=0.0)
    agent_class = MRQ
    policy_class = EmbeddedPolicy
