"""Nonlinear least squares over batched simulations, with Fisher information and confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robot_rl.identification.plant import DELAY, Plant

ITERATIONS = 12
TOGETHER = 0.15
"""Step of the numerical derivative of stiffness and damping together, in their logarithms."""
DAMPING = np.array([0.0, 1e-3, 1e-2, 0.1, 0.5, 2.0])
"""Marquardt's dampings that are tried at once; the nearest step is taken."""


@dataclass(frozen=True)
class Unknown:
    """A parameter to fit. Positive scales are fitted in their logarithm."""

    name: str
    start: float
    step: float
    """Step of the numerical derivative."""
    matters: float
    """Difference that makes a difference: a larger standard error means that the data cannot show the parameter."""
    low: float
    high: float
    log: bool = False

    def value(self, theta: np.ndarray | float) -> np.ndarray:
        """Return the parameter at the fitted number."""
        return np.exp(theta) if self.log else np.asarray(theta, float)


ARM = (
    Unknown(DELAY, 0.03, 0.003, 0.01, 0.0, 0.3),
    Unknown("robot.stiffness_scale", 0.0, 0.03, 0.3, -2.0, 2.0, log=True),
    Unknown("robot.damping_scale", 0.0, 0.03, 0.3, -2.0, 2.0, log=True),
    Unknown("robot.joint_friction", 0.2, 0.05, 0.3, 0.0, 20.0),
)
LEGS = (
    Unknown(DELAY, 0.01, 0.002, 0.01, 0.0, 0.2),
    Unknown("robot.stiffness_scale", 0.0, 0.03, 0.3, -2.0, 2.0, log=True),
    Unknown("robot.damping_scale", 0.0, 0.03, 0.3, -2.0, 2.0, log=True),
    Unknown("robot.joint_friction", 0.1, 0.03, 0.2, 0.0, 5.0),
    Unknown("payload.mass", 0.0, 0.3, 1.0, 0.0, 20.0),
)


class Problem:
    """Weighted differences between a log and its simulation, constant offsets of joints removed."""

    def __init__(self, plant: Plant, windows: np.ndarray):
        """Args: `windows`: mask (W,) of the windows that are compared."""
        self.plant, self.known = plant, plant.known & windows[:, None]
        q = plant.measured
        second = np.abs(q[:, 2:] - 2 * q[:, 1:-1] + q[:, :-2])
        self.noise = np.maximum(np.median(second, (0, 1)) / 0.6745 / np.sqrt(6), 1e-5)
        """Noise of joint positions (J,), rad: second differences, which slow motion hardly has."""

    def errors(self, simulated: np.ndarray) -> list[np.ndarray]:
        """Return the differences (N, J) of each candidate (K, W, T, J), in units of the noise."""
        found = []
        for one in simulated:
            error = (self.plant.measured - one)[self.known] / self.noise
            found.append(error - error.mean(0))
        return found

    def window_of(self) -> np.ndarray:
        """Return the window (N,) of each row of the differences."""
        return np.nonzero(self.known)[0]


@dataclass
class Fitted:
    """Result of a fit."""

    unknowns: list[Unknown]
    theta: np.ndarray
    covariance: np.ndarray
    """Covariance (P, P) of `theta`."""
    cost: float
    """Mean square of the differences, in units of the noise."""

    @property
    def errors(self) -> np.ndarray:
        """Return the standard errors (P,) of `theta`."""
        return np.sqrt(np.diag(self.covariance).clip(0))


