"""What a run tells: one number, or one per joint, for each cause of shaking."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from robot_rl.data.motion import Motion
from robot_rl.diagnosis.fit import MOVES, Fitted, fit, lag, part
from robot_rl.diagnosis.joints import exchanged, flipped, stretched
from robot_rl.diagnosis.replay import Parameters, Replay

ENCODER = 1e-4
"""Smallest noise of positions that is assumed, rad: a step of a coarse encoder."""
SWITCH = 0.5
"""Time after a switch in which its jump is looked for, s."""
SPIN, SMOOTH = 0.2, 0.06
"""Time over which turns of the orientation are compared with the gyroscope, and over which both are averaged, s."""


@dataclass
class Measures:
    """Numbers of one run; None where it does not tell."""

    interval: float = 0.0
    """Median interval between joint states, s."""
    expected: float = 0.0
    """Interval at which they were expected, s."""
    velocity_noise: float = 0.0
    """Noise of the reported velocities, rad/s: the largest of the joints."""
    velocity_allowed: float = 0.0
    """Noise of velocities that come from positions over one control period, rad/s."""
    order: list[int] = field(default_factory=list)
    """For each joint, the joint whose commands it follows."""
    order_gain: float = 1.0
    """How many times nearer exchanged joints are to those commands than to their own."""
    sign: list[float] = field(default_factory=list)
    """For each joint, how many times nearer it is to its commands with the other sign; 0: it moves too little."""
    scale: list[float] = field(default_factory=list)
    """For each joint, measured motion per simulated motion; 1 if it moves too little."""
    offset: list[float] = field(default_factory=list)
    """For each joint, measured less simulated position, rad."""
    fitted: Parameters | None = None
    """Parameters of the nearest simulation; None if no joint moves."""
    residual: float = 0.0
    """Distance of the nearest simulation, rad."""
    jump: float | None = None
    """Largest distance from the simulation soon after a switch, beyond that at other times, rad."""
    jump_at: float = 0.0
    """Time of that switch, s."""
    quat_as_is: float | None = None
    quat_turned: float | None = None
    """Correlation of the orientation's turns with the gyroscope, as w x y z and as x y z w; None if it hardly turns."""


def measure(motion: Motion, mjcf: str = "") -> Measures:
    """Return the measures of a run; of one whose commands are no joint positions, those without a replay."""
    found = Measures()
    _state_interval(motion, found)
    _velocity_noise(motion, found)
    if motion.quat is not None and motion.gyroscope is not None:
        _quaternion(motion, found)
    if motion.facts["command"] == "JointPositions" and motion.time[-1] > 2:
        replay = Replay(motion, mjcf)
        try:
            _compare(replay, found)
        finally:
            replay.close()
    return found


def _fresh(motion: Motion) -> np.ndarray:
    return np.concatenate([[True], np.diff(motion.received) > 0])


def _state_interval(motion: Motion, found: Measures) -> None:
    found.interval = float(np.median(np.diff(motion.received[_fresh(motion)])))
    # A log sees at most one new state per tick.
    found.expected = 1 / min(motion.facts["state_rate"], motion.facts["command_rate"])


def _scatter(series: np.ndarray) -> np.ndarray:
    """Return the noise of each column: second differences, which slow motion hardly has, and their median, which jolts
    do not change."""
    second = np.abs(series[2:] - 2 * series[1:-1] + series[:-2])
    noise: np.ndarray = np.median(second, 0) / 0.6745 / math.sqrt(6)
    return noise


def _velocity_noise(motion: Motion, found: Measures) -> None:
    fresh = _fresh(motion)
    if fresh.sum() < 50 or found.interval > 1.5 * found.expected:
        return  # states so far apart that motion looks like noise
    found.velocity_noise = float(_scatter(motion.velocity[fresh]).max())
    encoder = max(ENCODER, float(np.median(_scatter(motion.position[fresh]))))
    found.velocity_allowed = math.sqrt(2) * encoder / (motion.facts["period"] or 0.05)


def _quaternion(motion: Motion, found: Measures) -> None:
    assert motion.quat is not None and motion.gyroscope is not None
    fresh = _fresh(motion)
    t, quat, spin = motion.received[fresh], motion.quat[fresh].astype(float), motion.gyroscope[fresh].astype(float)
    wide = max(1, round(SPIN / max(found.interval, 1e-6)))
    if len(t) < 4 * wide:
        return
    turned = np.cumsum(spin * np.gradient(t)[:, None], 0)
    short = max(1, round(SMOOTH / max(found.interval, 1e-6)))
    turned, quat = _averaged(turned, short), _averaged(quat, short)
    by_gyro = turned[wide:] - turned[:-wide]
    by_gyro -= by_gyro.mean(0)
    if by_gyro.std() < TURNS:
        return

    def likeness(order: int) -> float:
        q = np.roll(quat, order, 1)
        q = q / np.linalg.norm(q, axis=1, keepdims=True)
        by_quat = _turns(q[:-wide], q[wide:])
        by_quat -= by_quat.mean(0)
        return float((by_quat * by_gyro).sum() / (np.linalg.norm(by_quat) * np.linalg.norm(by_gyro) + 1e-9))

    found.quat_as_is, found.quat_turned = likeness(0), likeness(1)


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


def _compare(replay: Replay, found: Measures) -> None:
    """Compare a run with its replay: joint order and signs first, since they would spoil everything else."""
    q, mask = replay.run.position, part(replay)
    joints = range(q.shape[1])
    found.order, found.sign = list(joints), [0.0] * len(joints)
    if mask.sum() < replay.robot.command_rate:
        return
    nominal = replay([Parameters()])[0]
    found.order, found.order_gain = exchanged(replay, q, nominal)
    q = q[:, np.argsort(found.order)]
    found.sign = flipped(replay, q, nominal)
    if replay.robot.base:
        return  # the ground's forces hide the rest
    signs = np.where(np.array(found.sign) > FLIPPED, -1.0, 1.0)
    moving = np.flatnonzero(nominal[mask].std(0) > MOVES)
    delay = lag(replay, signs * q, nominal, moving) if len(moving) else 0.0
    nearest = fit(replay, signs * q, delay)
    found.fitted = nearest.parameters if len(moving) else None
    found.residual = nearest.residual
    found.scale, found.offset = stretched(mask, signs * q, nearest.position)
    _jump(replay, signs * q, nearest, found)


TURNS = 0.005
"""Standard deviation of turns within `SPIN` above which the orientation can be judged, rad."""
FLIPPED = 3.0
"""How many times nearer the other sign must be for the rest of the comparison to use it."""


def _jump(replay: Replay, position: np.ndarray, nearest: Fitted, found: Measures) -> None:
    """Measure the distance from the simulation after each switch: the beginning, and each change to following."""
    run, rate = replay.run, replay.robot.command_rate
    follows = replay.follows
    starts = [0, *(np.flatnonzero(np.diff(follows.astype(int)) > 0) + 1)]
    away = np.abs(position - nearest.position - np.array(found.offset))
    near = np.zeros(len(run.time), bool)
    windows = [slice(k, k + round(SWITCH * rate)) for k in starts]
    for window in windows:
        near[window] = True
    rest = part(replay) & ~near
    if rest.sum() < rate:
        return
    usual = np.quantile(away[rest], 0.99, axis=0)
    jumps = [float((away[window] - usual).max()) for window in windows]
    k = int(np.argmax(jumps))
    found.jump, found.jump_at = jumps[k], float(run.time[starts[k]])
