"""Feed-forward Gaussian policy with observation normalizer and history, for on-policy learning."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from policies.base import Observation, Policy, RunningNormalizer, Size, elu, mlp, normal
from policies.flow import FlowConfig, FlowPolicy
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import ActionStd, PositiveInt


@dataclass(frozen=True)
class FeedforwardConfig:
    """Feed-forward actor."""

    hidden: tuple[PositiveInt, ...] = (256, 128, 64)
    """Widths of the hidden layers, with ELU activations."""
    history: PositiveInt = 1
    """Number of observations in the actor's input, including the newest."""
    initial_std: ActionStd = 0.5
    """Initial standard deviation of exploration, in units of the action range [-1, 1]."""


class History:
    """Last `length` observations (frames) of every environment; an episode starts with copies of its first frame.

    frames        A B C D|E F      (one column per step; length = 3, a reset before E)
    oldest        A A A B|E E
                  A A B C|E E
    newest        A B C D|E F
    """

    def __init__(self, length: int):
        self.length = length
        self.frames: Tensor | None = None
        """(B, length, D) history, oldest frame first; None before the first frame"""
        self.starts: Tensor | None = None
        """(B,) bool, true for environments whose next frame begins an episode"""

    def push(self, frame: Tensor) -> Tensor:
        """Append a frame (B, D); return the history (B, length * D)."""
        if self.length == 1:
            return frame
        if self.frames is None or self.starts is None:
            self.frames = frame[:, None].repeat(1, self.length, 1)
        else:
            require_count(len(self.frames), len(frame))
            moved = torch.cat([self.frames[:, 1:], frame[:, None]], 1)
            self.frames = torch.where(self.starts[:, None, None], frame[:, None], moved)
        self.starts = torch.zeros(len(frame), dtype=torch.bool, device=frame.device)
        return self.frames.flatten(1)

    def reset(self, ids: Tensor | None = None) -> None:
        """Clear the history of environments `ids`; None: all."""
        if ids is None:
            self.frames = self.starts = None
        elif self.starts is not None:
            self.starts[ids] = True

    def state_dict(self) -> dict[str, Any]:
        return {"frames": self.frames, "starts": self.starts}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | None = None) -> None:
        self.frames, self.starts = (
            v if v is None or device is None else v.to(device) for v in (state["frames"], state["starts"])
        )


