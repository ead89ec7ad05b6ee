"""Configs of robot drivers: topics, limits, time-outs, and what a robot does when it is not commanded.

A robot's spec holds the config; `real.drivers` holds the code that it names. Facts about a robot need no code of the
robot side, so simulation and bundles read them too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from robot_rl.util.errors import nearest
from robot_rl.util.limits import Interval, PositiveFloat, validate

if TYPE_CHECKING:
    from robot_rl.interface.robot import RobotSpec

Follow = Literal["straight_line", "jerk_limited", "direct"]
Stop = Literal["brake_and_hold", "damp", "robot_holds", "robot_stops"]
GripperUnit = Literal["width", "finger", "open_fraction"]


@dataclass(frozen=True)
class SafetyConfig:
    """Limits and time-outs of the command loop."""

    state_timeout: Annotated[float, Interval(gt=0, le=1)] = 0.05
    """Maximum age of a joint state with which the robot is moved, s."""
    goal_timeout: Annotated[float, Interval(gt=0, le=1)] = 0.15
    """Maximum age of a goal, s: three control periods at 20 Hz."""
    max_misses: Annotated[int, Interval(ge=1, le=1000)] = 5
    """Number of consecutive deadlines of the command loop that were missed after which an arm holds until the next
    goal."""
    max_gap: Annotated[float, Interval(gt=0, le=5)] = 0.1
    """Time between two commands above which an arm does so, s."""
    start_mismatch: Annotated[float, Interval(gt=0, le=1)] = 0.2
    """Maximum distance of the first goal after a start or hold from what the joint can reach in the goal's duration,
    and of a held arm from its command, rad."""
    tool_mismatch: Annotated[float, Interval(gt=0, le=0.5)] = 0.1
    """As `start_mismatch`, for goals that are poses of the tool, m and half of it per radian."""
    moved_patience: Annotated[float, Interval(gt=0, le=5)] = 0.1
    """Time for which a held arm must be further than `start_mismatch` from its command before it is held where it is,
    s. A single joint state may be wrong."""
    object_timeout: Annotated[float, Interval(gt=0, le=5)] = 0.2
    """Maximum age of an object pose for posting a goal, s."""
    picture_timeout: Annotated[float, Interval(gt=0, le=60)] = 0.15
    """Maximum age of a picture, s: three frames at 20 Hz. An older picture of the policy's cameras stops goals; for
    other cameras the last picture is recorded again."""
    lost_timeout: Annotated[float, Interval(gt=0, le=5)] = 0.5
    """Age of the joint state, or of one of the policy's pictures, at which the episode ends with an error, s."""
    stop_heartbeat: Annotated[float, Interval(gt=0, le=1)] = 0.3
    """Maximum silence of the topic `e_stop` once it has been heard, s: three periods at 10 Hz. Longer counts as
    pressed."""
    max_nonfinite: Annotated[int, Interval(ge=1, le=100)] = 3
    """Number of consecutive non-finite goals that latches a stop."""
    tilt: Annotated[float, Interval(gt=0, le=90)] = 60.0
    """Tilt of a legged robot's trunk above which a stop latches, degrees."""
    overspeed: Annotated[float, Interval(ge=1, le=2)] = 1.2
    """Multiple of a joint's speed limit. Three consecutive states with a faster joint latch a legged robot's stop."""
    guard_patience: Annotated[float, Interval(gt=0, le=5)] = 0.2
    """Time within which the guard must pass on commands for standing up, s. Later, damping by the guard latches a
    stop."""

    def __post_init__(self) -> None:
        validate(self, "safety.")
        if self.state_timeout > self.lost_timeout:
            raise ValueError(
                f"safety.lost_timeout is {self.lost_timeout:g} s; it must not be below state_timeout, "
                f"{self.state_timeout:g} s: an arm holds first, and the episode ends later"
            )


