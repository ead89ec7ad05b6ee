"""Implicit Q-learning: Kostrikov et al. 2022, "Offline Reinforcement Learning with Implicit Q-Learning" (2110.06169).

Policy: tanh-Gaussian; critics: 2, minimum, whose targets use an expectile of their values over the data's actions;
actor: advantage-weighted cloning; data: offline updates, then half demonstrations, half online; reward: success, or the
task's. Expectile 0.9 and temperature 10 are those of the paper's AntMaze experiments, whose reward is -1 per step. If
the reward is 1 at success instead, advantages are smaller by the factor 1 - discount."""

from dataclasses import dataclass

from policies.generative import GenerativeConfig, GenerativePolicy
from policies.networks.gaussian import GaussianConfig
from robot_rl.learning.algorithms.iql import CFGRL, IQL, CFGRLConfig, IQLConfig
from robot_rl.learning.parts.explore import ExplorationConfig
from robot_rl.recipes.recipe import OffPolicyRecipe
from robot_rl.training.off_policy import OFFLINE, OffPolicyConfig


@dataclass(frozen=True)
class ImplicitQ(OffPolicyRecipe):
    """Learn offline from any data, then continue online."""

    policy: GaussianConfig = GaussianConfig(initial_std=0.3, layer_norm=False)
    agent: IQLConfig = IQLConfig(
        expectile=0.9, temperature=10.0, layer_norm=False, tau=0.005, discount=0.99, n_step=1, l2=0.0,
        actor_delay=1, ema_decay=0.99, exploration=ExplorationConfig(warmup_noise=None, noise_memory=0.0),
    )  # fmt: skip
    training: OffPolicyConfig = OFFLINE
    agent_class = IQL


@dataclass(frozen=True)
class Guidance(OffPolicyRecipe):
    """Learn a policy offline, which classifier-free guidance improves when it acts.

    Frans et al. 2025, "Diffusion Guidance Is a Controllable Policy Improvement Operator" (CFGRL, arXiv 2505.23458).
    Policy: a guided flow; values: as iql; actor: clones all actions unconditionally, actions of Q > V conditionally;
    data: offline updates. With --policy.guidance 0 the policy clones all actions, with 1 only those of Q > V."""

    policy: GenerativeConfig = GenerativeConfig("flow", guided=True, guidance=1.5)
    agent: CFGRLConfig = CFGRLConfig(**vars(ImplicitQ().agent) | {"ema_decay": 0.999})
    training: OffPolicyConfig = OFFLINE
    agent_class = CFGRL
    policy_class = GenerativePolicy
