"""Errors of a tracked object that the gripper holds: constant offset, delay and noise.

    measured(t) = tool(t - delay) + R(t - delay) grasp + offset

The place of the object in the hand, `grasp`, is unknown too. Only turns of the hand tell it from the offset: without
them the data cannot show the offset, and its standard error says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from robot_rl.identification.log import Log
from robot_rl.interface.kinematics import Kinematics

DELAYS = np.arange(0.0, 0.301, 0.0025)
"""Delays that are tried, s."""
FASTEST = 0.1
"""Gap between joint states above which a pose is left out, s."""
TRIM = 4.0
"""Poses farther from the fit than this multiple of its noise are left out: the object was not held then."""


@dataclass(frozen=True)
class Tracked:
    """Errors of one object's poses."""

    name: str
    offset: np.ndarray
    """Constant error (3,) m, base frame."""
    offset_error: np.ndarray
    """Standard error (3,) m."""
    delay: float
    """Delay of the poses relative to the joint states, s."""
    delay_error: float
    noise: float
    """Standard deviation of the noise per axis, m."""
    count: int
    """Number of poses."""


def tracked(log: Log, name: str, held: tuple[float, float] | None = None) -> Tracked | None:
    """Return the errors of an object that is held from `held[0]` to `held[1]` s, or in the whole log; None with too few
    poses."""
    if log.robot.tool is None or name not in log.objects:
        return None
    piece, (arrival, seen) = log.pieces[0], log.objects[name]
    first, last = held or (float(piece.time[0]), float(piece.time[-1]))
    inside = (arrival >= first + DELAYS[-1]) & (arrival <= last)
    arrival, seen = arrival[inside], seen[inside].astype(float)
    if len(arrival) < 50:
        return None
    kinematics = Kinematics(log.robot, torch.float64)
    place, turn = (x.numpy() for x in kinematics.forward(torch.from_numpy(piece.position)))
    kept, costs = np.ones(len(arrival), bool), np.zeros(len(DELAYS))
    for _ in range(3):
        for k, delay in enumerate(DELAYS):
            costs[k] = _solved(piece.time, place, turn, arrival[kept] - delay, seen[kept])[1]
        best = int(np.argmin(costs))
        delay = float(DELAYS[best] + _vertex(costs, best))
        numbers, cost, _ = _solved(piece.time, place, turn, arrival[kept] - delay, seen[kept])
        residual = (
            seen
            - _design(piece.time, place, turn, arrival - delay)[0]
            - (_design(piece.time, place, turn, arrival - delay)[1] @ numbers)
        )
        noise = float(np.median(np.abs(residual[kept])) / 0.6745)
        kept = (np.abs(residual) < TRIM * max(noise, 1e-5)).all(1)
    numbers, cost, information = _solved(piece.time, place, turn, arrival[kept] - delay, seen[kept])
    count = int(kept.sum())
    variance = cost / max(1, 3 * count - 6)
    errors = np.sqrt(np.diag(np.linalg.pinv(information, rcond=1e-9, hermitian=True)) * variance)
    weak = np.linalg.eigvalsh(information)[0] < 1e-6 * len(arrival)
    spread = np.full(3, np.inf) if weak else errors[3:]
    curve = (costs[min(best + 1, len(costs) - 1)] - 2 * costs[best] + costs[max(best - 1, 0)]) / (DELAYS[1] ** 2)
    delay_error = float(np.sqrt(2 * variance / curve)) if curve > 0 else np.inf
    return Tracked(name, numbers[3:], spread, delay, delay_error, float(np.sqrt(variance)), count)


def _vertex(costs: np.ndarray, best: int) -> float:
    """Return the distance of a parabola's minimum from the best of equally spaced costs, s."""
    if not 0 < best < len(costs) - 1:
        return 0.0
    before, at, after = costs[best - 1 : best + 2]
    return float(0.5 * (before - after) / max(before - 2 * at + after, 1e-12) * DELAYS[1])


def _design(time: np.ndarray, place: np.ndarray, turn: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return tool positions (N, 3) and the columns (N, 3, 6) of grasp and offset at times (N,)."""
    where = np.stack([np.interp(at, time, axis) for axis in place.T], 1)
    flat = turn.reshape(len(turn), 9)
    rotation = np.stack([np.interp(at, time, entry) for entry in flat.T], 1).reshape(-1, 3, 3)
    return where, np.concatenate([rotation, np.broadcast_to(np.eye(3), rotation.shape)], 2)


def _solved(
    time: np.ndarray, place: np.ndarray, turn: np.ndarray, at: np.ndarray, seen: np.ndarray
) -> tuple[np.ndarray, float, np.ndarray]:
    """Return grasp and offset (6,), the sum of squares that they leave over, and their information (6, 6)."""
    where, columns = _design(time, place, turn, at)
    matrix, wanted = columns.reshape(-1, 6), (seen - where).ravel()
    numbers = np.linalg.lstsq(matrix, wanted, rcond=1e-6)[0]
    return numbers, float(((wanted - matrix @ numbers) ** 2).sum()), matrix.T @ matrix
