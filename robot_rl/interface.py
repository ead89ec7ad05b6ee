"""The contract at which a task, a policy and a robot meet.

A task declares an `Interface`, a bundle carries it, and simulation and robot build the same `Pipeline` from it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from robot_rl.control import ToolDeltaConfig, ToolDeltaController
from robot_rl.observations import Observer
from robot_rl.robots import robots
from robot_rl.shield import Shield, ShieldConfig
from robot_rl.spec import RobotSpec
from robot_rl.success import success_test


@dataclass(frozen=True)
class Interface:
    """Everything besides the weights that decides what a policy sees and what its actions do."""

    task: str
    robot: str
    instruction: str
    """What to do, in words."""
    observations: tuple[str, ...]
    """Terms of observation.state, in order."""
    success: str
    """Success test and its arguments."""
    success_hold: int = 4
    """Control periods for which the test must hold."""
    horizon: int = 100
    """Episode length, control periods."""
    cameras: tuple[str, ...] = ()
    """Cameras to record and film, a task's are those of its scene; no policy sees them yet."""
    controller: ToolDeltaConfig = field(default_factory=ToolDeltaConfig)
    shield: ShieldConfig = field(default_factory=ShieldConfig)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Interface:
        return cls(
            **data
            | {
                "observations": tuple(data["observations"]),
                "cameras": tuple(data.get("cameras", ())),
                "controller": ToolDeltaConfig(**data["controller"]),
                "shield": ShieldConfig(**data["shield"]),
            }
        )


class Pipeline:
    """The working parts of an interface: observer, controller, shield and success test."""

    def __init__(self, interface: Interface, robot: RobotSpec | None = None):
        self.interface = interface
        self.robot = robot or robots.get(interface.robot)
        self.controller = ToolDeltaController(self.robot, interface.controller)
        self.actions = self.controller.actions
        self.observer = Observer(interface.observations, self.robot, self.actions)
        self.shield = Shield(self.robot, interface.shield)
        self.success = success_test(interface.success)
        self.ticks = round(self.robot.command_rate / interface.controller.rate)
        """Command ticks in a control period."""
        self.tick = 1.0 / self.robot.command_rate
        """s"""
