"""Name the likely causes of a robot's shaking, with a number and a remedy, from the measures of a run.

Limits are the extremes of runs without a fault (`python -m benchmarks.shaking --limits`), with a margin. No run with a
fault had a part in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from robot_rl.data.motion import Motion
from robot_rl.diagnosis.measures import FLIPPED, Measures
from robot_rl.interface.robot import RobotSpec
from robot_rl.robots import robots
from sim.randomization import Randomize
from sim.tasks import tasks


@dataclass(frozen=True)
class Limits:
    """Largest values, or ranges, of runs without a fault, with a margin."""

    delay: float
    """Delay of commands, s."""
    lag: tuple[float, float]
    """Damping divided by stiffness, as a multiple of the spec's."""
    armature: tuple[float, float]
    """Inertia of the motors, as a multiple of the model's."""
    offset: float
    """Rad."""
    scale: float
    """Distance of measured motion per simulated motion from 1."""
    jump: float
    """Rad."""
    residual: float
    """Residual above which a fit says nothing about the motors, rad."""
    interval: float = 1.8
    """Interval of joint states, as a multiple of the expected one."""
    noise: float = 3.0
    """Noise of velocities, as a multiple of what positions over a control period allow."""
    turned: float = 0.3
    """Difference of the two correlations between orientation and gyroscope."""


LIMITS = Limits(delay=0.08, lag=(0.65, 3.0), armature=(0.1, 10.0), offset=0.02, scale=0.05, jump=0.03, residual=0.005)


@dataclass(frozen=True)
class Cause:
    """One likely cause."""

    name: str
    """As in `real.twin.faults`, or unlike-simulation."""
    strength: float
    """Value as a multiple of its limit; above 1."""
    detail: str
    remedy: str


def find(motion: Motion, measures: Measures) -> list[Cause]:
    """Return the likely causes, the likeliest first; empty if nothing is wrong."""
    robot = robots.get(motion.facts["robot"])
    limits, m = LIMITS, measures
    wiring = sorted([*_order(robot, m), *_signs(robot, m), *_orientation(limits, m)], key=_strength)
    arrival = sorted([*_interval(limits, m), *_noise(limits, m)], key=_strength)
    if robot.base:  # the ground's forces decide where joints rest, and when they move
        return [*wiring, *arrival]
    if not wiring and m.residual > UNLIKE:
        return [_unlike(m), *arrival]
    joints = sorted(_places(robot, limits, m), key=_strength)
    # A joint in the wrong place spoils the comparison of how motors move, and slow states that of when.
    motors = [] if wiring else sorted(_motors(motion, limits, m, timed=not arrival), key=_strength)
    jumps = [] if wiring or joints else list(_jump(limits, m))
    return [*wiring, *joints, *arrival, *motors, *jumps]


UNLIKE = 0.05
"""Residual of the nearest simulation above which the run is like none, rad."""


def _unlike(m: Measures) -> Cause:
    return Cause(
        "unlike-simulation", m.residual / UNLIKE,
        f"no simulation with any delay or gains is near: joints are {m.residual:.2f} rad away",
        "move one joint at a time and look which one is reported: order, signs and units of the driver's joints; or "
        "the robot was stopped, or is blocked",
    )  # fmt: skip


def _strength(cause: Cause) -> float:
    return -cause.strength


def _order(robot: RobotSpec, m: Measures) -> Iterator[Cause]:
    for a, b in enumerate(m.order):
        if a < b:
            one, two = robot.joint_names[a], robot.joint_names[b]
            yield Cause(
                "joint-order", m.order_gain,
                f"{one} and {two} are exchanged: each follows the other's commands, {m.order_gain:.0f} times nearer "
                "than its own",
                "correct the order of joints in the driver, or `joint_names` in the robot's spec",
            )  # fmt: skip


def _signs(robot: RobotSpec, m: Measures) -> Iterator[Cause]:
    for name, gain in zip(robot.joint_names, m.sign, strict=False):
        if gain > FLIPPED:
            yield Cause(
                "position-sign", gain / FLIPPED,
                f"{name} turns against its commands: it is {gain:.0f} times nearer to them with the other sign",
                "correct the joint's direction in the driver, or its axis in the robot's spec",
            )  # fmt: skip


def _orientation(limits: Limits, m: Measures) -> Iterator[Cause]:
    if m.quat_as_is is not None and m.quat_turned is not None and m.quat_turned - m.quat_as_is > limits.turned:
        yield Cause(
            "quaternion-order", (m.quat_turned - m.quat_as_is) / limits.turned,
            f"the orientation looks like x y z w: its turns agree with the gyroscope by {m.quat_turned:.2f} in that "
            f"order and by {m.quat_as_is:.2f} as w x y z (1: equal)",
            "give the quaternion as w x y z, as Unitree's messages do",
        )  # fmt: skip