@dataclass(frozen=True, kw_only=True)
class DriverConfig:
    """Config of a robot's driver. Topics are relative to the robot's namespace."""

    driver: ClassVar[str] = ""
    """Name of the driver's code in the registry `real.drivers.drivers`, or its import path."""
    image: str = "{camera}/image_raw"
    """sensor_msgs/Image."""
    object_pose: str = "objects/{object}/pose"
    """geometry_msgs/PoseStamped in the robot's base frame, for example from a tag tracker."""
    object_joints: str = "objects/{object}/joint_states"
    """sensor_msgs/JointState of an object's own joints, for example from an encoder at a drawer."""
    base_frames: tuple[str, ...] = ("base", "base_link")
    """tf names of the robot's base frame; the twin uses the first. Object poses in other frames are refused;
    poses with an empty frame name are accepted."""
    safety: SafetyConfig = field(default_factory=SafetyConfig)
    follow: Follow = "straight_line"
    """Path of the commands to each goal: along a straight line, jerk-limited (for controllers that execute every
    command at once; needs `Joint.jerk`), or direct (for set-points of springs)."""
    stop: Stop = "brake_and_hold"
    """How the robot stops: it brakes, and is sent the position where it stopped; it is damped and sinks; it brakes, and
    then gets no commands, because its own controller holds it when commands end; or its own controller is told at once
    to stop it."""

    def __post_init__(self) -> None:
        validate(self, "driver.")

    def driver_name(self, name: str) -> str:
        """Return the name of a joint or finger in the driver's messages, without a prefix."""
        return name

    def check(self, robot: RobotSpec) -> None:
        """Raise ValueError if the config does not fit the robot."""
        if self.stop == "damp" and robot.base is None:
            raise ValueError(
                f"robot {robot.name!r}: driver.stop is 'damp', for robots that sink down on their legs (`base`); for "
                "an arm set 'brake_and_hold' or 'robot_holds'"
            )

    def wire_order(self) -> dict[str, list[str] | None]:
        """Return the orders in messages that a bundle compares; None where the messages have names."""
        return {"motors": None, "contacts": None}


@dataclass(frozen=True, kw_only=True)
class JointTopics(DriverConfig):
    """Config of a driver that reports sensor_msgs/JointState."""

    joint_states: str = "joint_states"
    joint_names: tuple[tuple[str, str], ...] = ()
    """Pairs (name in the spec, name in the driver's messages) of the joints and fingers whose two names differ."""
    joint_prefix: str = ""
    """Prefix of all these names in the messages; that of the launch argument `joint_prefix` comes before it."""
    state_rate: PositiveFloat | None = None
    """Rate of the driver's joint states, Hz, if it is not the spec's, which bundles compare."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rate, timeout = self.state_rate, self.safety.state_timeout
        if rate and timeout * rate < 2:
            raise ValueError(
                f"driver.safety.state_timeout is {timeout:g} s, less than two periods of joint states at {rate:g} Hz: "
                f"one late state would stop the robot; set {3 / rate:.2g}"
            )

    def driver_name(self, name: str) -> str:
        return self.joint_prefix + dict(self.joint_names).get(name, name)

    def check(self, robot: RobotSpec) -> None:
        super().check(robot)
        own = (*robot.joint_names, *robot.fingers)
        for name, _ in self.joint_names:
            if name not in own:
                raise ValueError(f"robot {robot.name!r}, driver.joint_names: no joint {name!r}; {nearest(name, own)}")
        check_unique("joint", robot.driver_names())


@dataclass(frozen=True, kw_only=True)
class Ros2Control(JointTopics):
    """Topics of an arm behind ros2_control: what must hold before and while it is sent commands, and its gripper."""

    controllers: tuple[str, ...] = ()
    """Controllers that must be active while commands are sent; (): they are not checked."""
    controller_manager: str = "controller_manager"
    """Name of the controller manager's node."""
    robot_program: str = ""
    """std_msgs/Bool: whether the program runs by which the robot obeys; empty: there is none."""
    safety_mode: str = ""
    """ur_dashboard_msgs/SafetyMode: any mode but NORMAL stops; empty: there is none."""
    speed_scaling: str = ""
    """std_msgs/Float64, percent: below 100 is reported, 0 stops; empty: there is none."""
    wrench: str = ""
    """geometry_msgs/WrenchStamped: external force and torque at the tool; empty: there is none."""
    force_limit: Annotated[float, Interval(gt=0, le=500)] = 40.0
    """External force above which three messages in a row stop the arm, N. What it grips and its inertia count too."""
    torque_limit: Annotated[float, Interval(gt=0, le=100)] = 10.0
    """The same for the external torque, N m."""
    gripper_command: str = "gripper_controller/commands"
    """std_msgs/Float64MultiArray: one value, in `gripper_unit`."""
    gripper_action: str = ""
    """control_msgs/action/GripperCommand, used in place of the topic `gripper_command`; empty: the topic."""
    gripper_unit: GripperUnit = "width"
    """What the gripper is sent: the distance between the fingers, m; the position of one finger, half of it, m; or the
    opening as a fraction, 1: open."""


