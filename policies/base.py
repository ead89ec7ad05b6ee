"""Protocols and base classes of policies, and their shared parts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, ClassVar, Protocol, TypeVar, cast, get_type_hints

import torch
from torch import Tensor, nn

from policies import policy_classes
from robot_rl.interface.observation_spec import ObservationSpec
from robot_rl.util.limits import validate

Observation = dict[str, Tensor]
Config = TypeVar("Config")


def from_json(kind: type[Config], values: dict[str, Any], prefix: str = "") -> Config:
    """Return a configuration from JSON, where tuples are lists; ValueError names a value out of its range."""
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
    """Consecutive actions of some environments."""

    actions: Tensor
    """(B, horizon, A) in [-1, 1]"""
    start: int = 0
    """Control period of the first action relative to the observation's; negative if it lies in the past."""
    period: float = 0.0
    """Time from one action to the next, s; 0: a control period."""


@dataclass(frozen=True)
class Prefix:
    """Actions of the previous chunk for the control periods that the next one covers."""

    actions: Tensor
    """(B, horizon, A) in [-1, 1]; actions after the previous chunk's end have weight 0"""
    weights: Tensor
    """(B, horizon) 1: frozen, the action comes back as it is; less: the chunk is pulled towards it; 0: free"""
    guidance: float
    """Largest guidance weight; 0: only frozen actions count."""


class RunnablePolicy(Protocol):
    """Interface of a policy for an executor: a torch module, an ONNX file or a process behind a socket."""

    @property
    def horizon(self) -> int:
        """Actions in a chunk."""

    @property
    def execute(self) -> int:
        """Actions of a chunk that are executed before the next one."""

    def infer(self, observation: Observation, rng: torch.Generator, prefix: Prefix | None = None) -> Chunk:
        """Return chunks for observations with leading dimension B. Only policies with `inpaints` get a prefix."""

    def reset(self, ids: Tensor | None = None) -> None:
        """Clear the state of environments `ids`, or of all: their next call starts an episode."""


