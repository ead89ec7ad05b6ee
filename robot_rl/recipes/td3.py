"""Twin-delayed DDPG: Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods" (arXiv
1802.09477).

Policy: deterministic with exploration noise of 0.1; critics: 2, minimum, targets at an averaged actor's actions with
smoothing noise; actor: maximizes the first critic at every second update; data: online; reward: the task's."""

from dataclasses import dataclass, replace

from policies.networks.gaussian import GaussianConfig
from robot_rl.learning.algorithms.actor_critic import ActorCriticConfig
from robot_rl.learning.algorithms.td3_bc import TD3BC, TD3BCConfig
from robot_rl.learning.parts.explore import ExplorationConfig
from robot_rl.recipes.recipe import OffPolicyRecipe
from robot_rl.training.off_policy import OFFLINE, ONE_ENV, OffPolicyConfig


@dataclass(frozen=True)
class TD3(OffPolicyRecipe):
    """Learn a deterministic policy off-policy, from the task's reward."""

    policy: GaussianConfig = GaussianConfig(std=0.1, layer_norm=False)
    agent: ActorCriticConfig = ActorCriticConfig(
        layer_norm=False, tau=0.005, discount=0.99, n_step=1, pooling="first", l2=0.0, actor_delay=2,
        target_noise=0.2, target_noise_clip=0.5, target_actor=True, ema_decay=0.995, grad_clip=None,
        exploration=ExplorationConfig(warmup_noise=None, noise_memory=0.0),
    )  # fmt: skip
    training: OffPolicyConfig = replace(ONE_ENV, reward="task", demo_share=0.0)


@dataclass(frozen=True)
class TD3PlusBC(TD3):
    """Learn offline from any data by values and cloning, then online.

    TD3+BC: Fujimoto and Gu 2021, "A Minimalist Approach to Offline Reinforcement Learning" (arXiv 2106.06860). Actor:
    maximizes the first critic's values, normalized to a mean magnitude of 1, and clones the data's actions; data:
    offline updates, then half demonstrations, half online; reward: success, or the task's. With --agent.alpha 0 the
    method is behaviour cloning."""

    agent: TD3BCConfig = TD3BCConfig(**vars(TD3().agent))
    training: OffPolicyConfig = OFFLINE
    agent_class = TD3BC
