"""A success classifier: pictures in, the probability that the task is done out. Learned from marked frames, as in Luo
et al. 2024, "Precise and Dexterous Robotic Manipulation via Human-in-the-Loop Reinforcement Learning" (arXiv
2410.21845).

It is saved as a folder, which runs no pickled code when it is read:

classifier.json          what it reads, threshold, what was measured on held-out episodes, sha256 of the weights
classifier.safetensors   weights and normalization
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from policies.base import Normalizer, Observation, Size, mlp
from policies.networks.encoder import EncoderConfig
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import LANGUAGE, STATE, ObservationSpec
from robot_rl.interface.pipeline import Interface
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import Fraction, Interval, NonNegativeInt, PositiveFloat, PositiveInt, validate
from robot_rl.util.statistics import wilson

Bar = Annotated[float, Interval(ge=0.8, le=1)]
"""The least precision and recall of a classifier that pays rewards."""


@dataclass(frozen=True)
class NetworkConfig:
    """The network of a classifier."""

    encoder: EncoderConfig = field(default_factory=lambda: EncoderConfig(embedding=16))
    hidden: PositiveInt = 64
    """Units between the encoder's features and the output."""
    dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.5
    """Share of the pictures' features that is left out in each frame while fitting: successes are few, and are else
    remembered by their looks."""


class SuccessNetwork(nn.Module):
    """Logits (B,) that the task is done, of observations with leading dimension B."""

    def __init__(self, reads: Size, config: NetworkConfig):
        super().__init__()
        self.reads, self.config = reads, config
        self.normalizer = Normalizer(reads.observation)
        self.encoder = config.encoder.build(reads)
        self.dropout = nn.Dropout(config.dropout)
        self.head = mlp([self.encoder.size, config.hidden, 1])

    def forward(self, observation: Observation) -> Tensor:
        some = observation[next(iter(self.reads.pictures))]
        state = observation[STATE] if self.reads.observation else some.new_zeros(len(some), 0, dtype=torch.float32)
        features, known = self.encoder(self.normalizer(state), observation), self.reads.observation
        features = torch.cat([features[:, :known], self.dropout(features[:, known:])], 1)
        logits: Tensor = self.head(features)
        return logits[:, 0]


@dataclass(frozen=True)
class Measured:
    """How a classifier judged episodes that it was not fitted to, each counted once."""

    episodes: NonNegativeInt
    successes: NonNegativeInt
    """Marked as successes."""
    claims: NonNegativeInt
    """Called a success by the classifier."""
    right: NonNegativeInt
    """Claims in marked episodes that came no sooner than the margin before the mark."""

    def __post_init__(self) -> None:
        validate(self)
        if not self.right <= min(self.claims, self.successes) <= max(self.claims, self.successes) <= self.episodes:
            raise ValueError(f"these counts contradict each other: {asdict(self)}")

    @property
    def precision(self) -> dict[str, float | None]:
        """Return the share of right claims with its 95 % interval; the mean is None without a claim."""
        return _rate(self.right, self.claims)

    @property
    def recall(self) -> dict[str, float | None]:
        """Return the share of successes that were claimed with its 95 % interval."""
        return _rate(self.right, self.successes)

    def clears(self, bar: float) -> bool:
        """Return whether precision and recall are at least `bar` each."""
        return all(bar <= (rate["mean"] or 0.0) for rate in (self.precision, self.recall))


def _rate(count: int, trials: int) -> dict[str, float | None]:
    low, high = wilson(count, trials)
    return {"mean": count / trials if trials else None, "low": low, "high": high}


