"""Faults of a twin: causes, reported by name, of a robot that shakes although its policy works in simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robot_rl.interface.robot import RobotSpec
from robot_rl.util.errors import ConfigError, UnknownName

SWITCH = 0.3
"""Time for which the set-points jump after a switch, s."""
SILENCE = 0.5
"""Time without commands after which the next one is a switch, s."""


@dataclass(frozen=True)
class FaultKind:
    """How one fault is written and how it acts."""

    what: str
    low: float = 0.0
    high: float = 0.0
    unit: str = ""
    """`low` to `high`: range of the value; an empty range: it takes none."""
    joints: int = 0
    """Number of joints that it names before the value."""
    legged: bool = False
    """Only of a legged robot."""

    @property
    def usage(self) -> str:
        """Return how its value is written."""
        names = ",".join(("JOINT", "OTHER")[: self.joints])
        value = f"{self.low:g} to {self.high:g} {self.unit}".rstrip() if self.high > self.low else ""
        return ":".join(filter(None, (names, value)))


FAULTS = {
    "motor-delay": FaultKind("commands act later", 0.0, 0.5, "s"),
    "velocity-noise": FaultKind("standard deviation of noise on the reported joint velocities", 0.0, 50.0, "rad/s"),
    "joint-order": FaultKind("two joints are exchanged in the reported state", joints=2),
    "position-offset": FaultKind("a joint's position is reported with an offset", -1.0, 1.0, "rad", joints=1),
    "position-scale": FaultKind("a joint's position and velocity are reported multiplied", 0.1, 10.0, "", joints=1),
    "position-sign": FaultKind("a joint's position and velocity are reported with the other sign", joints=1),
    "stiffness": FaultKind("the motors' stiffness is multiplied", 0.1, 10.0),
    "damping": FaultKind("the motors' damping is multiplied", 0.1, 10.0),
    "armature": FaultKind("the motors' inertia is multiplied", 0.1, 100.0),
    "switch-jump": FaultKind("set-points jump for 0.3 s when commands begin, or a policy takes over", -1.0, 1.0, "rad"),
    "quaternion-order": FaultKind("the orientation is reported as x y z w in place of w x y z", legged=True),
    "state-rate": FaultKind("joint states are sent more slowly", 1.0, 1000.0, "Hz"),
}
"""Faults by name, for `robot-rl twin --fault NAME=VALUE`."""
SCALES = ("stiffness", "damping", "armature")
"""Faults that multiply a parameter of the simulation, robot.<name>_scale."""


@dataclass(frozen=True)
class Fault:
    """One fault of a twin."""

    name: str
    value: float = 0.0
    joints: tuple[int, ...] = ()
    """Indices of the joints."""
    text: str = ""
    """As it was written."""


def parse_fault(text: str, robot: RobotSpec) -> Fault:
    """Return the fault written as NAME=VALUE; joints by name, or by number from 1. ConfigError says what is wrong."""
    name, _, rest = text.partition("=")
    if name not in FAULTS:
        raise UnknownName("fault", name, FAULTS)
    kind = FAULTS[name]
    if kind.legged and robot.base is None:
        raise ConfigError(f"fault {name} is of legged robots, which report an orientation; {robot.name} has none")
    wrong = ConfigError(f"--fault {text}: {name} ({kind.what}) is written {name}={kind.usage}".rstrip("="))
    named, _, number = rest.partition(":") if kind.joints else ("", "", rest)
    words = named.split(",") if named else []
    if len(set(words)) != kind.joints or bool(number) != (kind.high > kind.low):
        raise wrong
    joints = tuple(_joint(word, robot) for word in words)
    try:
        value = float(number or 0)
    except ValueError:
        raise wrong from None
    if number and not kind.low <= value <= kind.high:
        raise wrong
    return Fault(name, value, joints, text)


def _joint(word: str, robot: RobotSpec) -> int:
    if word.isdigit() and 1 <= int(word) <= len(robot.joints):
        return int(word) - 1
    if word not in robot.joint_names:
        raise UnknownName("joint", word, robot.joint_names)
    return robot.joint_names.index(word)


class Faults:
    """Faults of one twin, as it ticks."""

    def __init__(self, faults: Sequence[Fault], rate: float, rng: np.random.Generator):
        """Args: `rate`: of the twin's ticks, Hz."""
        self.faults, self._rng = tuple(faults), rng
        found: dict[str, Any] = dict.fromkeys(FAULTS, 0.0) | {fault.name: fault.value for fault in faults}
        if len({(f.name, f.joints) for f in faults}) < len(faults):
            raise ConfigError(f"a fault is given twice: {self}; give each once")
        self.delay = round(found["motor-delay"] * rate)
        """Delay of commands, ticks."""
        self.noise, self.jump = found["velocity-noise"], found["switch-jump"]
        self.turned = any(fault.name == "quaternion-order" for fault in faults)
        """Whether the orientation is reported as x y z w."""
        self._every = max(1.0, rate / found["state-rate"]) if found["state-rate"] else 1.0
        self._rate, self._switched = rate, -math.inf

    def __bool__(self) -> bool:
        return bool(self.faults)

    def __str__(self) -> str:
        return ", ".join(fault.text for fault in self.faults)

    def scale(self, name: str) -> float:
        """Return the factor of a parameter of the simulation."""
        return math.prod(fault.value for fault in self.faults if fault.name == name)

    def due(self, count: int) -> bool:
        """Return whether a joint state is sent at tick `count`."""
        return math.floor(count / self._every) != math.floor((count - 1) / self._every)

    def switch(self, count: int) -> None:
        """Take note that another program commands the motors from tick `count` on."""
        self._switched = count

    def shift(self, count: int) -> float:
        """Return the error of the set-points at tick `count`, rad."""
        return self.jump if count - self._switched < SWITCH * self._rate else 0.0

    def observe(self, position: np.ndarray, velocity: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return joint positions and velocities (J,) as they are reported."""
        for fault in self.faults:
            if not (fault.joints or fault.name == "velocity-noise"):
                continue
            position, velocity, at = position.copy(), velocity.copy(), list(fault.joints)
            if fault.name == "velocity-noise":
                velocity += self._rng.normal(0, self.noise, len(velocity))
            elif fault.name == "joint-order":
                position[at], velocity[at] = position[at[::-1]], velocity[at[::-1]]
            elif fault.name == "position-offset":
                position[at] += fault.value
            else:
                factor = -1.0 if fault.name == "position-sign" else fault.value
                position[at], velocity[at] = factor * position[at], factor * velocity[at]
        return position, velocity
