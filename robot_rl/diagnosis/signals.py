"""What a run's states tell by themselves: how often they arrive, how noisy velocities are, and how the trunk turns."""

from __future__ import annotations

import math

import numpy as np

from robot_rl.data.motion import Motion

ENCODER = 1e-4
"""Smallest noise of positions that is assumed, rad: a step of a coarse encoder."""
SPIN, SMOOTH = 0.2, 0.06
"""Time over which turns of the orientation are compared with the gyroscope, and over which both are averaged, s."""
TURNS = 0.005
"""Standard deviation of turns within `SPIN` above which the orientation can be judged, rad."""


def fresh(motion: Motion) -> np.ndarray:
    """Return the mask (N,) of ticks with a new joint state."""
    return np.concatenate([[True], np.diff(motion.received) > 0])


def intervals(motion: Motion) -> tuple[float, float]:
    """Return the median interval between joint states, and the expected one, s: a log sees at most one per tick."""
    expected = 1 / min(motion.facts["state_rate"], motion.facts["command_rate"])
    arrivals = motion.received[fresh(motion)]
    return float(np.median(np.diff(arrivals))) if len(arrivals) > 1 else float(motion.time[-1]), expected


def velocity_noise(motion: Motion) -> tuple[float, float]:
    """Return the noise of the reported velocities, the largest of the joints, and that of velocities that come from
    positions over one control period, rad/s."""
    new, (interval, expected) = fresh(motion), intervals(motion)
    if new.sum() < 50 or interval > 1.5 * expected:
        return 0.0, 0.0  # states so far apart that motion looks like noise
    encoder = max(ENCODER, float(np.median(_scatter(motion.position[new]))))
    allowed = math.sqrt(2) * encoder / (motion.facts["period"] or 0.05)
    return float(_scatter(motion.velocity[new]).max()), allowed


def _scatter(series: np.ndarray) -> np.ndarray:
    """Return the noise of each column: second differences, which slow motion hardly has, and their median, which jolts
    do not change."""
    second = np.abs(series[2:] - 2 * series[1:-1] + series[:-2])
    noise: np.ndarray = np.median(second, 0) / 0.6745 / math.sqrt(6)
    return noise


def orientation(motion: Motion) -> tuple[float, float] | None:
    """Return the correlation of the orientation's turns with the gyroscope, as w x y z and as x y z w; None if the
    robot has none, or hardly turns."""
    if motion.quat is None or motion.gyroscope is None:
        return None
    new, (interval, _) = fresh(motion), intervals(motion)
    t, quat, spin = motion.received[new], motion.quat[new].astype(float), motion.gyroscope[new].astype(float)
    wide, short = (max(1, round(span / max(interval, 1e-6))) for span in (SPIN, SMOOTH))
    if len(t) < 4 * wide:
        return None
    turned, quat = _averaged(np.cumsum(spin * np.gradient(t)[:, None], 0), short), _averaged(quat, short)
    by_gyro = turned[wide:] - turned[:-wide]
    by_gyro -= by_gyro.mean(0)
    if by_gyro.std() < TURNS:
        return None

    def likeness(order: int) -> float:
        q = np.roll(quat, order, 1)
        q = q / np.linalg.norm(q, axis=1, keepdims=True)
        by_quat = _turns(q[:-wide], q[wide:])
        by_quat -= by_quat.mean(0)
        return float((by_quat * by_gyro).sum() / (np.linalg.norm(by_quat) * np.linalg.norm(by_gyro) + 1e-9))

    return likeness(0), likeness(1)


def _averaged(series: np.ndarray, count: int) -> np.ndarray:
    """Return the averages of `count` successive rows."""
    total = np.cumsum(np.concatenate([np.zeros((1, series.shape[1])), series]), 0)
    mean: np.ndarray = (total[count:] - total[:-count]) / count
    return mean


def _turns(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return the small rotations (N, 3), rad, from one orientation to another, in the body's frame."""
    w, v, z, u = before[:, :1], -before[:, 1:], after[:, :1], after[:, 1:]
    real = w * z - (v * u).sum(1, keepdims=True)
    turn: np.ndarray = 2 * np.sign(real) * (w * u + z * v + np.cross(v, u))
    return turn
