"""Compare measured joints with simulated ones: order, sign, scale and offset."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from robot_rl.diagnosis.fit import LAGS, MOVES, part, shifted
from robot_rl.diagnosis.limits import LIMITS
from robot_rl.diagnosis.replay import Replay

NOISE = 0.003
"""Distance between joints that counts as none, rad."""


def distances(replay: Replay, position: np.ndarray, simulated: np.ndarray) -> np.ndarray:
    """Return the distance (2, J, J), rad, of each measured joint (row) from each simulated one (column), with its own
    sign and with the other, at the delay at which it is smallest. Postures count too: two joints may move alike, and
    rest elsewhere."""
    mask, rate = part(replay), replay.robot.command_rate
    q = position[mask]
    found = np.full((2, q.shape[1], q.shape[1]), np.inf)
    for delay in LAGS[::2]:
        s = shifted(simulated, round(delay * rate))[mask]
        squares, product = (q**2).mean(0)[:, None] + (s**2).mean(0), 2 * q.T @ s / len(q)
        found = np.minimum(found, np.stack([squares - product, squares + product]))
    apart: np.ndarray = np.sqrt(found.clip(0)) + NOISE
    return apart


def wiring(replay: Replay, position: np.ndarray, simulated: np.ndarray) -> tuple[list[int], float, list[float]]:
    """Return for each joint of the spec the measured one that follows its commands; how many times nearer exchanged
    joints are to these than to their own; and for each joint how many times nearer it is with the other sign (0: it
    stays near zero, where the sign makes no difference)."""
    near = distances(replay, position, simulated)
    both, joints = near.min(0), np.arange(near.shape[1])
    measured, order, best = linear_sum_assignment(both**2)[1], joints.copy(), 1.0
    for a, b in enumerate(measured):
        if a < b and measured[b] == a:  # each follows the other's commands
            own, other = np.hypot(both[a, a], both[b, b]), np.hypot(both[a, b], both[b, a])
            if (gain := float(own / other)) > LIMITS["joint-order"] and own > 2 * MOVES:
                order[a], order[b], best = b, a, max(best, gain)
    own, other = near[:, order, joints]
    far = np.sqrt((simulated[part(replay)] ** 2).mean(0)) > MOVES
    return order.tolist(), best, np.where(far, own / other, 0.0).tolist()


def stretched(mask: np.ndarray, position: np.ndarray, simulated: np.ndarray) -> tuple[list[float], list[float], float]:
    """Return scale and offset of each joint, and the root mean square of what they leave over, rad. Of the two models,
    measured = scale x simulated and measured = simulated + offset, the nearer one is taken; the other's number is 1 or
    0."""
    scales, offsets, left = [], [], []
    for q, s in zip(position[mask].T, simulated[mask].T, strict=True):
        offset, scale = float((q - s).mean()), 1.0
        if s.std() > MOVES:
            through_zero = float(s @ q / (s @ s))
            if ((q - through_zero * s) ** 2).mean() < ((q - s - offset) ** 2).mean():
                scale, offset = through_zero, 0.0
        scales.append(scale)
        offsets.append(offset)
        left.append(((q - scale * s - offset) ** 2).mean())
    return scales, offsets, float(np.sqrt(np.mean(left)))
