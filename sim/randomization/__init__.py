"""Domain randomization, declared in a task as data."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Randomize:
    """A parameter that differs between episodes. A sample is the inverse distribution function at a uniform number. An
    episode is thus a point of the unit cube: reproducible from (seed, episode), and easy to sweep or stratify."""

    parameter: str
    """Name of the parameter, for example "cube.mass"."""
    low: float
    high: float
    unit: str
    distribution: str = "uniform"
    """uniform, log_uniform, or normal; low and high of normal are two standard deviations from the mean."""
    optional: bool = False
    """True: an engine that cannot change the parameter keeps and reports the nominal value; False: raises an error."""

    def __post_init__(self) -> None:
        if self.distribution not in DISTRIBUTIONS:
            raise ValueError(
                f"{self.parameter}: unknown distribution {self.distribution!r}; known: {sorted(DISTRIBUTIONS)}"
            )
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise ValueError(f"{self.parameter}: low {self.low} and high {self.high} must be finite")
        if self.low > self.high:
            raise ValueError(f"{self.parameter}: low {self.low} is above high {self.high}")
        if self.distribution == "log_uniform" and self.low <= 0:
            raise ValueError(f"{self.parameter}: log_uniform needs a positive low, not {self.low}")
        if self._positive and self.low < 0:
            raise ValueError(f"{self.parameter}: cannot be negative, low is {self.low} {self.unit}")
        if self.parameter.endswith("_scale") and self.low == 0:
            raise ValueError(f"{self.parameter}: a scale of 0 leaves nothing; give a positive low")

    @property
    def _positive(self) -> bool:
        return self.parameter.endswith((".mass", ".size", "friction", "_scale", "_noise", "_bias", "_delay"))

    @property
    def ends(self) -> tuple[float, float]:
        """Return the smallest and the largest possible value of the parameter."""
        low, high = self.quantile(np.array([0.0, 1.0]))
        return float(low), float(high)

    def quantile(self, u: np.ndarray) -> np.ndarray:
        """Return the values at uniform numbers `u` in [0, 1)."""
        values = DISTRIBUTIONS[self.distribution](u, self.low, self.high)
        # The tails of a normal distribution exceed low and high: positive parameters are clipped at low / 2.
        return np.maximum(values, self.low / 2) if self._positive else values


def quantiles(parameters: Sequence[Randomize], u: np.ndarray) -> np.ndarray:
    """Return the values (k, P) of P parameters at points (k, P) of the unit cube."""
    bounds = np.array([(p.low, p.high) for p in parameters]).reshape(-1, 2)
    values: np.ndarray = bounds[:, 0] + u * (bounds[:, 1] - bounds[:, 0])
    for column, parameter in enumerate(parameters):
        if parameter.distribution != "uniform":
            values[:, column] = parameter.quantile(u[:, column])
    return values


def _normal(u: np.ndarray, low: float, high: float) -> np.ndarray:
    from statistics import NormalDist

    standard = NormalDist((low + high) / 2, max((high - low) / 4, 1e-12))
    return np.array([standard.inv_cdf(min(max(x, 1e-3), 1 - 1e-3)) for x in u])


DISTRIBUTIONS: dict[str, Callable[[np.ndarray, float, float], np.ndarray]] = {
    "uniform": lambda u, low, high: low + u * (high - low),
    "log_uniform": lambda u, low, high: low * (high / low) ** u,
    "normal": _normal,
}


def episode_rng(seed: int, episode: int) -> np.random.Generator:
    """Return the random number generator of episode number `episode` of environment seed `seed`."""
    return np.random.Generator(np.random.Philox(key=np.array([seed & (2**64 - 1), episode], np.uint64)))


def episode_uniforms(seed: int, episode: int, count: int) -> np.ndarray:
    """Return the first random numbers (count,) of an episode's generator: a point of the unit cube."""
    return episode_rng(seed, episode).random(count)
