"""Domain randomization, declared in a task as data."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from sim.parameters import find


@dataclass(frozen=True)
class Randomize:
    """A parameter that differs between episodes. A sample is the inverse distribution function at a uniform number. An
    episode is thus a point of the unit cube: reproducible from (seed, episode), and easy to sweep or stratify."""

    parameter: str
    """Name of the parameter in the table of `sim.parameters`, for example "cube.mass"."""
    low: float
    """Bounds, in the unit of the table."""
    high: float
    distribution: str = "uniform"
    """uniform, log_uniform, or normal; low and high of normal are two standard deviations from the mean."""
    optional: bool = False
    """True: an engine that cannot change the parameter keeps and reports the nominal value; False: raises an error."""

    def __post_init__(self) -> None:
        if self.distribution not in DISTRIBUTIONS:
            raise ValueError(
                f"{self.parameter}: unknown distribution {self.distribution!r}; known: {sorted(DISTRIBUTIONS)} (the "
                "table of parameters knows the unit: leave it out)"
            )
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise ValueError(f"{self.parameter}: low {self.low} and high {self.high} must be finite")
        if self.low > self.high:
            raise ValueError(f"{self.parameter}: low {self.low} is above high {self.high}")
        if self.distribution == "log_uniform" and self.low <= 0:
            raise ValueError(f"{self.parameter}: log_uniform needs a positive low, not {self.low}")
        row = find(self.parameter)  # None: `check_supported` says so, which knows the scene
        if row and (why := row.invalid(self.low)):
            raise ValueError(f"{self.parameter}: {why}")

    @property
    def unit(self) -> str:
        """Return the unit of `low` and `high`."""
        row = find(self.parameter)
        return row.unit if row else ""

    @property
    def ends(self) -> tuple[float, float]:
        """Return the smallest and the largest possible value of the parameter."""
        low, high = self.quantile(np.array([0.0, 1.0]))
        return float(low), float(high)

    def quantile(self, u: np.ndarray) -> np.ndarray:
        """Return the values at uniform numbers `u` in [0, 1)."""
        values = DISTRIBUTIONS[self.distribution](u, self.low, self.high)
        # The tails of a normal distribution exceed low and high: positive parameters are clipped at low / 2.
        row = find(self.parameter)
        return np.maximum(values, self.low / 2) if row and row.low == 0 else values

    def record(self) -> dict[str, str | float | bool]:
        """Return the range with its unit, for files and reports."""
        return asdict(self) | {"unit": self.unit}


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
