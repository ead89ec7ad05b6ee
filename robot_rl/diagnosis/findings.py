"""Name the likely causes of a robot's shaking, with figures and a remedy, from the measures of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from robot_rl.data.motion import Motion
from robot_rl.diagnosis.limits import LIMITS
from robot_rl.diagnosis.measures import Measures
from robot_rl.robots import robots
from sim.randomization import Randomize
from sim.tasks import tasks

WIRING = ("quaternion-order", "joint-order", "position-sign")
PLACES = ("unlike-simulation", "position-scale", "position-offset")
ARRIVAL = ("state-rate", "velocity-noise")
MOTORS = ("motor-delay", "stiffness", "damping", "switch-jump")

NOT_ZERO = 0.1
"""Position at which a scale makes a difference, rad."""


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
    strength = {name: value / LIMITS[name] for name, value in measures.evidence().items()}

    def over(names: tuple[str, ...]) -> list[str]:
        return sorted((name for name in names if strength[name] > 1), key=lambda name: -strength[name])

    found = over(WIRING)
    if not found:
        found = over(PLACES[:1]) or over(PLACES[1:])
    texts = _Texts(motion, measures)
    if "position-scale" not in found and "position-offset" in found and list(texts.of("position-scale")):
        found.append("position-scale")  # of a joint at rest
        strength["position-scale"] = strength["position-offset"]
    # A joint in the wrong place spoils the comparison of how motors move, and slow states that of when.
    motors = [] if found else over(MOTORS)
    arrival = over(ARRIVAL)
    if "state-rate" in arrival:
        motors = [name for name in motors if name != "motor-delay"]
    return [Cause(name, strength[name], *words) for name in (*found, *arrival, *motors) for words in texts.of(name)]


class _Texts:
    """Texts of each cause: the finding with its figures, and the remedy."""

    def __init__(self, motion: Motion, measures: Measures):
        self._task, self._m = motion.facts["task"], measures
        self._names = robots.get(motion.facts["robot"]).joint_names

    def of(self, name: str) -> Iterator[tuple[str, str]]:
        """Return the texts of a cause; of joints one each."""
        words = getattr(self, "_" + name.replace("-", "_"))()
        yield from [words] if isinstance(words, tuple) else words

    def _joint_order(self) -> Iterator[tuple[str, str]]:
        for a, b in enumerate(self._m.order):
            if a < b:
                yield (
                    f"{self._names[a]} and {self._names[b]} are exchanged: each follows the other's commands, "
                    f"{self._m.order_gain:.0f} times nearer than its own",
                    "correct the order of joints in the driver, or `joint_names` in the spec's driver",
                )

    def _position_sign(self) -> Iterator[tuple[str, str]]:
        for name, gain in zip(self._names, self._m.sign, strict=True):
            if gain > LIMITS["position-sign"]:
                yield (
                    f"{name} turns against its commands: it is {gain:.0f} times nearer to them with the other sign",
                    "correct the joint's direction in the driver, or its axis in the spec",
                )

    def _quaternion_order(self) -> tuple[str, str]:
        as_is, turned = self._m.orientation or (0.0, 0.0)
        return (
            f"the orientation looks like x y z w: its turns agree with the gyroscope by {turned:.2f} in that order and "
            f"by {as_is:.2f} as w x y z (1: equal)",
            "give the quaternion as w x y z, as Unitree's messages do",
        )

    def _unlike_simulation(self) -> tuple[str, str]:
        return (
            f"no simulation with any delay or gains is near: joints are {self._m.residual:.2f} rad away",
            "move one joint at a time and look which one is reported: order, signs and units of the driver's joints; "
            "or the robot was stopped, or touches something",
        )

    def _position_scale(self) -> Iterator[tuple[str, str]]:
        remedy = "correct the unit or gear ratio of this joint in the driver"
        for name, scale, offset, place in zip(self._names, self._m.scale, self._m.offset, self._m.place, strict=True):
            if abs(scale - 1) > LIMITS["position-scale"]:
                yield f"{name} reports {scale:.2f} times the motion that simulation has", remedy
            elif abs(offset) > LIMITS["position-offset"] and abs(place) > NOT_ZERO:
                yield f"or {name} reports {1 + offset / place:.2f} times its position: at rest that looks alike", remedy

    def _position_offset(self) -> Iterator[tuple[str, str]]:
        for name, offset in zip(self._names, self._m.offset, strict=True):
            if abs(offset) > LIMITS["position-offset"]:
                yield (
                    f"{name} is {offset:+.3f} rad from its commands",
                    "calibrate the joint's zero; or a load or an obstacle holds it",
                )

    def _state_rate(self) -> tuple[str, str]:
        m = self._m
        return (
            f"joint states arrive at {1 / m.interval:.0f} Hz; {1 / m.expected:.0f} Hz are expected",
            "raise the rate in the driver (joint_state_rate); or train with sensor.state_delay up to "
            f"{m.interval:.2g} s and set state_rate in the profile",
        )

    def _velocity_noise(self) -> tuple[str, str]:
        noise, allowed = self._m.velocity_noise, self._m.velocity_allowed
        return (
            f"velocities have noise of {noise:.2g} rad/s; positions over a control period would give {allowed:.2g}",
            "filter velocities in the driver, or leave them out so that they come from positions; or train with "
            f"sensor.velocity_noise up to {noise:.2g} rad/s",
        )

    def _motor_delay(self) -> tuple[str, str]:
        late = self._m.evidence()["motor-delay"]
        return (
            f"commands act {1000 * late:.0f} ms late at the joints; runs without a fault: up to "
            f"{1000 * LIMITS['motor-delay']:.0f} ms",
            f"widen robot.action_delay to {late * 1.2:.2g} s{self._trained('robot.action_delay')}; if it is the "
            "network, use a cable",
        )

    def _stiffness(self) -> tuple[str, str]:
        return (
            f"motors are stiffer than in simulation: stiffness over damping is "
            f"{self._m.evidence()['stiffness']:.1f} times the spec's; without a fault up to {LIMITS['stiffness']:.1f}",
            f"lower the gains, or widen robot.stiffness_scale{self._trained('robot.stiffness_scale')}",
        )

    def _damping(self) -> tuple[str, str]:
        return (
            f"motors follow more softly than in simulation: damping over stiffness is "
            f"{self._m.evidence()['damping']:.1f} times the spec's; without a fault up to {LIMITS['damping']:.1f}",
            f"raise the gains, or widen robot.damping_scale{self._trained('robot.damping_scale')}",
        )

    def _switch_jump(self) -> tuple[str, str]:
        return (
            f"the robot jumps by {self._m.jump:.2f} rad at the switch {self._m.jump_at:.1f} s after the start, which "
            "the commands do not ask for",
            "begin the other controller's set-points at the measured joints; let only one program command the motors",
        )

    def _trained(self, parameter: str) -> str:
        """Return in brackets the range in which the task was trained."""
        ranges = tasks.get(self._task).randomization if self._task in tasks.entries else ()
        for drawn in ranges:
            if isinstance(drawn, Randomize) and drawn.parameter == parameter:
                return f" (trained: {drawn.low:g} to {drawn.high:g})"
        return " (not randomized in training)"
