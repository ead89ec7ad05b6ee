"""Contract between task, policy and robot.

A task declares an `Interface`, and a policy's bundle stores it. Simulation and robot build the same `Pipeline` from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor

from robot_rl.interface.command import Command
from robot_rl.interface.control import (
    ControllerConfig,
    Target,
    ToolDeltaConfig,
    build_controller,
    controller_config,
    kind_for,
)
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import IMAGES, LANGUAGE, LANGUAGE_FIELD, ObservationSpec, picture_field
from robot_rl.interface.observations import Observer
from robot_rl.interface.robot import RobotSpec, command_ticks
from robot_rl.interface.shield import ShieldConfig
from robot_rl.interface.shields import build_shield
from robot_rl.interface.spec import Field, VectorSpec
from robot_rl.interface.state import RobotState
from robot_rl.interface.success import Test, objects_of, state_test
from robot_rl.robots import robots
from robot_rl.util.errors import UnknownName
from robot_rl.util.limits import Interval, NonNegativeFloat, PositiveInt, validate

COMMAND_RAMP = 0.5
"""Shortest time in which a velocity command crosses its range, s. Without this ramp, all 20 falls in 1,200 episodes
happened within a second after a command dropped to zero instantly."""


@dataclass(frozen=True)
class Picture:
    """Camera picture as an observation, `observation.images.<camera>`, uint8 (height, width, 3)."""

    camera: str
    height: Annotated[int, Interval(ge=1, le=960)] = 96
    """Height of the picture, pixels."""
    width: Annotated[int, Interval(ge=1, le=1280)] = 96
    """Width of the picture, pixels."""

    def __post_init__(self) -> None:
        validate(self, f"picture of camera {self.camera!r}: ")

    @property
    def key(self) -> str:
        """Return the observation key."""
        return f"{IMAGES}{self.camera}"


@dataclass(frozen=True)
class Instruction:
    """Instruction in words, with the test that shows that it was followed."""

    text: str
    success: str
    """Success test with arguments, for example "lifted:cube:0.12"."""
    held_out: bool = False
    """Whether training omits the instruction, so that it can test generalization to new instructions."""


@dataclass(frozen=True)
class Interface:
    """Everything besides the weights that determines a policy's observations and the effect of its actions."""

    task: str
    robot: str
    instruction: str
    """Instruction in words, for a task without `instructions`."""
    observations: tuple[str, ...]
    """Terms of observation.state, in order."""
    success: str = ""
    """Success test with arguments, for example "lifted:cube:0.12"; empty: an episode that reaches its horizon
    succeeds."""
    instructions: tuple[Instruction, ...] = ()
    """Instructions with their own success tests; each episode draws one of them. Empty: always `instruction`."""
    success_hold: PositiveInt = 4
    """Consecutive control periods for which the success test must hold."""
    failure: str = ""
    """Test with arguments that ends an episode in failure; empty: no such test."""
    gait: NonNegativeFloat = 0.0
    """Frequency of a legged robot's gait clock, Hz; 0: no gait clock."""
    command: tuple[Field, ...] = ()
    """Fields, with ranges, of the command that a person or planner gives, for example a velocity; empty: no command."""
    horizon: PositiveInt = 100
    """Episode length, control periods."""
    cameras: tuple[str, ...] = ()
    """Names of the cameras to record; for a task, the cameras of its scene."""
    pictures: tuple[Picture, ...] = ()
    """Camera pictures that the policy observes."""
    controller: ControllerConfig = field(default_factory=ToolDeltaConfig)
    shield: ShieldConfig = field(default_factory=ShieldConfig)

    def __post_init__(self) -> None:
        validate(self)
        if self.instructions and self.success:
            raise ValueError("success: each of the instructions has its own test; leave it empty")
        texts = [each.text for each in self.instructions]
        encode(texts)  # raises for an empty or too long instruction
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
        """Return the texts of all success and failure tests."""
        return (*filter(None, (self.success, self.failure)), *(each.success for each in self.instructions))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; empty pictures and instructions are omitted."""
        return {k: v for k, v in asdict(self).items() if v or k not in ("pictures", "instructions")}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Interface:
        values = {
            "observations": tuple(data["observations"]),
            "cameras": tuple(data.get("cameras", ())),
            "pictures": tuple(Picture(**p) for p in data.get("pictures", ())),
            "instructions": tuple(Instruction(**i) for i in data.get("instructions", ())),
            "command": tuple(VectorSpec.from_json(data.get("command", [])).fields),
            "controller": controller_config(data["controller"]),
            "shield": ShieldConfig(**data["shield"]),
        }
        return cls(**data | values)


class Pipeline:
    """Parts described by an interface: observer, controller, shield and tests."""

    def __init__(
        self, interface: Interface, robot: RobotSpec | None = None, device: str | torch.device = "cpu",
        accepted: tuple[type[Command], ...] = (), executor: str = "",
    ):  # fmt: skip
        """Build the parts on `device`, the device of states and actions, for the first kind of command that `executor`
        accepts, (): any; ConfigError if the controller gives none of them."""
        self.interface = interface
        self.device = torch.device(device)
        self.robot = robot or robots.get(interface.robot)
        command_ticks(self.robot.command_rate, interface.controller.rate)  # raises unless the rate divides it
        with self.device:
            self.kinematics = Kinematics(self.robot) if self.robot.tool else None
            kind = kind_for(interface.controller, accepted or interface.controller.produces, executor)
            self.controller = build_controller(self.robot, interface.controller, kind)
            self.shield = build_shield(self.robot, interface, kind)
        self.actions = self.controller.actions
        self.command = VectorSpec(interface.command)
        self.observer = Observer(interface.observations, self.robot, self.actions, self.command, self.device)
        self.success: Test | None = state_test(interface.success) if interface.success else None
        if interface.instructions:
            self.success = _by_instruction([state_test(each.success) for each in interface.instructions])
        self.texts = encode([each.text for each in interface.instructions]).to(self.device)
        """(I, bytes) uint8: the I instructions as UTF-8 bytes."""
        self.failure: Test | None = state_test(interface.failure) if interface.failure else None
        self.tick = 1.0 / self.robot.command_rate
        """Time between two joint commands, s."""

    @property
    def observation_spec(self) -> ObservationSpec:
        """Return the spec of a policy's observations; the same in simulation and on a robot."""
        return ObservationSpec.from_vector(self.observer.spec) | self.extra_inputs

    @property
    def extra_inputs(self) -> ObservationSpec:
        """Return the spec of a policy's observations besides observation.state: pictures and the instruction."""
        fields = {p.key: picture_field(p.height, p.width) for p in self.interface.pictures}
        return ObservationSpec.of(**fields | ({LANGUAGE: LANGUAGE_FIELD} if self.interface.instructions else {}))

    @property
    def objects(self) -> tuple[str, ...]:
        """Return the names of the views of objects to track: those that observation terms read and, for tasks with
        pictures, also those that tests read."""
        return self.tracked(self.interface.tests if self.interface.pictures else ())

    def tracked(self, tests: Iterable[str]) -> tuple[str, ...]:
        """Return the names of the views of objects that the observation terms and `tests` read."""
        return tuple(dict.fromkeys((*self.observer.objects, *(name for test in tests for name in objects_of(test)))))

    def target(self, state: RobotState, action: Tensor) -> Target:
        """Return targets for actions (n, A) in [-1, 1]. An action with a non-finite component gives NaN targets,
        which the shield rejects."""
        action = torch.where(action.isfinite().all(-1, keepdim=True), action, torch.nan)
        return self.controller(state, self.actions.to_physical(action))

    def language(self, state: RobotState) -> dict[str, Tensor]:
        """Return {LANGUAGE: current instructions (n, bytes) uint8}; {} for a task without `instructions`."""
        return {LANGUAGE: self.texts[state.instruction[:, 0].long()]} if self.interface.instructions else {}

    def phase(self, steps: Tensor) -> Tensor:
        """Return the gait phase (n, 1) in [0, 1) at control periods `steps` (n,) of an episode."""
        return (steps * (self.interface.gait / self.interface.controller.rate) % 1.0)[:, None]


def _by_instruction(tests: list[Test]) -> Test:
    """Return a test that applies to each robot the test of its current instruction."""

    def test(state: RobotState) -> Tensor:
        return torch.stack([each(state) for each in tests], 1).gather(1, state.instruction.long())[:, 0]

    return test
