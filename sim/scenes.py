"""Scene of a simulation: objects, cameras and contact settings, the same for every engine."""

import importlib.util
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from robot_rl.interface.robot import RobotSpec, command_ticks, is_whole
from robot_rl.interface.state import OF_JOINTS
from robot_rl.robots import folder_of
from robot_rl.util.errors import ConfigError, UserError, nearest
from robot_rl.util.limits import Interval, PositiveFloat, PositiveInt, validate
from sim.menagerie import PREFIX, menagerie_file
from sim.objects.base import Object
from sim.terrain import Terrain

Cone = Literal["elliptic", "pyramidal"]
SCENE = "scene/"
"""Prefix of the names of objects, cameras, table and light in MuJoCo's model: a robot's file may use the same names."""


@dataclass(frozen=True)
class Camera:
    """A camera that looks at a point, fixed in the scene or to a part of the robot."""

    name: str
    position: tuple[float, float, float]
    """Position of the camera, m, in the base frame, or in the frame of `body` if that is set."""
    target: tuple[float, float, float]
    """Point that the camera looks at, m, in the frame of `position`."""
    fovy: Annotated[float, Interval(gt=0, le=179)] = 45.0
    """Vertical field of view, degrees."""
    follows: bool = False
    """True: the camera moves with the robot's trunk; `position` and `target` are relative to it, along world axes."""
    body: str = ""
    """Body of the robot's model on which the camera is mounted; up in the picture is the z axis of the body."""

    def __post_init__(self) -> None:
        validate(self, f"camera {self.name!r}: ")
        if self.follows and self.body:
            raise ValueError(f"camera {self.name!r}: it follows the trunk or is mounted on {self.body!r}, not both")
        if self.position[:2] == self.target[:2]:  # the upper edge of a picture would be undefined
            raise ValueError(f"camera {self.name!r}: it looks straight up or down; move its target a little aside")


@dataclass(frozen=True)
class Scene:
    """A robot at the origin of a table top or ground (z = 0), with objects and cameras."""

    objects: tuple[Object, ...] = ()
    cameras: tuple[Camera, ...] = ()
    ground: Terrain | None = None
    """Uneven ground with the robot on one of its tiles; None: a table top or level ground at z = 0."""
    places: tuple[tuple[float, float], ...] = ()
    """Places (x, y), m, one per object. An episode assigns the places to the objects at random, and `<object>.x` and
    `.y` are offsets from the object's place. Without places, `<object>.x` and `.y` are coordinates."""
    hung: bool = False
    """Whether a legged robot's trunk is held in the air, as by a rope: its feet touch nothing."""
    collisions: Literal["listed", "all"] = "listed"
    """Bodies of the robot that collide with the scene: those of `RobotSpec.collision_bodies`, or all."""
    motors: Literal["ideal", "dc"] = "ideal"
    """Motors of a compliant robot. Ideal ones have the torque `Joint.effort` at any speed; that of DC motors falls
    linearly from there to 0 at `Joint.velocity`, where the supply's voltage is used up, but not when they brake."""
    timestep: float = 0.005
    """Physics step, s."""
    iterations: PositiveInt = 50
    """Maximum number of contact solver iterations per physics step."""
    cone: Cone = "elliptic"
    """Friction cone: elliptic is exact, pyramidal is 25 % faster."""
    impratio: PositiveFloat = 10.0
    """Ratio of frictional to normal stiffness of contacts; large values prevent slow sliding of grasped objects."""

    def __post_init__(self) -> None:
        if not 0 < self.timestep < math.inf:
            raise ValueError(f"scene: timestep {self.timestep} s is not a positive time")
        if self.cone not in get_args(Cone):
            raise ValueError(f"scene: unknown cone {self.cone!r}; {nearest(self.cone, get_args(Cone))}")
        for kind, names in (("object", [o.name for o in self.objects]), ("camera", [c.name for c in self.cameras])):
            if twice := [name for name in names if names.count(name) > 1]:
                raise ValueError(f"scene: {len(twice)} {kind}s are named {twice[0]!r}; name each differently")
        if self.ground is not None and self.objects:
            raise ValueError("scene: objects rest on a table top at z = 0, not on uneven ground; leave out one of them")
        if self.places and len(self.places) != len(self.objects):
            raise ValueError(f"scene: {len(self.places)} places for {len(self.objects)} objects; give one for each")
        poses = [name for thing in self.objects for name in thing.poses]
        if twice := [name for name in poses if poses.count(name) > 1]:
            raise ValueError(f"scene: {twice[0]!r} is the name of an object and of a part; name the object differently")
        validate(self, "scene: ")

    @property
    def poses(self) -> tuple[str, ...]:
        """Return the names of all tracked poses, of objects and of their parts."""
        return tuple(name for thing in self.objects for name in thing.poses)

    @property
    def views(self) -> tuple[str, ...]:
        """Return the names of all views of objects: poses, and joints."""
        return (*self.poses, *(name + OF_JOINTS for name in self.joints))

    @property
    def joints(self) -> dict[str, int]:
        """Return the number of own joints of each object that has any."""
        return {thing.name: len(thing.joints) for thing in self.objects if thing.joints}