@dataclass(frozen=True, kw_only=True)
class ForwardPosition(Ros2Control):
    """Topics of an arm with ros2_control's forward_position_controller."""

    driver: ClassVar[str] = "forward_position"
    command: str = "forward_position_controller/commands"
    """std_msgs/Float64MultiArray: joint positions in the spec's joint order, rad."""


@dataclass(frozen=True, kw_only=True)
class ForwardVelocity(Ros2Control):
    """Topics of an arm with ros2_control's forward_velocity_controller."""

    driver: ClassVar[str] = "forward_velocity"
    command: str = "forward_velocity_controller/commands"
    """std_msgs/Float64MultiArray: joint velocities in the spec's joint order, rad/s."""


@dataclass(frozen=True, kw_only=True)
class JointTrajectory(Ros2Control):
    """Topics of an arm with ros2_control's joint_trajectory_controller, which gets a new goal with each command."""

    driver: ClassVar[str] = "joint_trajectory"
    command: str = "joint_trajectory_controller/joint_trajectory"
    """trajectory_msgs/JointTrajectory: one point with the positions of all joints, rad."""
    ahead: Annotated[float, Interval(ge=1, le=10)] = 2.0
    """Time in which the controller reaches a point (`time_from_start`), in command periods."""


@dataclass(frozen=True, kw_only=True)
class TargetPose(Ros2Control):
    """Topics of an arm with a Cartesian impedance controller, such as CRISP's."""

    driver: ClassVar[str] = "target_pose"
    command: str = "target_pose"
    """geometry_msgs/PoseStamped: pose of the tool in the base frame."""


@dataclass(frozen=True, kw_only=True)
class ServoTwist(Ros2Control):
    """Topics of an arm behind MoveIt Servo, which halts when commands end."""

    driver: ClassVar[str] = "servo_twist"
    command: str = "servo_node/delta_twist_cmds"
    """geometry_msgs/TwistStamped: velocity of the tool in the base frame."""
    stop: Stop = "robot_holds"


@dataclass(frozen=True, kw_only=True)
class HeldArm(ForwardPosition):
    """Topics of `robot-rl robot`, the process that alone holds an arm, and holds it still when goals stop."""

    driver: ClassVar[str] = ""
    reached_by: ClassVar[str] = ""
    """Option of `robot-rl robot` that says where the arm is."""
    goal_timeout: Annotated[float, Interval(gt=0, le=1)] = 0.1
    """Age of the newest goal at which the arm brakes and holds, s."""


