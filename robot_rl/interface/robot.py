"""Robot specs: joints, tool, gripper, floating base, and their names and order in messages."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from robot_rl.interface.driver import DriverConfig, ForwardPosition, check_unique
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeFloat, PositiveFloat, validate

if TYPE_CHECKING:  # torch is imported late: a robot's guard reads specs without it
    from torch import Tensor


@dataclass(frozen=True)
class SpeedTaper:
    """Shrinking of a joint's speed limit towards its position limits: to sqrt(slope x distance) - offset, rad/s."""

    low: float
    """Position from which the distance of downward motion is counted, rad."""
    high: float
    """Position from which the distance of upward motion is counted, rad."""
    slope: PositiveFloat
    """Twice the deceleration that the law leaves for braking, rad/s^2."""
    offset: NonNegativeFloat
    """Speed that is subtracted, rad/s."""


@dataclass(frozen=True)
class Joint:
    """Actuated joint: limits, gains, and pose in the serial chain."""

    name: str
    """Name of the joint in the driver's messages."""
    low: float
    """Lower position limit, rad."""
    high: float
    """Upper position limit, rad."""
    velocity: PositiveFloat
    """Speed limit, rad/s."""
    acceleration: PositiveFloat
    """Acceleration limit, rad/s^2."""
    effort: PositiveFloat
    """Torque limit, N m."""
    position: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Origin of the joint frame in the parent link's frame, m."""
    quat: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)
    """Orientation of the joint frame in the parent link's frame, w x y z."""
    axis: tuple[float, float, float] = (0.0, 0.0, 1.0)
    stiffness: NonNegativeFloat = 0.0
    """Position gain of the motor, N m/rad; 0 if the robot's own controller closes the loop."""
    damping: NonNegativeFloat = 0.0
    """Velocity gain of the motor, N m s/rad."""
    model_name: str = ""
    """Name of the joint in the model file; empty: the same as `name`."""
    jerk: PositiveFloat | None = None
    """Jerk limit, rad/s^3, for drivers with jerk-limited commands; None: unknown."""
    taper: SpeedTaper | None = None
    """How the speed limit shrinks towards the position limits; None: it is the same everywhere."""

    def __post_init__(self) -> None:
        validate(self, f"joint {self.name!r}: ")
        if not self.low < self.high:
            raise ValueError(f"joint {self.name!r}: low {self.low} rad is not below high {self.high} rad")
        _check_directions(f"joint {self.name!r}", quat=self.quat, axis=self.axis)


@dataclass(frozen=True)
class Tool:
    """Tool frame at the end of an arm's chain."""

    name: str
    position: tuple[float, float, float]
    """Origin of the tool frame in the last joint's link frame, m."""
    quat: tuple[float, float, float, float]
    """Orientation of the tool frame in the last joint's link frame, w x y z."""
    workspace: tuple[tuple[float, float, float], tuple[float, float, float]]
    """Lowest and highest position x y z of the tool in the base frame, m."""
    speed: PositiveFloat = 1.0
    """Speed limit of the tool, m/s. This limit and the next three are for drivers that take its poses or velocities."""
    turn_speed: PositiveFloat = 2.0
    """Limit of the tool's angular velocity, rad/s."""
    acceleration: PositiveFloat = 5.0
    """Limit of the tool's acceleration, m/s^2."""
    turn_acceleration: PositiveFloat = 10.0
    """Limit of the tool's angular acceleration, rad/s^2."""

    def __post_init__(self) -> None:
        validate(self, f"tool {self.name!r}: ")
        for axis, low, high in zip("xyz", *self.workspace, strict=True):
            if not low < high:
                raise ValueError(f"tool {self.name!r}: workspace in {axis}: low {low} is not below high {high}")
        _check_directions(f"tool {self.name!r}", quat=self.quat)


@dataclass(frozen=True)
class FloatingBase:
    """Trunk and feet of a legged robot."""

    body: str
    """Name of the trunk in the model file."""
    height: PositiveFloat
    """Height of the trunk above the ground at the home posture, m."""
    feet: tuple[str, ...]
    """Names of the feet in the model file, in the order of all foot views. A foot is a body with its own shape, a shape
    or site of the leg, or an empty body; an empty body gets the nearest shape of the leg within `foot_radius`."""
    foot_radius: NonNegativeFloat
    """Distance from the origin of a foot to its sole, m."""
    lying: tuple[float, ...] = ()
    """Joint positions of the robot lying with folded legs, rad."""
    aliases: tuple[str, ...] = ()
    """Names of the trunk in model files without `body`, for example "base_link"."""

    def __post_init__(self) -> None:
        validate(self, "base: ")
        check_unique("foot", self.feet)