class Policy(nn.Module):
    """A policy as a torch module: what learners train and bundles hold.

    A policy may have state per environment (a residual has its base's chunk); `reset` clears it.
    """

    class_name: ClassVar[str]
    """Name in `policy_classes`, or its import path `module:class`."""
    config_class: ClassVar[Any]
    """Dataclass of its configuration."""
    horizon: int
    """Actions in a chunk."""
    execute: int
    """Actions of a chunk that are executed before the next one."""
    inpaints: ClassVar[bool] = False
    """`infer` takes a prefix into account."""
    traceable: bool = False
    """Chunks depend on this moment's observation and, for a `ChunkPolicy`, noise alone: `policies.export` writes it."""
    config: Any
    size: Size

    def describe(self) -> dict[str, Any]:
        """Return what `build` needs besides the weights, as JSON holds it."""
        return {"class": self.class_name, "config": asdict(self.config), "size": self.size.to_json()}

    @classmethod
    def build(cls, description: dict[str, Any]) -> Policy:
        """Return a policy with fresh weights from what `describe` returned."""
        return cls(Size.from_json(description["size"]), from_json(cls.config_class, description["config"]))

    @property
    def words(self) -> tuple[str, ...]:
        """Return the words of instructions that it knows; (): it reads none, or any."""
        base = getattr(self, "base", None)
        return base.words if isinstance(base, Policy) else ()

    def fit(self, columns: dict[str, Tensor]) -> None:
        """Take the statistics of demonstrated rows (N, ...); for policies that normalize what they read."""

    @abstractmethod
    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        """Return a chunk (B, horizon, action_dim) for observations with leading dimension B."""

    def infer(self, observation: Observation, rng: torch.Generator, prefix: Prefix | None = None) -> Chunk:
        """Return what `act` does, as an executor wants it."""
        return Chunk(self.act(observation, rng))

    def read(self, text: Tensor) -> Tensor:
        """Return what a graph is given for instructions (B, bytes): numbers of words, or features."""
        return cast(Tensor, cast(Any, self.encoder).read(text))

    def peek(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> Tensor:
        """Return the chunks (k, horizon, action_dim) of `act` for rows (B,) bool, without changing the policy's state.

        Policies with state override it.
        """
        return self.act({k: v[rows] for k, v in observation.items()}, rng)

    def reset(self, ids: Tensor | None = None) -> None:
        """Clear the state of environments `ids`, or of all: their next call starts an episode."""


def build_policy(description: dict[str, Any]) -> Policy:
    """Return a policy of any class with fresh weights, from what its `describe` returned.

    Bundles call this twice, first on torch's device "meta", which allocates nothing: so sizes are checked.
    """
    name = str(description["class"])
    kind = policy_classes.get(policy_classes.vet(name))
    if not (isinstance(kind, type) and issubclass(kind, Policy)):
        raise TypeError(f"{name} is not a policy class")
    return kind.build(description)


class Actor(nn.Module):
    """A network that gives u (B, actions) for features (B, F)."""

    actions: int
    """Size of u."""
    std: float | None
    """Fixed standard deviation of exploration; None: `sample` explores."""
    starts_at_zero: bool
    """Its mean is 0 before learning."""

    @abstractmethod
    def mean(self, features: Tensor) -> Tensor:
        """Return u without noise."""

    @abstractmethod
    def sample(self, features: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return a reparametrized u and its log-probability (B,), 0 if it is not known."""


class RandomPolicy(Policy):
    """Uniformly random actions up to `reach`, a baseline; with 0, the controller alone."""

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
    """Components of observation.state."""
    action: int
    extra_inputs: ObservationSpec = ObservationSpec(())
    """Inputs besides observation.state."""

    @property
    def pictures(self) -> dict[str, tuple[int, ...]]:
        """Return (height, width, 3) of the pictures it reads, by key."""
        return self.extra_inputs.pictures

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; "others" is left out if it is empty."""
        sizes = {"observation": self.observation, "action": self.action}
        return sizes | ({"others": self.extra_inputs.to_json()} if self.extra_inputs else {})

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Size:
        return cls(data["observation"], data["action"], ObservationSpec.from_json(data.get("others", {})))


def mlp(sizes: list[int], activation: Callable[[], nn.Module] = nn.SiLU, norm: bool = False) -> nn.Sequential:
    """Build an MLP of linear layers with the activation, and optionally LayerNorm before it, between them."""
    layers: list[nn.Module] = []
    for k, (a, b) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
        layers.append(nn.Linear(a, b))
        if k < len(sizes) - 2:
            layers += [nn.LayerNorm(b, elementwise_affine=False)] if norm else []
            layers.append(activation())
    return nn.Sequential(*layers)


def normal(shape: tuple[int, ...], rng: torch.Generator, device: torch.device) -> Tensor:
    """Draw a standard normal tensor where `rng` lives and move it to `device`: a CPU generator repeats anywhere."""
    return torch.randn(shape, generator=rng, device=rng.device).to(device)


def elu() -> nn.Module:
    """Apply ELU in place; the copy dominates its CPU cost."""
    return nn.ELU(inplace=True)


class Normalizer(nn.Module):
    """Shift and scale observations by statistics that are saved with the policy."""

    mean: Tensor
    std: Tensor

    def __init__(self, size: int, limit: float = 5.0):
        """`limit` is the largest magnitude of the output, standard deviations."""
        super().__init__()
        self.limit = limit
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("std", torch.ones(size))

    def fit(self, data: Tensor, floor: float = 1e-2) -> None:
        """Take mean and standard deviation of rows (N, size); `floor` keeps constant columns finite."""
        self.mean.copy_(data.mean(0))
        self.std.copy_(data.std(0).clamp_min(floor))

    def forward(self, x: Tensor) -> Tensor:
        return ((x - self.mean) / self.std).clamp(-self.limit, self.limit)


class RunningNormalizer(Normalizer):
    """A normalizer with running statistics of all rows seen; without any, it only clips."""

    count: Tensor

    def __init__(self, size: int):
        super().__init__(size)
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, data: Tensor, floor: float = 1e-2) -> None:
        """Take in rows (N, size) (Chan et al. 1979, pairwise update); `floor` is the least standard deviation."""
        seen, new = float(self.count), len(data)
        share = new / (seen + new)
        mean = data.mean(0)
        shift = mean - self.mean
        variance = (1 - share) * self.std.square() + share * (data - mean).square().mean(0)
        self.mean += share * shift
        self.std.copy_((variance + share * (1 - share) * shift.square()).sqrt().clamp_min(floor))
        self.count += new
