"""The contract between a task, a policy and a robot.

A task declares an `Interface`, a bundle carries it, and simulation and robot build the same `Pipeline` from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor

from robot_rl.interface.control import (
    ControllerConfig,
    JointTarget,
    ToolDeltaConfig,
    build_controller,
    controller_config,
)
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import IMAGES, LANGUAGE, LANGUAGE_FIELD, ObservationSpec, picture_field
from robot_rl.interface.observations import Observer
from robot_rl.interface.rates import command_ticks
from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.shield import Shield, ShieldConfig
from robot_rl.interface.spec import Field, VectorSpec
from robot_rl.interface.state import RobotState
from robot_rl.interface.success import Test, objects_of, state_test
from robot_rl.robots import robots
from robot_rl.util.errors import UnknownName
from robot_rl.util.limits import Interval, NonNegativeFloat, PositiveInt, validate

COMMAND_RAMP = 0.5
"""Shortest time in which a command may cross its whole range, s: all of 20 falls in 1,200 episodes came within a second
after a command dropped to zero at once."""


@dataclass(frozen=True)
class Picture:
    """A camera's picture as an observation, `observation.images.<camera>`, uint8 (height, width, 3)."""

    camera: str
    height: Annotated[int, Interval(ge=1, le=960)] = 96
    """Pixels."""
    width: Annotated[int, Interval(ge=1, le=1280)] = 96
    """Pixels."""

    def __post_init__(self) -> None:
        validate(self, f"picture of camera {self.camera!r}: ")

    @property
    def key(self) -> str:
        """Return its key in an observation."""
        return f"{IMAGES}{self.camera}"


@dataclass(frozen=True)
class Instruction:
    """One of the things that a person may ask for."""

    text: str
    success: str
    """Success test and its arguments."""
    held_out: bool = False
    """Never asked in training: it tells whether a policy understands, or remembers."""


