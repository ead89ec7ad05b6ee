"""What a run tells: one number, or one per joint, for each cause of shaking."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from robot_rl.data.motion import Motion
from robot_rl.diagnosis.fit import MOVES, fit, part, shifted
from robot_rl.diagnosis.joints import stretched, wiring
from robot_rl.diagnosis.limits import LIMITS
from robot_rl.diagnosis.replay import Parameters, Replay
from robot_rl.diagnosis.signals import intervals, orientation, velocity_noise
from robot_rl.robots import robots

SWITCH = 0.5
"""Time after a switch in which its jump is looked for, s."""
RESTS = 1.0
"""Time after which simulation should have come to rest at a command, s."""
SHORTEST = 2.0
"""Length of the shortest run that is replayed, s."""


@dataclass
class Measures:
    """Numbers of one run; None where it does not tell."""

    interval: float
    """Median interval between joint states, s."""
    expected: float
    """Interval at which they were expected, s."""
    velocity_noise: float
    """Noise of the reported velocities, rad/s: the largest of the joints."""
    velocity_allowed: float
    """Noise of velocities that come from positions over one control period, rad/s; 0: unknown."""
    orientation: tuple[float, float] | None
    """Correlation of the orientation's turns with the gyroscope, as w x y z and as x y z w."""
    order: list[int] = field(default_factory=list)
    """For each joint, the one that follows its commands."""
    order_gain: float = 1.0
    """How many times nearer exchanged joints are to those commands than to their own."""
    sign: list[float] = field(default_factory=list)
    """For each joint, how many times nearer it is to its commands with the other sign; 0: it stays near zero."""
    scale: list[float] = field(default_factory=list)
    """For each joint, measured motion per simulated motion; 1 if it moves too little."""
    offset: list[float] = field(default_factory=list)
    """For each joint, measured less simulated position, rad."""
    place: list[float] = field(default_factory=list)
    """For each joint that rests, its simulated position, rad; 0: it moves."""
    fitted: Parameters | None = None
    """Parameters of the nearest simulation; None if no joint moves."""
    residual: float = 0.0
    """What no simulation explains, rad."""
    jump: float = 0.0
    """Largest distance from the simulation soon after a switch, beyond that at other times, rad."""
    jump_at: float = 0.0
    """Time of that switch, s."""

    def evidence(self) -> dict[str, float]:
        """Return the number that tells of each cause, as `limits.LIMITS` judges it."""
        as_is, turned = self.orientation or (0.0, 0.0)
        delay, softness = (self.fitted.action_delay, self.fitted.softness) if self.fitted else (0.0, 1.0)
        return {
            "quaternion-order": turned - as_is, "joint-order": self.order_gain,
            "position-sign": max(self.sign, default=0.0), "unlike-simulation": self.residual,
            "position-scale": max((abs(scale - 1) for scale in self.scale), default=0.0),
            "position-offset": max(map(abs, self.offset), default=0.0), "state-rate": self.interval / self.expected,
            "velocity-noise": self.velocity_noise / (self.velocity_allowed or 1.0), "motor-delay": delay,
            "stiffness": 1 / softness, "damping": softness, "switch-jump": self.jump,
        }  # fmt: skip


def replayable(motion: Motion) -> bool:
    """Return whether a run is compared with simulation: of a legged robot loads decide where joints are."""
    return motion.facts["command"] == "JointPositions" and robots.get(motion.facts["robot"]).base is None


def measure(motion: Motion, mjcf: str = "") -> Measures:
    """Return the measures of a run; if it is not `replayable`, those of its states alone."""
    found = Measures(*intervals(motion), *velocity_noise(motion), orientation(motion))
    if replayable(motion) and motion.time[-1] > SHORTEST:
        replay = Replay(motion, mjcf)
        try:
            _compare(replay, found)
        finally:
            replay.close()
    return found


def _compare(replay: Replay, found: Measures) -> None:
    """Compare a run with its replay: joint order and signs first, since they would spoil everything else."""
    q, mask = replay.run.position, part(replay)
    if mask.sum() < replay.robot.command_rate:
        return
    nominal = replay([Parameters()])[0]
    found.order, found.order_gain, found.sign = wiring(replay, q, nominal)
    q = q[:, found.order] * np.where(np.array(found.sign) > LIMITS["position-sign"], -1.0, 1.0)
    moving = np.flatnonzero(nominal[mask].std(0) > MOVES)
    nearest = nominal
    if len(moving):
        nearest, found.fitted = fit(replay, q, moving)
    found.scale, found.offset, left = stretched(mask, q, nearest)
    found.place = np.where(nominal[mask].std(0) > MOVES, 0.0, nearest[mask].mean(0)).tolist()
    found.residual = max(left, _blocked(replay, nearest))
    _jump(replay, np.abs(q - nearest - np.array(found.offset)), found)


def _blocked(replay: Replay, simulated: np.ndarray) -> float:
    """Return how far simulation stays from commands that rest, rad: it is in contact, which the reported posture leads
    to."""
    setpoint = replay.run.setpoint
    way = np.cumsum(np.abs(np.diff(setpoint, axis=0, prepend=setpoint[:1])), 0)
    rests = way - shifted(way, round(RESTS * replay.robot.command_rate)) < 1e-3
    away = np.abs(simulated - setpoint) * (rests & part(replay)[:, None])
    return float(away.max())


def _jump(replay: Replay, away: np.ndarray, found: Measures) -> None:
    """Measure the distance (T, J) from the simulation after each switch: the beginning of a run that was not cut, and
    each change to following."""
    time, rate = replay.run.time, replay.robot.command_rate
    starts = [*([0] if replay.whole else []), *(np.flatnonzero(np.diff(replay.follows.astype(int)) > 0) + 1)]
    near = np.zeros(len(time), bool)
    windows = [slice(k, k + round(SWITCH * rate)) for k in starts]
    for window in windows:
        near[window] = True
    rest = part(replay) & ~near
    if rest.sum() < rate or not windows:
        return
    usual = np.quantile(away[rest], 0.99, axis=0)
    jumps = [float((away[window] - usual).max()) for window in windows]
    found.jump, found.jump_at = max(jumps), float(time[starts[int(np.argmax(jumps))]])
