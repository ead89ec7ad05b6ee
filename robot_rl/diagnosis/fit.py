"""Fit a simulation's delay, damping and inertia to a run, by least squares over replays."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from robot_rl.diagnosis.replay import Parameters, Replay

SKIP = 1.0
"""Time at the beginning of a run that fits leave out, s: the replay has not forgotten how it began."""
LAGS = np.arange(0.0, 0.41, 0.02)
"""Delays tried at first, s."""
MOVES = 0.02
"""Standard deviation of a joint's position above which it counts as moving, rad."""
ACCURACY = 0.004
"""Residual of a good fit, rad: noise of encoders, friction, loads that the replay lacks."""
PRIOR = {"action_delay": (0.0, 0.1), "stiffness_scale": (0.0, 1.0), "damping_scale": (0.0, 1.0),
         "armature_scale": (0.0, 1.5)}  # fmt: skip
"""Centre and width of each parameter, s, or the logarithm of a scale: what a run does not tell stays near 1."""
STEP = {"action_delay": 0.004, "stiffness_scale": 0.05, "damping_scale": 0.05, "armature_scale": 0.1}
"""Step of the numerical derivative, in the same units."""


@dataclass(frozen=True)
class Fitted:
    """Simulation that is nearest to a run."""

    parameters: Parameters
    position: np.ndarray
    """Its joint positions, (T, J) rad."""
    residual: float
    """Root mean square of the difference over moving joints, offsets removed, rad."""


def shifted(series: np.ndarray, ticks: int) -> np.ndarray:
    """Return a series (T, J) that many ticks later; it begins with its first row."""
    return series if ticks <= 0 else np.concatenate([np.repeat(series[:1], ticks, 0), series[:-ticks]])


def part(replay: Replay) -> np.ndarray:
    """Return the mask (T,) of the times that are compared."""
    run = replay.run
    return run.known & (run.time >= min(SKIP, 0.2 * run.time[-1])) & (replay.stiffness > 0)


def lag(replay: Replay, position: np.ndarray, simulated: np.ndarray, joints: np.ndarray) -> float:
    """Return the delay, s, of a simulation (T, J) at which it is nearest to measured positions (T, J)."""
    rate, mask = replay.robot.command_rate, part(replay)

    def far(delay: float) -> float:
        error = (position - shifted(simulated, round(delay * rate)))[mask][:, joints]
        return float(error.var(0).sum())

    return float(LAGS[int(np.argmin([far(delay) for delay in LAGS]))])


def fit(replay: Replay, position: np.ndarray, start: float, rounds: int = 6) -> Fitted:
    """Return the nearest simulation to positions (T, J), by Levenberg and Marquardt's method from a delay `start`."""
    mask, names = part(replay), list(PRIOR)
    joints = position[mask].std(0) > MOVES
    centre, width = (np.array([PRIOR[name][k] for name in names]) for k in (0, 1))
    weight = ACCURACY * math.sqrt(max(1, mask.sum()) * max(1, joints.sum())) / 10  # neighbouring errors are alike

    def error(simulated: np.ndarray) -> np.ndarray:
        difference = (position - simulated)[mask][:, joints]
        flat: np.ndarray = (difference - difference.mean(0)).ravel() / weight
        return flat

    theta, damping = np.array([start, 0.0, 0.0, 0.0]), 1e-2
    steps = np.array([STEP[name] for name in names])
    best = replay([_parameters(theta)])[0]
    residual = error(best)
    for _ in range(rounds if joints.any() else 0):
        probes = replay([_parameters(theta + steps * row) for row in np.eye(len(names))])
        slopes = np.stack([(error(probe) - residual) / step for probe, step in zip(probes, steps, strict=True)], 1)
        prior = (theta - centre) / width
        hessian = slopes.T @ slopes + np.diag(width**-2)
        gradient = slopes.T @ residual + prior / width
        # Several dampings at once: a batch of replays costs little more than one.
        tries = [theta - np.linalg.solve(hessian + f * damping * np.diag(np.diag(hessian)), gradient)
                 for f in (0.0, 1.0, 10.0, 100.0)]  # fmt: skip
        tries = [np.clip(t, [0.0, -2.5, -2.5, -2.5], [0.6, 2.5, 2.5, 5.0]) for t in tries]
        costs, found = [], replay([_parameters(t) for t in tries])
        for one, simulated in zip(tries, found, strict=True):
            costs.append(float((error(simulated) ** 2).sum() + (((one - centre) / width) ** 2).sum()))
        now, k = float((residual**2).sum() + (prior**2).sum()), int(np.argmin(costs))
        if costs[k] > now * (1 - 1e-3):
            break
        theta, best, residual = tries[k], found[k], error(found[k])
    size = float(np.sqrt(((residual * weight) ** 2).mean())) if joints.any() else 0.0
    return Fitted(_parameters(theta), best, size)


def _parameters(theta: np.ndarray) -> Parameters:
    delay, *scales = theta
    stiffness, damping, armature = map(math.exp, scales)
    return replace(Parameters(), action_delay=float(delay), stiffness_scale=stiffness, damping_scale=damping,
                   armature_scale=armature)  # fmt: skip
