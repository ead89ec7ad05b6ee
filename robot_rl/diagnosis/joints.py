"""Compare measured joints with simulated ones: order, sign, scale and offset."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from robot_rl.diagnosis.fit import LAGS, MOVES, part, shifted
from robot_rl.diagnosis.replay import Replay

NOISE = 0.003
"""Distance between joints that counts as none, rad."""


def distances(replay: Replay, position: np.ndarray, simulated: np.ndarray, sign: float = 1.0) -> np.ndarray:
    """Return the distance (J, J), rad, of each measured joint (row) from each simulated one (column), at the delay at
    which it is smallest. Postures count too: two joints may move alike, and rest elsewhere."""
    mask, rate = part(replay), replay.robot.command_rate
    q = position[mask]
    found = np.full((q.shape[1], q.shape[1]), np.inf)
    for delay in LAGS[::2]:
        s = sign * shifted(simulated, round(delay * rate))[mask]
        apart = (q**2).mean(0)[:, None] - 2 * q.T @ s / len(q) + (s**2).mean(0)
        found = np.minimum(found, np.sqrt(apart.clip(0)))
    return found


def exchanged(replay: Replay, position: np.ndarray, simulated: np.ndarray) -> tuple[list[int], float]:
    """Return for each measured joint the simulated one that it follows, and how many times nearer exchanged joints are
    to these than to their own (1 if none is). Joints that may have the other sign count by the nearer one."""
    near = np.minimum(distances(replay, position, simulated), distances(replay, position, simulated, -1.0))
    rows, columns = linear_sum_assignment(near**2)
    count = len(rows)
    moves = simulated[part(replay)].std(0) > MOVES
    order, gain = list(range(count)), 1.0
    for a in range(count):
        b = int(columns[a])
        if a < b and columns[b] == a and (moves[a] or moves[b]):  # two joints that follow each other's commands
            own, other = np.hypot(near[a, a], near[b, b]), np.hypot(near[a, b], near[b, a])
            ratio = float(own / max(other, NOISE))
            if ratio > EXCHANGED and own > 2 * MOVES:
                order[a], order[b], gain = b, a, max(gain, ratio)
    return order, gain


EXCHANGED = 3.0
"""How many times nearer exchanged joints must be to each other's commands."""


def flipped(replay: Replay, position: np.ndarray, simulated: np.ndarray) -> list[float]:
    """Return for each joint how many times nearer it is to the simulated one with the other sign; 0: it stays near
    zero, where the sign makes no difference."""
    own = np.diag(distances(replay, position, simulated)).clip(NOISE)
    other = np.diag(distances(replay, position, simulated, -1.0)).clip(NOISE)
    far = np.sqrt((simulated[part(replay)] ** 2).mean(0)) > 1.5 * MOVES
    return [float(o / f) if m else 0.0 for o, f, m in zip(own, other, far, strict=True)]


def stretched(mask: np.ndarray, position: np.ndarray, simulated: np.ndarray) -> tuple[list[float], list[float]]:
    """Return scale and offset of each joint. Of the two models, measured = scale x simulated and measured = simulated +
    offset, the nearer one is taken; the other's number is 1 or 0."""
    scales, offsets = [], []
    for q, s in zip(position[mask].T, simulated[mask].T, strict=True):
        offset, scale = float((q - s).mean()), 1.0
        if s.std() > MOVES:
            scale = float(np.polyfit(s, q, 1)[0])
            through_zero = float(s @ q / (s @ s))
            scaled, moved = ((q - through_zero * s) ** 2).mean(), ((q - s - offset) ** 2).mean()
            if scaled < moved:
                scale, offset = through_zero, 0.0
        scales.append(scale)
        offsets.append(offset)
    return scales, offsets
