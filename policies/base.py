"""Protocols, base classes and shared parts of policies."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeVar, cast, get_type_hints

import torch
from torch import Tensor, nn

from policies import policy_classes
from robot_rl.interface.observation_spec import ObservationSpec
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import validate
from robot_rl.util.ranks import drawn

Observation = dict[str, Tensor]
Config = TypeVar("Config")


def from_json(kind: type[Config], values: dict[str, Any], prefix: str = "") -> Config:
    """Return a configuration from a JSON object, with lists as tuples. A ValueError names a value outside its range."""
    hints = get_type_hints(kind)
    made = {}
    for name, value in values.items():
        nested = hints.get(name)
        if is_dataclass(nested) and isinstance(value, dict):
            value = from_json(nested, value, f"{prefix}{name}.")  # type: ignore[arg-type]
        made[name] = tuple(value) if isinstance(value, list) else value
    config = kind(**made)
    validate(config, prefix)
    return config


@dataclass
class Chunk:
    """Consecutive actions of a batch of environments."""

    actions: Tensor
    """(B, horizon, A) in [-1, 1]"""
    start: int = 0
    """Number of control periods from the observation to the first action; at most 0."""
    period: float = 0.0
    """Time between actions, s; 0: the control period."""


@dataclass(frozen=True)
class Prefix:
    """Actions of the previous chunk for the control periods of the next chunk."""

    actions: Tensor
    """(B, horizon, A) in [-1, 1]; actions after the previous chunk's end have weight 0"""
    weights: Tensor
    """(B, horizon) in [0, 1]: 1 keeps the previous chunk's action, a weight below 1 guides the next chunk towards that
    action, and 0 has no effect"""
    guidance: float
    """Largest guidance weight; 0: only actions of weight 1 have an effect."""


class RunnablePolicy(Protocol):
    """Interface of the policies that an executor runs: a torch module, an ONNX file or a policy server."""

    @property
    def horizon(self) -> int:
        """Number of actions in a chunk."""

    @property
    def execute(self) -> int:
        """Number of a chunk's actions that are executed before the next chunk."""

    def infer(self, observation: Observation, rng: torch.Generator, prefix: Prefix | None = None) -> Chunk:
        """Return chunks for observations with leading dimension B. Only policies with `inpaints` get a prefix."""

    def reset(self, ids: Tensor | None = None) -> None:
        """Start new episodes in environments `ids`; None: all."""