@dataclass(frozen=True)
class Gripper:
    """Parallel gripper, whose state is the distance between the fingers.

    Finger joints are prismatic and 0 when closed. The distance is the sum of the finger joints' positions, which are
    all equal, so `joints` must list every finger, including mimic joints.
    """

    joints: tuple[str, ...]
    width: PositiveFloat
    """Distance between the open fingers, m."""
    force: PositiveFloat
    """Grasping force, N; simulation uses the model file's limit if it is smaller."""
    stiffness: PositiveFloat | None = None
    """Position gain of all fingers together in simulation, N/m. None: the gain in an MJCF file; for a URDF file, the
    gain at which a position error of half of `width` gives `force`."""
    damping: NonNegativeFloat | None = None
    """Velocity gain of all fingers together in simulation, N s/m. None: the gain in an MJCF file; for a URDF file, a
    tenth of `stiffness`."""
    armature: NonNegativeFloat | None = None
    """Reflected inertia of motor and gear at each finger, kg; None: as in the model file."""

    def __post_init__(self) -> None:
        validate(self, "gripper: ")


@dataclass(frozen=True)
class RobotSpec:
    """Robot description, shared by simulation, controller, shield and driver."""

    name: str
    joints: tuple[Joint, ...]
    """Actuated joints in the order of all joint views; for an arm, the chain from base to tool."""
    home: tuple[float, ...]
    """Joint positions at the start of an episode, rad."""
    model: str
    """Model file, MJCF or URDF: a path relative to the spec's file, absolute, or within genesis-world's assets."""
    tool: Tool | None = None
    gripper: Gripper | None = None
    base: FloatingBase | None = None
    """Trunk and feet of a legged robot; None for a robot with a fixed base."""
    spheres: tuple[tuple[tuple[float, float, float, float], ...], ...] = ()
    """Spheres x, y, z, radius, m, that cover each link of an arm in the link's frame, the base first; what is mounted
    on the last link belongs to it. `robot-rl robots cover` computes them. Empty: no check against collisions."""
    collision_pairs: tuple[tuple[int, int], ...] = ()
    """Pairs of links, as numbers of joints between base and link, that can collide; the same command finds them."""
    collision_bodies: tuple[str, ...] = ()
    """Names of the bodies that collide in simulation; empty: all bodies."""
    armature: NonNegativeFloat | None = None
    """Reflected inertia of motor and gear at each joint, kg m^2; None: as in the model file."""
    joint_friction: NonNegativeFloat | None = None
    """Dry friction of each joint, N m; None: as in the model file."""
    state_rate: PositiveFloat = 200.0
    """Rate of the joint states, Hz."""
    command_rate: PositiveFloat = 200.0
    """Rate of the joint commands, Hz."""
    cameras: tuple[str, ...] = ()
    """Names of the cameras as in topics; empty: the cameras are unknown."""
    driver: DriverConfig = field(default_factory=ForwardPosition)
    """Driver of the real robot: topics, limits, time-outs."""
    variant_of: str = ""
    """Name of the robot whose policies this one runs, with another driver; all facts that a bundle compares are equal.
    Empty: policies are for this name."""

    def __post_init__(self) -> None:
        what = f"robot {self.name!r}"
        validate(self, f"{what}: ")
        check_unique("joint", self.joint_names)
        self._check_posture("home", self.home)
        if self.base and self.base.lying:
            self._check_posture("lying", self.base.lying)
        links = len(self.joints) + 1
        if (self.spheres or self.collision_pairs) and len(self.spheres) != links:
            raise ValueError(
                f"robot {self.name!r}: spheres of {len(self.spheres)} links; with the base there are {links}; see "
                "`robot-rl robots cover`"
            )
        if wrong := [pair for pair in self.collision_pairs if not 0 <= pair[0] < pair[1] < links]:
            raise ValueError(f"robot {self.name!r}: collision_pairs {wrong}: links are 0 to {links - 1}, lower first")
        self.driver.check(self)

    def _check_posture(self, name: str, angles: tuple[float, ...]) -> None:
        if len(angles) != len(self.joints):
            raise ValueError(f"robot {self.name!r}: {name} has {len(angles)} numbers for {len(self.joints)} joints")
        for j, angle in zip(self.joints, angles, strict=True):
            if not j.low <= angle <= j.high:
                turns = abs(angle) > 2 * math.pi and j.low <= math.radians(angle) <= j.high
                remedy = f"; degrees are written math.radians({angle:g})" if turns else ""
                raise ValueError(
                    f"robot {self.name!r}, {j.name}: {name} {angle} rad is outside {j.low} to {j.high} rad{remedy}"
                )

    @property
    def kind(self) -> str:
        """Return the name of the robot in bundles and tasks."""
        return self.variant_of or self.name

    def runs(self, robot: str) -> bool:
        """Return whether this robot runs the policies for the robot named `robot`: itself, or the one it varies."""
        return robot == self.kind

    @property
    def joint_names(self) -> tuple[str, ...]:
        return tuple(j.name for j in self.joints)

    @property
    def fingers(self) -> tuple[str, ...]:
        """Return the names of the gripper's joints; () for a robot without a gripper."""
        return self.gripper.joints if self.gripper else ()

    def driver_names(self, prefix: str = "") -> tuple[str, ...]:
        """Return the names in the driver's messages of the joints, then of the fingers, each after `prefix`."""
        return tuple(prefix + self.driver.driver_name(name) for name in (*self.joint_names, *self.fingers))

    @property
    def compliant(self) -> bool:
        """Return whether joint commands are setpoints of the motors' springs, not the path of a stiff controller."""
        return all(j.stiffness > 0 for j in self.joints)

    def limit(self, name: str) -> Tensor:
        """Return attribute `name` of all joints as a tensor (J,), for example limit("velocity")."""
        import torch

        return torch.tensor([getattr(j, name) for j in self.joints])

    def fingerprint(self) -> dict[str, Any]:
        """Return the facts about the robot that a bundle compares: names, order, limits, home, gains, geometry, rates,
        and the order of motors and contacts in messages.

        Robots of one type may differ in topics, tf frames, joint names in messages, and simulation parameters.
        """
        own_springs = {"stiffness": [j.stiffness for j in self.joints], "damping": [j.damping for j in self.joints]}
        return (own_springs if self.compliant else {}) | {
            "name": self.kind,
            "joint_names": list(self.joint_names),
            "low": [j.low for j in self.joints],
            "high": [j.high for j in self.joints],
            "velocity": [j.velocity for j in self.joints],
            "effort": [j.effort for j in self.joints],
            "home": list(self.home),
            "tool": self.tool.name if self.tool else None,
            "tool_position": list(self.tool.position) if self.tool else None,
            "gripper_width": self.gripper.width if self.gripper else None,
            "acceleration": [j.acceleration for j in self.joints],
            "joint_origin": [list(j.position) for j in self.joints],
            "joint_quat": [list(j.quat) for j in self.joints],
            "joint_axis": [list(j.axis) for j in self.joints],
            "tool_quat": list(self.tool.quat) if self.tool else None,
            "workspace": [list(corner) for corner in self.tool.workspace] if self.tool else None,
            "gripper_force": self.gripper.force if self.gripper else None,
            "base_height": self.base.height if self.base else None,
            "state_rate": self.state_rate,
            "command_rate": self.command_rate,
            "feet": list(self.base.feet) if self.base else None,
        } | self.driver.wire_order()


def _check_directions(what: str, **vectors: tuple[float, ...]) -> None:
    """Raise ValueError if a vector has length 0."""
    for name, vector in vectors.items():
        if math.hypot(*vector) < 1e-6:
            raise ValueError(f"{what}: {name} {vector} has no direction")



def is_whole(count: float) -> bool:
    """Return whether a value is a whole number of at least 1, within rounding errors."""
    return round(count) >= 1 and abs(count - round(count)) < 1e-4


def command_ticks(command_rate: float, rate: float) -> int:
    """Return the number of joint commands, at `command_rate`, Hz, per control period, at `rate`, Hz; ConfigError if the
    number is not whole."""
    count = command_rate / rate
    if not is_whole(count):
        raise ConfigError(
            f"a control period at {rate:g} Hz is {1 / rate:.6g} s, which is {count:.4g} commands of "
            f"{1 / command_rate:g} s and not a whole number; a rate of {command_rate / max(1, round(count)):.6g} Hz "
            "would do"
        )
    return round(count)