@dataclass(frozen=True, kw_only=True)
class FrankaControl(HeldArm):
    """Limits and thresholds of the process that holds a Franka arm."""

    driver: ClassVar[str] = "franka"
    reached_by: ClassVar[str] = "--host ADDRESS"
    speed: Annotated[float, Interval(gt=0, le=0.95)] = 0.85
    """Share of the joints' speed limits that the process uses. Like `acceleration`, it must exceed the share of a
    policy's shield, or the arm passes goals that stop."""
    acceleration: Annotated[float, Interval(gt=0, le=0.95)] = 0.55
    """Share of the joints' acceleration limits. A command that comes too late after a lost cycle can seem to have one
    and a half times the acceleration."""
    jerk: Annotated[float, Interval(gt=0, le=0.95)] = 0.1
    """Share of the joints' jerk limits. The robot bridges a lost cycle at constant acceleration, after which the motion
    can seem to have four times the jerk, and 2 ms of it more acceleration."""
    max_force: Annotated[float, Interval(gt=0, le=200)] = 40.0
    """External force at the tool at which the arm brakes and latches a stop, N."""
    max_torque: Annotated[float, Interval(gt=0, le=100)] = 25.0
    """The same for the external torque at any joint, N m."""
    collision_force: Annotated[float, Interval(gt=0, le=200)] = 60.0
    """Force, N, and moment, N m, at which the robot's own reflex stops it."""
    collision_torque: Annotated[float, Interval(gt=0, le=100)] = 40.0
    """Joint torque at which the robot's own reflex stops it, N m."""
    impedance: tuple[Annotated[float, Interval(ge=0, le=14250)], ...] = ()
    """Stiffness of the robot's controller at each joint, N m/rad; empty: the robot's own."""
    load: Annotated[float, Interval(ge=0, le=3)] | None = None
    """Mass of what is mounted on the hand, kg; None: as set in Desk. The hand itself is set in Desk."""
    load_center: tuple[float, ...] = (0.0, 0.0, 0.0)
    """Center of mass of the load in the flange's frame (3,), m."""
    load_inertia: tuple[float, ...] = (0.001, 0.0, 0.0, 0.0, 0.001, 0.0, 0.0, 0.0, 0.001)
    """Inertia of the load about its center of mass (9,), kg m^2."""
    grasp_speed: Annotated[float, Interval(gt=0, le=0.1)] = 0.1
    """Speed of the fingers, m/s."""

    def check(self, robot: RobotSpec) -> None:
        super().check(robot)
        for name, size in (("impedance", len(robot.joints)), ("load_center", 3), ("load_inertia", 9)):
            if len(values := getattr(self, name)) not in ((0, size) if name == "impedance" else (size,)):
                raise ValueError(f"robot {robot.name!r}: driver.{name} has {len(values)} numbers; it needs {size}")


@dataclass(frozen=True, kw_only=True)
class LeRobotControl(HeldArm):
    """An arm behind one of LeRobot's robot classes, and the limits of the process that holds it.

    A motor's position in LeRobot's units is `zero` + `sign` x the joint's position in degrees. A gripper's is 0 when
    closed and 100 when open.
    """

    driver: ClassVar[str] = "lerobot"
    reached_by: ClassVar[str] = "--port DEVICE"
    type: str
    """LeRobot's name of the class, as in `--robot.type`."""
    options: tuple[tuple[str, str | float | bool], ...] = (("use_degrees", True),)
    """Fields of the class's config, beside port, id and those that keep the arm safe."""
    motors: tuple[tuple[str, str], ...] = ()
    """Pairs (joint or finger of the spec, LeRobot's motor) of those whose two names differ."""
    signs: tuple[Literal[-1, 1], ...] = ()
    """Sign of each joint; empty: 1."""
    zeros: tuple[float, ...] = ()
    """LeRobot's position of each joint's 0, degrees; empty: 0."""
    speed: Annotated[float, Interval(gt=0, le=1)] = 0.9
    """Share of the joints' speed limits that the process uses. It must exceed the share of a policy's shield."""
    gripper_speed: Annotated[float, Interval(gt=0, le=1)] = 0.1
    """Speed of the gripper's goal, m/s."""
    lead: Annotated[float, Interval(gt=0, le=1)] = 0.3
    """Largest distance of a joint's goal from its measured position, rad; LeRobot's `max_relative_target`. It bounds
    the force of a blocked servo."""
    patience: Annotated[float, Interval(gt=0, le=10)] = 1.0
    """Time for which a joint may be farther than `lead` behind its goals before the arm stops, s."""
    silence: Annotated[float, Interval(gt=0, le=5)] = 0.5
    """Time for which the servos may fail to answer before the process gives the arm up, s."""

    def motor(self, name: str) -> str:
        """Return LeRobot's name of a joint's or finger's motor."""
        return dict(self.motors).get(name, name)

    def check(self, robot: RobotSpec) -> None:
        super().check(robot)
        for name in ("signs", "zeros"):
            if (count := len(getattr(self, name))) not in (0, needed := len(robot.joints)):
                raise ValueError(f"robot {robot.name!r}: driver.{name} has {count} numbers; it needs {needed}")
        if (fingers := len(robot.fingers)) > 1:
            raise ValueError(f"robot {robot.name!r}: its gripper has {fingers} fingers, but LeRobot moves one motor")