class Policy(nn.Module):
    """A trainable policy that can be saved in a bundle and may have state per environment."""

    class_name: ClassVar[str]
    """Name of the class in the registry `policy_classes`, or its import path `module:class`."""
    config_class: ClassVar[Any]
    """Dataclass of the configuration."""
    horizon: int
    execute: int
    inpaints: ClassVar[bool] = False
    """Whether `infer` takes a prefix into account."""
    traceable: bool = False
    """Whether chunks depend only on the current observation and, for a `ChunkPolicy`, on noise, as ONNX export
    needs."""
    config: Any
    size: Size
    metrics: Mapping[str, Tensor] = MappingProxyType({})
    """Metrics of the latest loss, besides the loss."""

    def describe(self) -> dict[str, Any]:
        """Return the JSON description from which `build` restores the policy without its weights."""
        return {"class": self.class_name, "config": asdict(self.config), "size": self.size.to_json()}

    @classmethod
    def build(cls, description: dict[str, Any]) -> Policy:
        """Return a policy with fresh weights from the result of `describe`."""
        return cls(Size.from_json(description["size"]), from_json(cls.config_class, description["config"]))

    @property
    def words(self) -> tuple[str, ...]:
        """Return the vocabulary of instructions; () if the policy reads none or its vocabulary is open."""
        base = getattr(self, "base", None)
        return base.words if isinstance(base, Policy) else ()

    def fit(self, columns: dict[str, Tensor]) -> None:
        """Fit normalizers to demonstrations, columns of N rows (N, ...); do nothing by default."""

    @abstractmethod
    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        """Return chunks (B, horizon, action_dim) for observations with leading dimension B."""

    def infer(self, observation: Observation, rng: torch.Generator, prefix: Prefix | None = None) -> Chunk:
        """Return the result of `act` as a `Chunk`."""
        return Chunk(self.act(observation, rng))

    def read(self, text: Tensor) -> Tensor:
        """Return instructions (B, bytes) as the input of an exported graph: word indices, token ids or features."""
        return cast(Tensor, cast(Any, self.encoder).read(text))

    def peek(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> Tensor:
        """Return the chunks (k, horizon, action_dim) of the k true `rows` (B,) bool. Policies with state override this
        method to keep their state."""
        return self.act({k: v[rows] for k, v in observation.items()}, rng)

    def reset(self, ids: Tensor | None = None) -> None:
        """Start new episodes in environments `ids`; None: all."""


def policy_class(description: dict[str, Any]) -> type[Policy]:
    """Return the class of a policy, given the result of the policy's `describe`."""
    name = str(description["class"])
    kind = policy_classes.get(policy_classes.vet(name))
    if not (isinstance(kind, type) and issubclass(kind, Policy)):
        raise TypeError(f"{name} is not a policy class")
    return kind


def check_class(kind: type[Policy]) -> None:
    """Raise ConfigError if a policy of a class could not be restored from a bundle: `class_name` must lead to it."""
    here = f"{kind.__module__}:{kind.__qualname__}"
    for name, value in (("class_name", here), ("config_class", "the dataclass of its settings")):
        if not hasattr(kind, name):
            raise ConfigError(f"{kind.__name__} defines no {name}, which a bundle needs: set it to {value}")
    if policy_classes.get(kind.class_name) is not kind:
        raise ConfigError(f"{kind.__name__}.class_name is {kind.class_name!r}, another class; set it to {here!r}")


def build_policy(description: dict[str, Any]) -> Policy:
    """Return a policy of any class with fresh weights, given the result of the policy's `describe`."""
    return policy_class(description).build(description)


class Actor(nn.Module):
    """Map features (B, F) to actor outputs u (B, actions)."""

    actions: int
    """Size of the output u."""
    std: float | None
    """Fixed standard deviation of exploration; None: not fixed."""
    starts_at_zero: bool
    """Whether the mean of u is 0 before training."""

    @abstractmethod
    def mean(self, features: Tensor) -> Tensor:
        """Return u without noise."""

    @abstractmethod
    def sample(self, features: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return a reparametrized sample of u and its log-probability (B,), which is 0 if unknown."""


class RandomPolicy(Policy):
    """Policy with uniformly random actions in [-reach, reach]; with reach 0, the controller acts alone."""

    horizon = execute = 1

    def __init__(self, actions: int, reach: float = 1.0):
        super().__init__()
        self.actions, self.reach = actions, reach

    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        draws = torch.rand(len(observation["observation.state"]), 1, self.actions, generator=rng)
        return self.reach * (2 * draws - 1)


@dataclass(frozen=True)
class Size:
    """Sizes of a policy's inputs and outputs."""

    observation: int
    """Number of components of observation.state."""
    action: int
    extra_inputs: ObservationSpec = ObservationSpec(())
    """Inputs besides observation.state."""

    @property
    def pictures(self) -> dict[str, tuple[int, ...]]:
        """Return the shape (height, width, 3) of each picture input, by key."""
        return self.extra_inputs.pictures

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; "others" holds the extra inputs and is omitted if there are none."""
        sizes = {"observation": self.observation, "action": self.action}
        return sizes | ({"others": self.extra_inputs.to_json()} if self.extra_inputs else {})

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Size:
        return cls(data["observation"], data["action"], ObservationSpec.from_json(data.get("others", {})))


def mlp(sizes: list[int], activation: Callable[[], nn.Module] = nn.SiLU, norm: bool = False) -> nn.Sequential:
    """Build an MLP with activations between linear layers; `norm` adds LayerNorm before each activation."""
    layers: list[nn.Module] = []
    for k, (a, b) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
        layers.append(nn.Linear(a, b))
        if k < len(sizes) - 2:
            layers += [nn.LayerNorm(b, elementwise_affine=False)] if norm else []
            layers.append(activation())
    return nn.Sequential(*layers)


def normal(shape: tuple[int, ...], rng: torch.Generator, device: torch.device) -> Tensor:
    """Draw a standard normal tensor, one row per sample of a batch, as `ranks.drawn`."""
    return drawn(torch.randn, shape, rng, device)


def uniform(shape: tuple[int, ...], rng: torch.Generator, device: torch.device) -> Tensor:
    """Draw a tensor of uniform numbers in [0, 1), one row per sample of a batch, as `ranks.drawn`."""
    return drawn(torch.rand, shape, rng, device)


def elu() -> nn.Module:
    """Return an ELU that works in place, because a copy would dominate its cost on a CPU."""
    return nn.ELU(inplace=True)


class Normalizer(nn.Module):
    """Standardize observations by statistics that are saved with the policy."""

    mean: Tensor
    std: Tensor

    def __init__(self, size: int, limit: float = 5.0):
        """`limit` is the largest magnitude of the output, in standard deviations."""
        super().__init__()
        self.limit = limit
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("std", torch.ones(size))

    def fit(self, data: Tensor, floor: float = 1e-2) -> None:
        """Take the mean and standard deviation of rows (N, size). `floor`, the smallest standard deviation, keeps
        outputs of constant columns finite."""
        self.mean.copy_(data.mean(0))
        self.std.copy_(data.std(0).clamp_min(floor))

    def forward(self, x: Tensor) -> Tensor:
        return ((x - self.mean) / self.std).clamp(-self.limit, self.limit)


class EncodingPolicy(Policy):
    """Policy that encodes the normalized state together with the other observations."""

    normalizer: Normalizer
    encoder: Any

    def features(self, observation: Observation) -> Tensor:
        """Return the encoder's features (B, F)."""
        features: Tensor = self.encoder(self.normalizer(observation["observation.state"]), observation)
        return features

    def fit(self, columns: dict[str, Tensor]) -> None:
        self.normalizer.fit(columns["observation.state"])


class RunningNormalizer(Normalizer):
    """Normalizer with running statistics; before the first update it only clips its input."""

    count: Tensor

    def __init__(self, size: int):
        super().__init__(size)
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, data: Tensor, floor: float = 1e-2) -> None:
        """Add rows (N, size) to the statistics (Chan et al. 1979, pairwise); `floor` is the smallest standard
        deviation."""
        new = len(data)
        share = new / (float(self.count) + new)
        mean = data.mean(0)
        shift = mean - self.mean
        variance = (1 - share) * self.std.square() + share * (data - mean).square().mean(0)
        self.mean += share * shift
        self.std.copy_((variance + share * (1 - share) * shift.square()).sqrt().clamp_min(floor))
        self.count += new
