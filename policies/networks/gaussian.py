"""Gaussians over actions: a tanh-squashed actor, and densities without squashing."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from policies.base import Actor, mlp, normal
from policies.networks.encoder import EncoderConfig
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import ActionStd, NonNegativeFloat, PositiveInt


@dataclass(frozen=True)
class GaussianConfig:
    """Tanh-Gaussian actor."""

    hidden: tuple[PositiveInt, ...] = (256, 256)
    """Widths of the hidden layers."""
    horizon: PositiveInt = 1
    """Number of actions in a chunk."""
    std: NonNegativeFloat | None = None
    """Fixed standard deviation of noise that is added after tanh and clipped (TD3); None: learned, before tanh
    (SAC)."""
    initial_std: ActionStd = 0.1
    """Initial value of the standard deviation, if learned."""
    zero_init: bool = False
    """Initialize the mean action to 0 for all observations."""
    layer_norm: bool = True
    """LayerNorm before each activation."""
    grasp: bool = False
    """Open or close the gripper, which is the last action dimension, by a gripper critic (HIL-SERL, Luo et al. 2024,
    arXiv 2410.21845)."""
    grasp_margin: NonNegativeFloat = 0.02
    """Difference between the values of open and closed, in units of the reward, above which the gripper critic
    overrides the mean action."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)

    def __post_init__(self) -> None:
        if self.grasp and self.horizon > 1:
            raise ValueError(f"grasp decides at every step; horizon {self.horizon} must be 1")


class GaussianActor(Actor):
    """Tanh-Gaussian actor for features (B, F). If `grasp` is set, the last component of u is the value of an open
    gripper minus the value of a closed gripper, clipped to [-1, 1]."""

    MIN_LOG_STD, MAX_LOG_STD = -5.0, 1.0
    INSIDE = 0.999

    def __init__(self, features: int, actions: int, config: GaussianConfig, allow_grasp: bool = False):
        """`allow_grasp` says that the policy supports `grasp`; otherwise `grasp` raises ConfigError."""
        super().__init__()
        if config.grasp and not allow_grasp:
            raise ConfigError("this policy takes no grasp: it does not act every step in the robot's own actions")
        self.config, self.actions = config, actions + config.grasp
        self.values: nn.Sequential | None = None
        """Gripper critic: values (B, 2) of a closed and an open gripper."""
        if config.grasp:
            self.values = mlp([features, *config.hidden, 2], nn.ReLU, norm=True)
            nn.init.zeros_(self.values[-1].weight)  # type: ignore[arg-type]  # no override at first
            nn.init.zeros_(self.values[-1].bias)  # type: ignore[arg-type]
        self.std, self.starts_at_zero = config.std, config.zero_init
        self.trunk = mlp([features, *config.hidden, 2 * actions], nn.ReLU, norm=config.layer_norm)
        head = self.trunk[-1]
        assert isinstance(head, nn.Linear)
        with torch.no_grad():
            head.weight[:actions].mul_(0.0 if config.zero_init else 1.0)
            head.weight[actions:].mul_(0.0)
            head.bias[:actions].zero_()
            head.bias[actions:].fill_(math.log(config.initial_std))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean (B, A) before tanh and the log standard deviation (B, A)."""
        mean, log_std = self.trunk(features).chunk(2, -1)
        return mean, log_std.clamp(self.MIN_LOG_STD, self.MAX_LOG_STD)

    def mean(self, features: Tensor) -> Tensor:
        """Return the most likely action (B, A)."""
        return self._with_gripper(self.forward(features)[0].tanh(), features)

    def _with_gripper(self, action: Tensor, features: Tensor) -> Tensor:
        if self.values is None:
            return action
        with torch.no_grad():  # the gripper critic has its own loss
            closed, opened = self.values(features).unbind(-1)
        return torch.cat([action, (opened - closed).clamp(-1, 1)[:, None]], -1)

    def sample(self, features: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return a reparametrized action (B, A) and its log-probability (B,), which is 0 for a fixed std."""
        mean, log_std = self.forward(features)
        noise = normal(mean.shape, rng, mean.device)
        if self.config.std is not None:
            action = (mean.tanh() + self.config.std * noise).clamp(-1, 1)
            return self._with_gripper(action, features), mean.new_zeros(len(mean))
        raw = mean + log_std.exp() * noise
        density = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        return self._with_gripper(raw.tanh(), features), (density - _squash(raw)).sum(-1)

    def log_prob(self, features: Tensor, action: Tensor) -> Tensor:
        """Return the log-probability (B,) of actions (B, A), which are clipped to [-INSIDE, INSIDE]."""
        mean, log_std = self.forward(features)
        if self.config.std is not None:
            return -0.5 * ((action - mean.tanh()) / self.config.std).square().sum(-1)
        raw = action.clamp(-self.INSIDE, self.INSIDE).atanh()
        density = -0.5 * ((raw - mean) / log_std.exp()).square() - log_std - 0.5 * math.log(2 * math.pi)
        return (density - _squash(raw)).sum(-1)


def _squash(raw: Tensor) -> Tensor:
    """Return log(1 - tanh(raw)^2), numerically stable for large values."""
    return 2 * (math.log(2) - raw - nn.functional.softplus(-2 * raw))


def override_gripper(action: Tensor, u: Tensor, config: GaussianConfig) -> Tensor:
    """Override the gripper, the last component of actions (B, A), by the sign of the last component of u where that
    component's magnitude exceeds `grasp_margin`."""
    advantage = u[:, -1:]
    gripper = torch.where(advantage.abs() > config.grasp_margin, advantage.sign(), action[:, -1:])
    return torch.cat([action[:, :-1], gripper], -1)


def log_density(action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the log-density (...) of unsquashed actions (..., A), up to a constant."""
    return -0.5 * ((action - mean) / log_std.exp()).square().sum(-1) - log_std.sum()


def entropy(log_std: Tensor) -> Tensor:
    """Return the entropy, nats, of a Gaussian with log standard deviations (A,)."""
    return (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()


def divergence(old_mean: Tensor, old_log_std: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Return KL(old, new), nats, mean over rows; arguments as of `divergences`."""
    return divergences(old_mean, old_log_std, mean, log_std).mean()


def divergences(old_mean: Tensor, old_log_std: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Return KL(old, new) (B,), nats, of Gaussians with means (B, A) and log standard deviations (A,)."""
    variance = (2 * log_std).exp()
    spread = log_std - old_log_std + 0.5 * ((2 * old_log_std).exp() / variance - 1)
    return spread.sum() + (0.5 * (old_mean - mean).square() / variance).sum(-1)