@dataclass
class Classifier:
    """Success classifier: network, decision threshold, hold time and held-out metrics."""

    network: SuccessNetwork
    threshold: Fraction
    """A frame shows success above this probability."""
    hold: PositiveInt
    """Frames in a row that must show it."""
    rate: PositiveFloat
    """Frames per second that it was fitted to."""
    instructions: tuple[str, ...]
    """What was asked for in the episodes that it was fitted to."""
    at_least: Bar
    measured: Measured
    provenance: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    """Where it was read from."""

    def __post_init__(self) -> None:
        validate(self)
        encode(self.instructions)  # raises for an empty or too long one

    @property
    def called(self) -> str:
        """How a sentence begins that is about it."""
        return f"classifier {self.folder}" if self.folder else "this classifier"

    @property
    def pays(self) -> bool:
        """Return whether it clears the bar."""
        return self.measured.clears(self.at_least)

    @torch.no_grad()
    def probability(self, observation: Observation) -> Tensor:
        """Return the probabilities (n,) that the task is done, of observations with leading dimension n."""
        return torch.sigmoid(self.network(observation))

    def sees_success(self, observation: Observation) -> Tensor:
        """Return whether each observation shows success, (n,) bool."""
        return self.probability(observation) > self.threshold

    @property
    def refusal(self) -> str:
        """Return why it may not pay rewards, and what to do; empty if it may."""
        if self.pays:
            return ""
        shown = [
            f"{name} {'unknown (it claimed nothing)' if rate['mean'] is None else format(rate['mean'], '.3f')}"
            for name, rate in (("precision", self.measured.precision), ("recall", self.measured.recall))
        ]
        return (
            f"{self.called} may not pay rewards: {' and '.join(shown)} on {self.measured.episodes} held-out "
            f"episodes, and its bar is {self.at_least:g} for both; record more episodes, failures too, and fit again"
        )

    def require_bar(self) -> None:
        """Raise ConfigError below the bar."""
        if not self.pays:
            raise ConfigError(self.refusal)

    def require_fit(self, seen: ObservationSpec, rate: float, interface: Interface | None) -> None:
        """Raise ConfigError where observations `seen` at `rate` Hz, or what is asked, are not what it was fitted to."""
        reads = self.network.reads
        wanted = {key: field.shape for key, field in reads.extra_inputs.items()}
        wanted |= {STATE: (reads.observation,)} if reads.observation else {}
        for key, shape in wanted.items():
            found = seen[key].shape if key in seen else None
            if found != shape:
                there = "is not there" if found is None else f"is {_size(found)}"
                remedy = "fit one to a dataset of this task, or take a task that shows it"
                raise ConfigError(f"{self.called} reads {key} of {_size(shape)}, which {there} here; {remedy}")
        if rate != self.rate:
            raise ConfigError(
                f"{self.called} was fitted to {self.rate:g} frames per second, and here are {rate:g}; fit one to a "
                "dataset of this task"
            )
        asked = [each.text for each in interface.instructions if not each.held_out] if interface else []
        asked = asked or ([interface.instruction] if interface else [])
        if unknown := [text for text in asked if text not in self.instructions]:
            raise ConfigError(
                f"{self.called} knows no success of {unknown[0]!r}: it was fitted to {', '.join(self.instructions)}; "
                "fit one to a dataset of this task"
            )

    def knows(self, instruction: str) -> bool:
        """Return whether it was fitted to what is asked."""
        return instruction in self.instructions

    def summary(self) -> dict[str, Any]:
        """Return what it is, for a table."""
        reads = self.network.reads
        seen = {key: _size(shape) for key, shape in reads.pictures.items()}
        return {
            "reads": ", ".join(f"{key} {size}" for key, size in seen.items())
            + (f", {STATE} of {reads.observation} numbers" if reads.observation else "")
            + (f", {LANGUAGE}" if LANGUAGE in reads.extra_inputs else ""),
            "instructions": list(self.instructions),
            "threshold": self.threshold,
            "hold": self.hold,
            "rate": self.rate,
            "held_out_episodes": self.measured.episodes,
            "held_out_successes": self.measured.successes,
            "precision": self.measured.precision,
            "recall": self.measured.recall,
            "at_least": self.at_least,
            "pays_rewards": self.pays,
        }


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[0]}x{shape[1]} pixels" if len(shape) == 3 else f"{shape[0]} numbers"
