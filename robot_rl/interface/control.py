"""Controllers from actions to commands: to a tool, to joints, to a base."""

from typing import Any

from robot_rl.interface.command import KINDS, Command, JointPositions, choose
from robot_rl.interface.control_base import BaseVelocityConfig, BaseVelocityController
from robot_rl.interface.control_joints import (
    JointOffsetConfig,
    JointOffsetController,
    JointPositionConfig,
    JointPositionController,
)
from robot_rl.interface.control_tool import ToolDeltaConfig, ToolDeltaController
from robot_rl.interface.controller import Controller, Target
from robot_rl.interface.robot import RobotSpec
from robot_rl.util.errors import ConfigError, UnknownName

__all__ = [
    "BaseVelocityConfig", "BaseVelocityController", "Controller", "ControllerConfig", "JointOffsetConfig",
    "JointOffsetController", "JointPositionConfig", "JointPositionController", "Target", "ToolDeltaConfig",
    "ToolDeltaController", "build_controller", "controller_config", "kind_for",
]  # fmt: skip

ControllerConfig = ToolDeltaConfig | JointOffsetConfig | JointPositionConfig | BaseVelocityConfig
_KINDS: dict[str, tuple[Any, Any]] = {
    "tool_delta": (ToolDeltaConfig, ToolDeltaController),
    "joint_offset": (JointOffsetConfig, JointOffsetController),
    "joint_position": (JointPositionConfig, JointPositionController),
    "base_velocity": (BaseVelocityConfig, BaseVelocityController),
}


def controller_config(data: dict[str, Any]) -> ControllerConfig:
    """Restore a controller config from the result of `dataclasses.asdict`."""
    kind = data.get("kind", "tool_delta")
    if kind not in _KINDS:
        raise UnknownName("controller", kind, _KINDS)
    config: ControllerConfig = _KINDS[kind][0](**{k: _frozen(v) for k, v in data.items()})
    return config


def _frozen(value: Any) -> Any:
    """Convert a list and the lists in it to tuples; return other values unchanged."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def kind_for(config: ControllerConfig, accepted: tuple[type[Command], ...], who: str) -> type[Command]:
    """Return the kind of command that a controller gives and `who` accepts; ConfigError if there is none."""
    kind = choose(config.produces, accepted)
    if kind is None:
        gives, takes = (" or ".join(KINDS[k] for k in kinds) for kinds in (config.produces, accepted))
        raise ConfigError(
            f"{who} takes {takes}, but a {config.kind} controller, with which this policy was trained, gives {gives}: "
            "use another driver (`driver` in the robot's spec), or a policy with another controller"
        )
    return kind


def build_controller(
    robot: RobotSpec, config: ControllerConfig, command: type[Command] = JointPositions
) -> Controller:
    """Return the controller whose targets are commands of the kind `command`."""
    controller: Controller = _KINDS[config.kind][1](robot, config, command)
    return controller