def time_grid(timestep: float, command_rate: float, rate: float) -> tuple[float, int]:
    """Return the length of a tick, s, and the number of ticks in a control period.

    A tick is the longer of a period of the robot's commands and a physics step. Raises ConfigError if a control period
    is not a whole number of ticks, or if a tick is not a whole number of physics steps.
    """
    command, control = 1 / command_rate, 1 / rate
    if timestep < command and not is_whole(command / timestep):
        raise ConfigError(
            f"the robot takes a command every {command:g} s, which is {command / timestep:.4g} physics steps of "
            f"{timestep:g} s and not a whole number; a timestep of {command / math.ceil(command / timestep):.6g} s "
            "would do"
        )
    if timestep <= command:
        return command, command_ticks(command_rate, rate)
    if not is_whole(control / timestep):
        count = math.ceil(control / timestep)
        count -= count > 1 and control / count < command
        raise ConfigError(
            f"a control period at {rate:g} Hz is {control:.6g} s, which is {control / timestep:.4g} physics steps of "
            f"{timestep:g} s and not a whole number; a timestep of {control / count:.6g} s would do"
        )
    return timestep, round(control / timestep)


def robot_model(robot: RobotSpec, path: str = "") -> Path:
    """Return the robot's model file: `path` if it is given, else the model of the spec. Both may be a model of MuJoCo
    Menagerie, see `sim.menagerie`.

    `robots.get` gives a model file next to the spec an absolute path; a relative path is inside genesis-world's assets.
    This function finds genesis-world without importing it.
    """
    if (path or robot.model).startswith(PREFIX):
        return menagerie_file(path or robot.model)
    if path:
        model = Path(path)
        if not model.is_file():
            raise ConfigError(f"robot model {path} is not a file; name an MJCF or URDF file of {robot.name!r}")
        return model
    if Path(robot.model).is_absolute():
        if not Path(robot.model).is_file():
            raise ConfigError(
                f"robot model {robot.model} is not a file; correct `model` of robot {robot.name!r} in its spec"
            )
        return Path(robot.model)
    folder = folder_of(robot.name)
    beside = f" ({folder / robot.model})" if folder else ""
    looked = f"{robot.model} is not beside the spec of {robot.name!r}{beside}, and"
    package = importlib.util.find_spec("genesis")
    if package is None or not package.submodule_search_locations:
        raise UserError(
            f"{looked} genesis-world, which may contain it, is not installed: "
            'pip install "robot-rl[sim]", or name a model file with --mjcf'
        )
    model = Path(package.submodule_search_locations[0]) / "assets" / robot.model
    if not model.is_file():
        raise UserError(f"{looked} not in the installed genesis-world ({model}); name a model file with --mjcf")
    return model
