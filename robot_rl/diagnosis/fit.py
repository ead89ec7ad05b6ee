"""Fit a simulation to a run: how late commands act, and how softly the motors follow."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import least_squares

from robot_rl.diagnosis.replay import Parameters, Replay

SKIP = 1.0
"""Time at the beginning of a run that comparisons leave out, s: the replay has not forgotten how it began."""
LAGS = np.arange(0.0, 0.41, 0.02)
"""Delays tried at first, s."""
SOFT = np.log([0.25, 0.5, 1.0, 2.0, 4.0, 8.0])
"""Logarithms of `Parameters.softness` tried at first."""
MOVES = 0.02
"""Standard deviation of a joint's position above which it counts as moving, rad."""
STEP = np.array([0.004, 0.05])
"""Step of the numerical derivative of the delay, s, and of the logarithm of `Parameters.softness`."""


def shifted(series: np.ndarray, ticks: int) -> np.ndarray:
    """Return a series (T, J) that many ticks later; it begins with its first row."""
    return series if ticks <= 0 else np.concatenate([np.repeat(series[:1], ticks, 0), series[:-ticks]])


def part(replay: Replay) -> np.ndarray:
    """Return the mask (T,) of the times that are compared."""
    run = replay.run
    return run.known & (run.time >= min(SKIP, 0.2 * run.time[-1]))


def fit(replay: Replay, position: np.ndarray, joints: np.ndarray) -> tuple[np.ndarray, Parameters]:
    """Return the simulation (T, J) whose `joints` are nearest to measured positions (T, J), offsets removed."""
    mask, rate = part(replay), replay.robot.command_rate

    def error(simulated: np.ndarray) -> np.ndarray:
        difference = (position - simulated)[mask][:, joints]
        flat: np.ndarray = (difference - difference.mean(0)).ravel()
        return flat

    def away(theta: np.ndarray) -> np.ndarray:
        return error(replay([_parameters(theta)])[0])

    def slopes(theta: np.ndarray) -> np.ndarray:  # in one batch, which costs little more than one replay
        at, *probes = replay([_parameters(theta), *(_parameters(theta + row) for row in np.diag(STEP))])
        return np.stack([(error(probe) - error(at)) / step for probe, step in zip(probes, STEP, strict=True)], 1)

    # A later command is a later motion, so that one replay serves all delays.
    tried = [(delay, soft, shifted(one, round(delay * rate)))
             for soft, one in zip(SOFT, replay([Parameters(0.0, math.exp(soft)) for soft in SOFT]), strict=True)
             for delay in LAGS]  # fmt: skip
    start = np.array(min(tried, key=lambda one: float((error(one[2]) ** 2).sum()))[:2])
    theta = least_squares(away, start, slopes, method="lm", x_scale=STEP, ftol=1e-4, xtol=1e-4, max_nfev=15).x
    return replay([_parameters(theta)])[0], _parameters(theta)


def _parameters(theta: np.ndarray) -> Parameters:
    # A delay below 0 keeps the least squares smooth.
    return Parameters(float(np.clip(theta[0], -0.1, 0.6)), math.exp(np.clip(theta[1], -2.5, 2.5)))