class FeedforwardPolicy(Policy):
    """Action = clip(mean(normalized last observations), -1, 1); `explore` adds Gaussian noise before the clip.

    Normalization and history belong to the policy, so simulator and robot run the same code. Only learners update the
    normalizer. The standard deviation of exploration does not depend on the state.
    """

    class_name, config_class = "feedforward", FeedforwardConfig
    horizon = execute = 1
    MIN_LOG_STD, MAX_LOG_STD = -5.0, 1.0
    """Bounds of `log_std` for learners: density ratios are infinite if the standard deviation underflows."""

    def __init__(self, size: Size, config: FeedforwardConfig | None = None):
        super().__init__()
        self.size, self.config = size, config or FeedforwardConfig()
        if size.extra_inputs:
            name = next(iter(size.extra_inputs))
            raise ConfigError(f"a feed-forward policy cannot read {name!r}; take another recipe")
        c = self.config
        self.normalizer = RunningNormalizer(size.observation)
        self.actor = mlp([c.history * size.observation, *c.hidden, self.outputs], elu)
        self.log_std = nn.Parameter(torch.full((self.outputs,), math.log(c.initial_std)))
        head = self.actor[-1]
        assert isinstance(head, nn.Linear)
        with torch.no_grad():  # start near 0 everywhere (Andrychowicz et al. 2021, section 3.2)
            head.weight.mul_(0.01)
            head.bias.zero_()
        self.history = History(c.history)
        self.explore = False
        """Whether to sample actions instead of taking their mean."""

    @property
    def outputs(self) -> int:
        """Number U of outputs u of the actor, from which `transform` makes an action."""
        return self.size.action

    def remember(self, observation: Observation) -> Tensor:
        """Append the newest observation; return the unnormalized history (B, history * D), oldest first."""
        state = observation["observation.state"]
        require_shape(state, self.size.observation)
        return self.history.push(state)

    def features(self, frames: Tensor) -> Tensor:
        """Return the actor's input (..., history * D): all frames of a history (..., history * D), normalized."""
        split = frames.unflatten(-1, (self.config.history, self.size.observation))
        return self.normalizer(split).flatten(-2)

    def mean(self, frames: Tensor) -> Tensor:
        """Return the mean output (B, U), not clipped, for an unnormalized history (B, history * D)."""
        return self.actor(self.features(frames))

    def sample(self, mean: Tensor, rng: torch.Generator) -> Tensor:
        """Return outputs (B, U), not clipped, sampled around `mean` (B, U)."""
        return mean + self.log_std.exp() * normal(mean.shape, rng, mean.device)

    def transform(self, u: Tensor, observation: Observation) -> Tensor:
        """Return environment actions (B, A) in [-1, 1] for actor outputs u (B, U); by default, clip u."""
        return u.clamp(-1, 1)

    def reset(self, ids: Tensor | None = None) -> None:
        self.history.reset(ids)

    @torch.no_grad()
    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        mean = self.mean(self.remember(observation))
        u = self.sample(mean, rng) if self.explore else mean
        return self.transform(u, observation)[:, None]

    def peek(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> Tensor:
        kept = self.history.state_dict()
        chunk = self.act(observation, rng)  # all rows, because the history covers every environment
        self.history.load_state_dict(kept)
        return chunk[rows]


def require_shape(state: Tensor, size: int) -> None:
    """Raise ValueError unless states have shape (B, size)."""
    if state.ndim != 2 or state.shape[1] != size:
        raise ValueError(f"observation.state has shape {tuple(state.shape)}; the policy reads (B, {size})")


def require_count(kept: int, count: int) -> None:
    """Raise ValueError if a history of `kept` environments meets an observation of another `count`, without a reset."""
    if kept != count:
        raise ValueError(f"the policy has the history of {kept} environments, the observation has {count}: reset first")


@dataclass(frozen=True)
class DecodedConfig(FeedforwardConfig):
    """Gaussian actor, followed by a flow that is conditioned on the newest observation."""

    decoder: FlowConfig = field(default_factory=lambda: FlowConfig(horizon=1, execute=1, hidden=64, layers=4))

    def __post_init__(self) -> None:
        if self.decoder.horizon != 1:
            raise ValueError(f"decoder.horizon is {self.decoder.horizon}, and single actions are decoded; make it 1")


class DecodedPolicy(FeedforwardPolicy):
    """Gaussian policy whose output u is the noise of a flow (GoRL, arXiv 2512.02581).

    u ~ N(mean(s), std^2), action = clip(flow(s, u), -1, 1); before the first fit of the flow, action = clip(u, -1, 1).
    """

    class_name, config_class = "decoded", DecodedConfig
    config: DecodedConfig
    fits: Tensor
    """Number of fits of the flow; at 0 the flow is not used."""

    def __init__(self, size: Size, config: DecodedConfig | None = None):
        config = config or DecodedConfig()
        super().__init__(size, config)
        self.decoder = FlowPolicy(size, config.decoder)
        self.register_buffer("fits", torch.zeros((), dtype=torch.long))

    def transform(self, u: Tensor, observation: Observation) -> Tensor:
        if not self.fits:
            return super().transform(u, observation)
        return self.decoder.base(observation, u[:, None])[:, 0]

    @torch.no_grad()
    def anchor(self) -> None:
        """Count a fit of the flow and reset the actor to N(0, I), so that the policy samples the flow."""
        self.fits += 1
        head = self.actor[-1]
        assert isinstance(head, nn.Linear)
        for parameter in (head.weight, head.bias, self.log_std):
            parameter.zero_()