def _places(robot: RobotSpec, limits: Limits, m: Measures) -> Iterator[Cause]:
    for name, scale, offset in zip(robot.joint_names, m.scale, m.offset, strict=False):
        if abs(scale - 1) > limits.scale:
            yield Cause(
                "position-scale", abs(scale - 1) / limits.scale,
                f"{name} reports {scale:.2f} times the motion that simulation has",
                "correct the unit or gear ratio of this joint in the driver",
            )  # fmt: skip
        elif abs(offset) > limits.offset:
            unsure = "; it moves too little to tell an offset from a scale" if scale == 1 else ""
            yield Cause(
                "position-offset", abs(offset) / limits.offset,
                f"offset of {offset:+.2f} rad at {name} from its commands{unsure}",
                "calibrate the joint's zero; or it is held by a load or an obstacle",
            )  # fmt: skip


def _interval(limits: Limits, m: Measures) -> Iterator[Cause]:
    times = m.interval / m.expected if m.expected else 0.0
    if times > limits.interval:
        yield Cause(
            "state-rate", times / limits.interval,
            f"joint states arrive at {1 / m.interval:.0f} Hz; {1 / m.expected:.0f} Hz are expected",
            "raise the rate in the driver (joint_state_rate); or train with sensor.state_delay up to "
            f"{m.interval:.2g} s and set state_rate in the profile",
        )  # fmt: skip


def _noise(limits: Limits, m: Measures) -> Iterator[Cause]:
    times = m.velocity_noise / m.velocity_allowed if m.velocity_allowed else 0.0
    if times > limits.noise:
        yield Cause(
            "velocity-noise", times / limits.noise,
            f"velocities are {times:.0f} times noisier than positions allow: {m.velocity_noise:.2g} rad/s, positions "
            f"over a control period give {m.velocity_allowed:.2g}",
            "filter velocities in the driver, or leave them out so that they come from positions; or train with "
            f"sensor.velocity_noise up to {m.velocity_noise:.2g} rad/s",
        )  # fmt: skip


def _motors(motion: Motion, limits: Limits, m: Measures, timed: bool) -> Iterator[Cause]:
    fitted = m.fitted
    if fitted is None or m.residual > limits.residual:
        return
    if timed and fitted.action_delay > limits.delay:
        late = fitted.action_delay
        yield Cause(
            "motor-delay", late / limits.delay,
            f"the joints follow their commands {1000 * late:.0f} ms later than in simulation (usual up to "
            f"{1000 * limits.delay:.0f} ms): motor delay",
            f"widen robot.action_delay to {late * 1.2:.2g} s{_trained(motion, 'robot.action_delay')}; if it is the "
            "network, use a cable",
        )  # fmt: skip
    lag, (low, high) = fitted.damping_scale / fitted.stiffness_scale, limits.lag
    if lag < low:
        yield Cause(
            "stiffness", low / lag,
            f"the motors are stiffer than in simulation: stiffness over damping is {1 / lag:.1f} times as large",
            f"lower the gains, or widen robot.stiffness_scale{_trained(motion, 'robot.stiffness_scale')}",
        )  # fmt: skip
    if lag > high:
        yield Cause(
            "damping", lag / high,
            f"the motors follow more softly than in simulation: damping over stiffness is {lag:.1f} times as large",
            f"raise the gains, or widen robot.damping_scale{_trained(motion, 'robot.damping_scale')}",
        )  # fmt: skip
    inertia, (low, high) = fitted.armature_scale, limits.armature
    if not low < inertia < high:
        yield Cause(
            "armature", max(inertia / high, low / inertia),
            f"the motors' inertia is {inertia:.1f} times that of the model",
            "set `armature` in the robot's spec, or widen robot.armature_scale"
            f"{_trained(motion, 'robot.armature_scale')}",
        )  # fmt: skip


def _jump(limits: Limits, m: Measures) -> Iterator[Cause]:
    if m.jump is not None and m.jump > limits.jump:
        yield Cause(
            "switch-jump", m.jump / limits.jump,
            f"the robot jumps by {m.jump:.2f} rad at the switch {m.jump_at:.1f} s after the start, which the commands "
            "do not ask for",
            "begin the other controller's set-points at the measured joints; let only one program command the motors",
        )  # fmt: skip


def _trained(motion: Motion, parameter: str) -> str:
    """Return in brackets the range in which the task was trained."""
    task = motion.facts.get("task", "")
    ranges = tasks.get(task).randomization if task in tasks.entries else ()
    for drawn in ranges:
        if isinstance(drawn, Randomize) and drawn.parameter == parameter:
            return f" (trained: {drawn.low:g} to {drawn.high:g})"
    return " (not randomized in training)"
