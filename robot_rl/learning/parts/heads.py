"""Critic heads, which interpret the outputs of a critic ensemble and compute their targets and loss.

    scalar     the mean return, squared error
    hl-gauss   logits over bins, cross-entropy with a Gaussian around the target (Farebrother et al. 2024, HL-Gauss)
    c51        logits over bins, cross-entropy with the projected next distribution (Bellemare et al. 2017, C51)
    gaussian   mean and standard deviation of the return (Duan et al. 2025, DSAC-T, 2310.05858)

A head's outputs have the shape (..., outputs). Targets are computed from `following`, the outputs (..., outputs) at the
next state and action.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from policies.networks.ensemble import EnsembleLinear
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import PositiveInt

HeadName = Literal["scalar", "hl-gauss", "c51", "gaussian"]


class Head(Protocol):
    """Interpretation of a critic's outputs."""

    @property
    def outputs(self) -> int:
        """Number of outputs per value."""

    def mean(self, out: Tensor) -> Tensor:
        """Return the values (...), mean returns, of outputs (..., outputs)."""

    def target(self, reward: Tensor, discount: Tensor, following: Tensor) -> Tensor:
        """Return the target for reward (B,) + discount (B,) * next return, where `following` (B, outputs) are the
        outputs at the next step."""

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        """Return the loss (E, B) of an ensemble's outputs (E, B, outputs) against the targets of B rows."""


@dataclass(frozen=True)
class Scalar:
    """Head with one output, the value; targets are clipped to the range of returns [low, high]."""

    low: float
    high: float
    outputs: int = 1

    def mean(self, out: Tensor) -> Tensor:
        return out.squeeze(-1)

    def target(self, reward: Tensor, discount: Tensor, following: Tensor) -> Tensor:
        return (reward + discount * self.mean(following)).clamp(self.low, self.high)

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        return (self.mean(out) - target).square()


