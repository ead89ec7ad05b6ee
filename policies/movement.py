"""Policy that decides on a whole movement at an episode's start: Li, Zhou et al. 2024, "Open the Black Box: Step-based
Policy Updates for Temporally-Correlated Episodic Reinforcement Learning" (TCE, arXiv 2401.11437).

    w ~ N(mean(s_0), Sigma)          weights of a movement primitive for every action dimension, one Gaussian for all
    y(t)                             the trajectory of `ProDMP`, from rest at 0
    action_t = steps (y(t + 1) - y(t)), clipped

So an action is a displacement, as in most action spaces of arms, and y the sum of all displacements so far, in units of
what the largest action moves in a whole movement. The robot's controller tracks it. Sigma does not depend on the state.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from policies.base import Observation, Policy, RunningNormalizer, Size, elu, mlp, normal
from policies.networks.prodmp import ProDMP
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import PositiveFloat, PositiveInt


@dataclass(frozen=True)
class MovementConfig:
    """Movements of several actions that are drawn at once."""

    horizon: PositiveInt | None = None
    """Number of actions in a movement; None: those of the task's longest episode."""
    basis: PositiveInt = 8
    """Number of forces that bend the movement of each action dimension, besides the goal."""
    stiffness: PositiveFloat = 10.0
    """Stiffness of the spring towards the goal, per movement: a movement without forces takes about 8 / stiffness of
    the time."""
    hidden: tuple[PositiveInt, ...] = (128, 128)
    """Widths of the hidden layers, with ELU activations."""
    initial_std: PositiveFloat = 0.5
    """Initial standard deviation of each weight; a weight of 1 alone reaches the largest action."""


class MovementPolicy(Policy):
    """Chunk = the whole movement of the mean weights; learners sample other weights."""

    class_name, config_class = "movement", MovementConfig
    traceable = True

    def __init__(self, size: Size, config: MovementConfig):
        super().__init__()
        if size.extra_inputs:
            name = next(iter(size.extra_inputs))
            raise ConfigError(f"a movement policy cannot read {name!r}; take another recipe")
        if config.horizon is None:
            raise ConfigError("a movement needs a number of actions: give --policy.horizon")
        self.size, self.config = size, config
        self.horizon = self.execute = config.horizon
        self.primitive = ProDMP(config.horizon, config.basis, config.stiffness)
        self.weights = size.action * (config.basis + 1)
        """Number W of weights of a movement: the forces and the goal of each action dimension in turn."""
        self.normalizer = RunningNormalizer(size.observation)
        self.actor = mlp([size.observation, *config.hidden, self.weights], elu)
        self.scale = nn.Parameter(math.log(config.initial_std) * torch.eye(self.weights))
        """(W, W) Cholesky factor of Sigma: the lower triangle, with the logarithms of the diagonal."""
        head = self.actor[-1]
        assert isinstance(head, nn.Linear)
        with torch.no_grad():  # start near rest everywhere
            head.weight.mul_(0.01)
            head.bias.zero_()

    @property
    def factor(self) -> Tensor:
        """Return the Cholesky factor (W, W) of Sigma."""
        return self.scale.tril(-1) + self.scale.diagonal().exp().diag()

    def mean(self, state: Tensor) -> Tensor:
        """Return mean weights (B, W) for states (B, D), not normalized."""
        return self.actor(self.normalizer(state))

    def sample(self, mean: Tensor, rng: torch.Generator) -> Tensor:
        """Return weights (B, W), sampled around `mean` (B, W)."""
        return mean + normal(mean.shape, rng, mean.device) @ self.factor.T

    def movement(self, weights: Tensor) -> Tensor:
        """Return the actions (B, horizon, A) in [-1, 1] of movements with weights (B, W)."""
        y = self.primitive(weights.unflatten(-1, (self.size.action, -1)))
        return (self.horizon * y.diff(dim=-1)).mT.clamp(-1, 1)

    def at(self, steps: Tensor) -> Tensor:
        """Return maps (..., A, W) from weights to the positions y of all action dimensions after `steps` (...)."""
        one = torch.eye(self.size.action, device=steps.device)
        return (one[:, :, None] * self.primitive.positions[steps][..., None, None, :]).flatten(-2)

    @torch.no_grad()
    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        return self.movement(self.mean(observation["observation.state"]))