def _limits(unknowns: Sequence[Unknown]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([u.low for u in unknowns]), np.array([u.high for u in unknowns])


def _values(unknowns: Sequence[Unknown], thetas: np.ndarray) -> dict[str, np.ndarray]:
    low, high = _limits(unknowns)
    return {u.name: u.value(column) for u, column in zip(unknowns, thetas.clip(low, high).T, strict=True)}


def _padded(thetas: np.ndarray, count: int) -> np.ndarray:
    return np.concatenate([thetas, np.repeat(thetas[-1:], count - len(thetas), 0)])


def simulate(problem: Problem, unknowns: Sequence[Unknown], thetas: np.ndarray) -> list[np.ndarray]:
    """Return the differences (N, J) at each row of `thetas` (K, P)."""
    errors: list[np.ndarray] = []
    for k in range(0, len(thetas), problem.plant.count):
        part = thetas[k : k + problem.plant.count]
        simulated = problem.plant(_values(unknowns, _padded(part, problem.plant.count)))
        errors += problem.errors(simulated[: len(part)])
    return errors


def directions(unknowns: Sequence[Unknown]) -> np.ndarray:
    """Return the directions (P, P), one per row, of the numerical derivatives. Stiffness and damping are taken together
    and against each other: a stiff servo hardly shows the first, and its small derivative must not be a difference of
    large ones."""
    rows = np.diag([u.step for u in unknowns])
    names = [u.name for u in unknowns]
    if {"robot.stiffness_scale", "robot.damping_scale"} <= set(names):
        k, d = names.index("robot.stiffness_scale"), names.index("robot.damping_scale")
        rows[d, [k, d]] = TOGETHER
    return rows


def slopes(problem: Problem, unknowns: Sequence[Unknown], theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the differences (N J,) and their derivatives (N J, P), by central differences."""
    rows, low, high = directions(unknowns), *_limits(unknowns)
    ahead, behind = (theta + rows).clip(low, high), (theta - rows).clip(low, high)
    at, *probes = simulate(problem, unknowns, np.concatenate([theta[None], ahead, behind]))
    half = len(rows)
    rise = np.stack([(a - b).ravel() for a, b in zip(probes[:half], probes[half:], strict=True)], 1)
    return at.ravel(), rise @ np.linalg.inv(ahead - behind).T


def coarse_delay(problem: Problem, unknowns: Sequence[Unknown], theta: np.ndarray) -> np.ndarray:
    """Return `theta` with the nearest of delays 0 to 0.2 s."""
    at = [u.name for u in unknowns].index(DELAY)
    tried = np.repeat(theta[None], 11, 0)
    tried[:, at] = np.linspace(0.0, 0.2, 11)
    costs = [float((e**2).mean()) for e in simulate(problem, unknowns, tried)]
    return tried[int(np.argmin(costs))]


def covariance(error: np.ndarray, slope: np.ndarray, windows: np.ndarray, joints: int) -> np.ndarray:
    """Return the covariance (P, P) of the fitted numbers: that of independent noise, or, where it is larger, that which
    the windows' own gradients tell, as the differences of a window are not independent."""
    information = slope.T @ slope
    inverse = np.linalg.pinv(information, hermitian=True)
    plain = inverse * max(1.0, float((error**2).mean()))
    groups = np.repeat(windows, joints)
    kinds = np.unique(groups)
    gradients = np.stack([slope[groups == w].T @ error[groups == w] for w in kinds])
    share = len(kinds) / max(1, len(kinds) - 1)
    grouped = share * inverse @ (gradients.T @ gradients) @ inverse
    scale = np.sqrt(np.maximum(1.0, np.diag(grouped) / np.diag(plain).clip(1e-30)))
    result: np.ndarray = plain * np.outer(scale, scale)
    return result


def fit(problem: Problem, unknowns: Sequence[Unknown], theta: np.ndarray) -> Fitted:
    """Return the numbers with the least mean square difference, from `theta` (P,)."""
    low, high = _limits(unknowns)
    joints, best = problem.plant.measured.shape[-1], np.inf
    for _ in range(ITERATIONS):
        error, slope = slopes(problem, unknowns, theta)
        best = float((error**2).mean())
        normal, gradient = slope.T @ slope, slope.T @ error
        scale = np.diag(np.diag(normal) + 1e-12)
        tries = np.stack([theta - np.linalg.lstsq(normal + d * scale, gradient, rcond=None)[0] for d in DAMPING])
        tries = tries.clip(low, high)
        costs = [float((e**2).mean()) for e in simulate(problem, unknowns, tries)]
        nearest = int(np.argmin(costs))
        if costs[nearest] >= best * (1 - 1e-5):
            break
        theta = tries[nearest]
    error, slope = slopes(problem, unknowns, theta)
    return Fitted(
        list(unknowns), theta, covariance(error, slope, problem.window_of(), joints), float((error**2).mean())
    )