@dataclass(frozen=True)
class Bins:
    """Head whose outputs are logits of a categorical distribution over `outputs` equal bins of [low, high]."""

    low: float
    high: float
    outputs: int = 101

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigError(
                f"a head of bins needs the range of values, not [{self.low:g}, {self.high:g}]: set it with "
                "--agent.value-low and --agent.value-high (entropy in the backup adds to that of the return), or use "
                "--agent.head scalar"
            )

    def centers(self, like: Tensor) -> Tensor:
        return torch.linspace(self.low, self.high, self.outputs, device=like.device)

    def mean(self, out: Tensor) -> Tensor:
        return (out.softmax(-1) * self.centers(out)).sum(-1)

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        return -(target * out.log_softmax(-1)).sum(-1)

    @abstractmethod
    def target(self, reward: Tensor, discount: Tensor, following: Tensor) -> Tensor:
        """Return target distributions (B, ..., outputs)."""

    @torch.no_grad()
    def start(self, layer: nn.Linear | EnsembleLinear) -> None:
        """Initialize a critic's last layer so that all values are 0, or the value in [low, high] nearest to 0. Random
        weights would give the middle of the range."""
        zero = torch.zeros(1, device=layer.bias.device)
        code = self.target(zero, zero, zero.expand(1, self.outputs))[0]
        code = code.clamp_min(0.1 / self.outputs**2)  # finite logits of all bins; moves the mean by at most 0.05 bins
        layer.weight.zero_()
        layer.bias.copy_(code.log().repeat(layer.bias.shape[-1] // self.outputs))


@dataclass(frozen=True)
class HLGauss(Bins):
    """Bins whose target is a Gaussian around the scalar target. Its standard deviation is the paper's, 0.75 bins."""

    def target(self, reward: Tensor, discount: Tensor, following: Tensor) -> Tensor:
        value = (reward + discount * self.mean(following)).clamp(self.low, self.high)
        width = (self.high - self.low) / (self.outputs - 1)
        edges = torch.linspace(self.low - width / 2, self.high + width / 2, self.outputs + 1, device=value.device)
        below = torch.erf((edges - value[:, None]) / (0.75 * width * math.sqrt(2)))
        mass = below[:, 1:] - below[:, :-1]
        return mass / mass.sum(-1, keepdim=True)


@dataclass(frozen=True)
class C51(Bins):
    """Bins whose target is the return distribution of the next step, scaled, shifted and projected onto the bins
    (algorithm 1).

    `target` also takes several distributions (B, ..., outputs) per reward.
    """

    def target(self, reward: Tensor, discount: Tensor, following: Tensor) -> Tensor:
        width = (self.high - self.low) / (self.outputs - 1)
        moved = (reward[:, None] + discount[:, None] * self.centers(reward)).clamp(self.low, self.high)
        distance = (moved[:, :, None] - self.centers(reward)).abs() / width  # (B, from, to)
        mass = following.softmax(-1)
        return (mass.view(len(mass), -1, self.outputs) @ (1 - distance).clamp_min(0)).view(mass.shape)


class GaussianHead(nn.Module):
    """Head whose outputs give mean and standard deviation of the return. The target of a row is (value, standard
    deviation of the return).

    It has DSAC-T's three refinements: the mean regresses an expected value; this is the value of the less-valued twin
    critic (`pessimistic`); and gradients are multiplied by the running variance over the row's own variance, so that
    they do not depend on the scale of rewards.
    """

    outputs = 2
    LEAST_STD = 0.05
    """Least standard deviation of the return; smaller deviations make gradients of single rows explode."""
    REACH = 3.0
    """Largest distance of a return from the mean that the loss counts, in running standard deviations."""
    FOLLOW = 0.005
    """Rate per update at which the running standard deviation follows the batch's."""
    HUBER = 50.0
    """Error of the mean above which its gradient is constant."""
    usual: Tensor

    def __init__(self, low: float, high: float):
        super().__init__()
        self.low, self.high = low, high
        self.register_buffer("usual", torch.zeros(()))  # running mean of the standard deviation; 0: none yet

    def mean(self, out: Tensor) -> Tensor:
        return out[..., 0]

    def std(self, out: Tensor) -> Tensor:
        return nn.functional.softplus(out[..., 1]) + self.LEAST_STD

    def target(self, reward: Tensor, discount: Tensor, following: Tensor) -> Tensor:
        value = (reward + discount * self.mean(following)).clamp(self.low, self.high)
        return torch.stack([value, discount * self.std(following)], -1)

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        """Return w (Huber(mean - value) + std [std^2 - E(mean - return)^2] / (std + 0.1)), with [] constant.

        E is the expectation over the return's Gaussian. The paper draws one sample instead, which gives the same
        gradient with noise. The paper's Huber loss is half the square, which makes its standard deviation too small by
        sqrt(2); the standard deviation here is not too small.
        """
        mean, std, value, spread = self.mean(out), self.std(out), target[:, 0], target[:, 1]
        with torch.no_grad():
            now = std.mean()
            self.usual.copy_(torch.where(self.usual > 0, self.usual.lerp(now, self.FOLLOW), now))
            surplus = std.square() - clipped_square(value - mean, spread, self.REACH * self.usual)
            slope = surplus / (std + 0.1)
            weight = (self.usual.square() / (std.square() + 0.1)).clamp(0.1, 10)
        huber = nn.functional.huber_loss(mean, value.expand_as(mean), reduction="none", delta=self.HUBER)
        return weight * (huber + std * slope)


def clipped_square(center: Tensor, std: Tensor, reach: Tensor) -> Tensor:
    """Return the mean (E, B) of clip(x, -reach, reach)^2 for x ~ N(center, std^2), with center (E, B) and std (B,)."""
    std = std.clamp_min(1e-6)
    low, high = (-reach - center) / std, (reach - center) / std
    below, upto = (torch.special.ndtr(x) for x in (low, high))
    at_low, at_high = (torch.exp(-0.5 * x.square()) / math.sqrt(2 * math.pi) for x in (low, high))
    inside = (center.square() + std.square()) * (upto - below) + 2 * center * std * (at_low - at_high)
    inside = inside + std.square() * (low * at_low - high * at_high)
    return inside + reach.square() * (below + 1 - upto)


def build_head(name: HeadName, low: float, high: float, bins: PositiveInt) -> Head:
    """Return the head `name` for returns within [low, high]; `bins` is the number of bins of hl-gauss and c51."""
    if name == "hl-gauss":
        return HLGauss(low, high, bins)
    if name == "c51":
        return C51(low, high, bins)
    return GaussianHead(low, high) if name == "gaussian" else Scalar(low, high)


def pessimistic(head: Head, out: Tensor, subset: int, rng: torch.Generator) -> Tensor:
    """Return for each row the outputs (B, outputs) of the member with the least value, among `subset` random members of
    an ensemble with outputs `out` (E, B, outputs). The minimum is clipped double Q (Fujimoto et al. 2018), and random
    subsets are those of REDQ (Chen et al. 2021)."""
    if subset < len(out):
        out = out[torch.randperm(len(out), generator=rng)[:subset].to(out.device)]
    if len(out) == 1:
        return out[0]
    least = head.mean(out).argmin(0)
    return out[least, torch.arange(out.shape[1], device=out.device)]
