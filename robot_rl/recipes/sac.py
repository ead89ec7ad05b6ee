"""Soft actor-critic and its variants: Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications" (arXiv
1812.05905).

Policy: tanh-Gaussian with a learned standard deviation; critics: 2, minimum, entropy in the backup; actor: maximizes
the critics' minimum and entropy, with a learned temperature; data: online; reward: the task's; schedule: uniform random
actions first."""

from dataclasses import dataclass, replace

from policies.networks.gaussian import GaussianConfig
from robot_rl.learning.algorithms.actor_critic import ActorCriticConfig
from robot_rl.learning.algorithms.iterated import IteratedConfig, IteratedQ
from robot_rl.learning.parts.explore import ExplorationConfig
from robot_rl.recipes.recipe import OffPolicyRecipe
from robot_rl.training.off_policy import ONE_ENV, OffPolicyConfig


@dataclass(frozen=True)
class SAC(OffPolicyRecipe):
    """Learn off-policy from scratch, from the task's reward."""

    policy: GaussianConfig = GaussianConfig(initial_std=1.0, layer_norm=False)
    agent: ActorCriticConfig = ActorCriticConfig(
        layer_norm=False, tau=0.005, discount=0.99, n_step=1, entropy=True, entropy_backup=True,
        initial_temperature=1.0, entropy_per_action=-1.0, pooling="min", l2=0.0, actor_delay=1, grad_clip=None,
        ema_decay=0.99, exploration=ExplorationConfig(warmup_noise=None, noise_memory=0.0),
    )  # fmt: skip
    training: OffPolicyConfig = replace(ONE_ENV, reward="task", demo_share=0.0)


@dataclass(frozen=True)
class DistributionalSAC(SAC):
    """Learn the return's distribution, independently of the scale of rewards.

    DSAC-T: Duan et al. 2025, "Distributional Soft Actor-Critic With Three Refinements" (arXiv 2310.05858). Critics: 2
    of the return's mean and standard deviation; the backup uses the one of less value; actor: every second update."""

    agent: ActorCriticConfig = replace(SAC().agent, head="gaussian", actor_delay=2)


@dataclass(frozen=True)
class AnnealedQ(SAC):
    """Learn values of the best action at first, of the policy's action later.

    AQ-L: Omura et al. 2025, "Gradual Transition from Bellman Optimality Operator to Bellman Operator in Online
    Reinforcement Learning" (arXiv 2506.05968). Critics regress an expectile that falls to 0.5, where it is the mean, as
    in sac."""

    agent: ActorCriticConfig = replace(SAC().agent, optimism=0.9)


@dataclass(frozen=True)
class IteratedSAC(SAC):
    """Learn values that are several Bellman updates ahead of the target network.

    Vincent et al. 2025, "Iterated Q-Network: Beyond One-Step Bellman Updates in Deep Reinforcement Learning" (arXiv
    2403.02107). Critics: a sequence, each the target of the next. With --agent.iterates 1 the method is sac."""

    reduced = "networks are not shifted; later ones bootstrap from live networks"
    agent: IteratedConfig = IteratedConfig(**vars(SAC().agent))
    agent_class = IteratedQ
