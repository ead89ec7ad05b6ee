"""What is in a simulated world, said once for every engine."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from robot_rl.errors import Misfit, UserError, nearest
from robot_rl.spec import RobotSpec

Cone = Literal["elliptic", "pyramidal"]


@dataclass(frozen=True)
class Box:
    """A free cuboid on the table; where a task does not place its height, that follows from its size."""

    name: str
    size: float
    """Half of its edge, m."""
    mass: float
    """kg"""
    friction: float = 1.0
    """Sliding friction coefficient."""
    rgba: tuple[float, float, float, float] = (0.85, 0.2, 0.15, 1.0)
    solid: bool = True
    """False: a mark, which stays where it is put and goes through everything."""

    def __post_init__(self) -> None:
        for name, value, unit in (("size", self.size, "m"), ("mass", self.mass, "kg")):
            if not value > 0:
                raise ValueError(f"box {self.name!r}: {name} {value} {unit} is not positive")
        if self.friction < 0:
            raise ValueError(f"box {self.name!r}: friction {self.friction} is negative")


@dataclass(frozen=True)
class Camera:
    """A fixed camera that looks at a point."""

    name: str
    position: tuple[float, float, float]
    """m, base frame"""
    target: tuple[float, float, float]
    """m, base frame"""
    fovy: float = 45.0
    """Vertical field of view, degrees."""
    follows: bool = False
    """It moves with the robot's trunk: position and target are seen from there, in the world's directions."""


@dataclass(frozen=True)
class Scene:
    """A robot at the origin of a table top or ground (z = 0), with objects and cameras."""

    boxes: tuple[Box, ...] = ()
    cameras: tuple[Camera, ...] = ()
    timestep: float = 0.005
    """Physics step, s."""
    iterations: int = 50
    """Most iterations of the contact solver in a step."""
    cone: Cone = "elliptic"
    """Shape of friction: elliptic is exact, pyramidal a quarter faster."""
    impratio: float = 10.0
    """Stiffness of friction against that of normal contact; large values stop grasped objects from creeping."""

    def __post_init__(self) -> None:
        if not 0 < self.timestep < math.inf:
            raise ValueError(f"scene: timestep {self.timestep} s is not a positive time")
        if self.cone not in get_args(Cone):
            raise ValueError(f"scene: unknown cone {self.cone!r}; {nearest(self.cone, get_args(Cone))}")


def time_grid(timestep: float, command_rate: float, rate: float) -> tuple[float, int]:
    """Length of a tick, s, and the number of ticks in a control period; refuses periods that do not fit together.

    A tick is a period of the robot's commands, or a physics step where that is longer.
    """
    command, control = 1 / command_rate, 1 / rate
    tick = max(command, timestep)
    if not _whole(command / timestep) and timestep < command:
        raise Misfit(
            f"the robot takes a command every {command:g} s, which is {command / timestep:.4g} physics steps of "
            f"{timestep:g} s and not a whole number; a timestep of {command / math.ceil(command / timestep):.6g} s "
            "would do"
        )
    if not _whole(control / tick):
        if timestep > command:
            count, what = math.ceil(control / tick), "physics steps"
            count -= count > 1 and control / count < command
            remedy = f"a timestep of {control / count:.6g} s would do"
        else:
            what, remedy = "commands", f"a rate of {command_rate / max(1, round(control / tick)):.6g} Hz would do"
        raise Misfit(
            f"a control period at {rate:g} Hz is {control:.6g} s, which is {control / tick:.4g} {what} of {tick:g} s "
            f"and not a whole number; {remedy}"
        )
    return tick, round(control / tick)


def _whole(count: float) -> bool:
    return round(count) >= 1 and abs(count - round(count)) < 1e-4


def robot_model(robot: RobotSpec, path: str = "") -> Path:
    """The robot's model file: the user's own, or the one inside genesis-world (found without importing it)."""
    if path:
        model = Path(path)
        if not model.is_file():
            raise Misfit(f"robot model {path}: no such file; name an MJCF file of {robot.name!r}")
        return model
    if Path(robot.model).is_absolute():
        if not Path(robot.model).is_file():
            raise Misfit(f"robot model {robot.model}: no such file; mend `model` of robot {robot.name!r} in its spec")
        return Path(robot.model)
    package = importlib.util.find_spec("genesis")
    if package is None or not package.submodule_search_locations:
        raise UserError(
            f"no model file for {robot.name!r}: install genesis-world, whose assets hold it "
            '(pip install "robot-rl[sim]"), or name an MJCF file with --mjcf'
        )
    model = Path(package.submodule_search_locations[0]) / "assets" / robot.model
    if not model.is_file():
        raise UserError(f"{model} is missing from the installed genesis-world; name an MJCF file with --mjcf")
    return model