@dataclass(frozen=True)
class Interface:
    """Everything besides the weights that determines a policy's observations and the effect of its actions."""

    task: str
    robot: str
    instruction: str
    """Instruction, in words."""
    observations: tuple[str, ...]
    """Terms of observation.state, in order."""
    success: str = ""
    """Success test and its arguments; empty: an episode that reaches its horizon has succeeded."""
    instructions: tuple[Instruction, ...] = ()
    """What may be asked for, each with its own success test; an episode draws one. Empty: always `instruction`."""
    success_hold: PositiveInt = 4
    """Control periods in a row for which the success test must hold."""
    failure: str = ""
    """Test that ends an episode in failure; empty: none."""
    gait: NonNegativeFloat = 0.0
    """Frequency of a walking robot's gait clock, Hz; 0: it has none."""
    command: tuple[Field, ...] = ()
    """Command from a person or planner while the policy runs, with its ranges."""
    horizon: PositiveInt = 100
    """Episode length, control periods."""
    cameras: tuple[str, ...] = ()
    """Cameras to record; a task's are those of its scene."""
    pictures: tuple[Picture, ...] = ()
    """Cameras that a policy sees."""
    controller: ControllerConfig = field(default_factory=ToolDeltaConfig)
    shield: ShieldConfig = field(default_factory=ShieldConfig)

    def __post_init__(self) -> None:
        validate(self)
        if self.instructions and self.success:
            raise ValueError("success: each of the instructions has its own test; leave it empty")
        texts = [each.text for each in self.instructions]
        encode(texts)  # raises for an empty or too long one
        if twice := sorted({text for text in texts if texts.count(text) > 1}):
            raise ValueError(f"instructions: {twice[0]!r} is given twice")
        size = sum(len(f.dims) for f in self.command)
        for row in getattr(self.controller, "stride", ()):
            if len(row) != size:
                raise ValueError(f"controller.stride has {len(row)} numbers a joint for the {size} of the command")
        seen = [picture.camera for picture in self.pictures]
        for camera in seen:
            if self.cameras and camera not in self.cameras:
                raise UnknownName("camera", camera, self.cameras)
            if seen.count(camera) > 1:
                raise ValueError(f"pictures: camera {camera!r} is named {seen.count(camera)} times; name it once")

    @property
    def tests(self) -> tuple[str, ...]:
        """Return its success and failure tests."""
        return (*filter(None, (self.success, self.failure)), *(each.success for each in self.instructions))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; without pictures or instructions it has no such key."""
        return {k: v for k, v in asdict(self).items() if v or k not in ("pictures", "instructions")}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Interface:
        return cls(
            **data
            | {
                "observations": tuple(data["observations"]),
                "cameras": tuple(data.get("cameras", ())),
                "pictures": tuple(Picture(**p) for p in data.get("pictures", ())),
                "instructions": tuple(Instruction(**i) for i in data.get("instructions", ())),
                "command": tuple(VectorSpec.from_json(data.get("command", [])).fields),
                "controller": controller_config(data["controller"]),
                "shield": ShieldConfig(**data["shield"]),
            }
        )


class Pipeline:
    """The parts that an interface describes: observer, controller, shield and tests."""

    def __init__(self, interface: Interface, robot: RobotSpec | None = None, device: str | torch.device = "cpu"):
        """Build the parts with their constants on `device`, where states and actions must be too."""
        self.interface = interface
        self.device = torch.device(device)
        self.robot = robot or robots.get(interface.robot)
        command_ticks(self.robot.command_rate, interface.controller.rate)  # raises for a rate that does not divide it
        with self.device:  # all tensors of the parts
            self.kinematics = Kinematics(self.robot) if self.robot.tool else None
            self.controller = build_controller(self.robot, interface.controller)
            self.shield = Shield(self.robot, interface.shield)
        self.actions = self.controller.actions
        self.command = VectorSpec(interface.command)
        self.observer = Observer(interface.observations, self.robot, self.actions, self.command, self.device)
        self.success: Test | None = state_test(interface.success) if interface.success else None
        if interface.instructions:
            self.success = _as_asked([state_test(each.success) for each in interface.instructions])
        self.texts = encode([each.text for each in interface.instructions]).to(self.device)
        """(I, bytes) uint8"""
        self.failure: Test | None = state_test(interface.failure) if interface.failure else None
        self.tick = 1.0 / self.robot.command_rate
        """s"""

    @property
    def observation_spec(self) -> ObservationSpec:
        """Return the spec of a policy's observations, in simulation and on a robot."""
        return ObservationSpec.from_vector(self.observer.spec) | self.extra_inputs

    @property
    def extra_inputs(self) -> ObservationSpec:
        """Return the spec of a policy's inputs besides observation.state."""
        fields = {p.key: picture_field(p.height, p.width) for p in self.interface.pictures}
        return ObservationSpec.of(**fields | ({LANGUAGE: LANGUAGE_FIELD} if self.interface.instructions else {}))

    @property
    def objects(self) -> tuple[str, ...]:
        """Return the objects to track: those in the observation terms and, for policies that read images, those in the
        success and failure tests."""
        return self.tracked(self.interface.tests if self.interface.pictures else ())

    def tracked(self, tests: Iterable[str]) -> tuple[str, ...]:
        """Return the objects to track where the state is judged by `tests`."""
        return tuple(dict.fromkeys((*self.observer.objects, *(name for test in tests for name in objects_of(test)))))

    def target(self, state: RobotState, action: Tensor) -> JointTarget:
        """Return joint targets for actions (n, A) in [-1, 1]; a non-finite component makes its row NaN, which the
        shield rejects."""
        action = torch.where(action.isfinite().all(-1, keepdim=True), action, torch.nan)
        return self.controller(state, self.actions.to_physical(action))

    def language(self, state: RobotState) -> dict[str, Tensor]:
        """Return the instructions in force, uint8 (n, bytes), by their key; {} for a task without."""
        return {LANGUAGE: self.texts[state.instruction[:, 0].long()]} if self.interface.instructions else {}

    def phase(self, steps: Tensor) -> Tensor:
        """Return the gait clock (n, 1) at control periods `steps` (n,) of an episode."""
        return (steps * (self.interface.gait / self.interface.controller.rate) % 1.0)[:, None]


def _as_asked(tests: list[Test]) -> Test:
    """Return the test of each robot's own instruction."""

    def test(state: RobotState) -> Tensor:
        return torch.stack([each(state) for each in tests], 1).gather(1, state.instruction.long())[:, 0]

    return test