@dataclass(frozen=True, kw_only=True)
class UnitreeRobot(DriverConfig):
    """State of a robot that sends Unitree's LowState, and limits of its motors and battery."""

    low_state: str = "lowstate"
    """unitree_go/LowState: joint, IMU and foot readings."""
    motors: tuple[str, ...] = ()
    """Names of the joints, in the order of the motors in the messages."""
    feet: tuple[str, ...] = ()
    """Names of the feet, in the order of the contact forces in the messages."""
    motor_temperature_warning: float = 70.0
    """Temperature of a motor from which a warning is given, degrees C."""
    motor_temperature_stop: float = 85.0
    """Temperature of a motor from which the robot is stopped, until all are below the warning, degrees C."""
    battery_warning: float = 20.0
    """Charge of the battery up to which a warning is given, %."""
    battery_low: float = 10.0
    """Charge of the battery up to which the guard lays the robot down, and sport mode stops it, until it is above the
    warning, %."""
    motion_switcher: str = "motion_switcher"
    """Unitree's service that says which of the robot's own modes is active, on `api/<name>/request` and `/response`."""
    safety: SafetyConfig = field(default_factory=lambda: SafetyConfig(goal_timeout=0.3))
    """A goal may be older than an arm's: damping makes the robot fall, so it keeps standing in short gaps."""
    follow: Follow = "direct"

    def check(self, robot: RobotSpec) -> None:
        super().check(robot)
        what = f"robot {robot.name!r}, driver"
        _check_order(f"{what}.motors", self.motors, "joint", robot.joint_names)
        _check_order(f"{what}.feet", self.feet, "foot", robot.base.feet if robot.base else ())
        for low, high in (("motor_temperature_warning", "motor_temperature_stop"), ("battery_low", "battery_warning")):
            if not 0 < getattr(self, low) < getattr(self, high):
                raise ValueError(f"{what}: {low} must be above 0 and below {high}; correct one of them")

    def wire_order(self) -> dict[str, list[str] | None]:
        return {"motors": list(self.motors), "contacts": list(self.feet)}


@dataclass(frozen=True, kw_only=True)
class UnitreeLowLevel(UnitreeRobot):
    """Topics of Unitree's low-level messages."""

    driver: ClassVar[str] = "unitree_low_level"
    low_command: str = "lowcmd"
    """unitree_go/LowCmd: motor commands, published by the guard only."""
    wanted_command: str = "lowcmd_wanted"
    """unitree_go/LowCmd: motor commands for the guard to forward."""
    stop: Stop = "damp"


@dataclass(frozen=True, kw_only=True)
class UnitreeSport(UnitreeRobot):
    """Services of a robot in Unitree's sport mode, which balances and walks by itself."""

    driver: ClassVar[str] = "unitree_sport"
    service: str = "sport"
    """Unitree's service that takes velocities, on `api/<name>/request` and `/response`."""
    stop: Stop = "robot_stops"


def check_unique(kind: str, names: tuple[str, ...]) -> None:
    """Raise ValueError for a name that is given twice."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{kind} {name!r} is named {names.count(name)} times; name each once")


def _check_order(what: str, wired: tuple[str, ...], kind: str, own: tuple[str, ...]) -> None:
    """Raise ValueError unless `wired`, an order in messages, has each of the robot's names `own` exactly once."""
    check_unique(f"{what}: {kind}", wired)
    for name in wired:
        if name not in own:
            raise ValueError(f"{what}: the robot has no {kind} {name!r}; {nearest(name, own)}")
    if missing := [name for name in own if name not in wired]:
        raise ValueError(f"{what}: {kind} {', '.join(missing)} is missing; give the order of all")
