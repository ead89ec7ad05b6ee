"""Person who takes over in simulation with a teleop device in this terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from real.teleop import Device
from robot_rl.interface.control import NO_TOOL
from robot_rl.operators.scripted import OperatorView
from robot_rl.util.errors import ConfigError


class Person:
    """Operator for `InterventionWrapper`; in control while the enable button is held, as on a robot."""

    def __init__(self, env: Any, device: Device, reset: Callable[[], None]):
        """Call `reset` when the device's reset is pressed. Raises ConfigError if the task's actions move no tool."""
        if not env.pipeline.controller.twist_limit.any():
            raise ConfigError(
                f"{NO_TOOL}; a walking robot is steered on its twin: launch quadruped twin:=true teleop:=keyboard "
                "view:=true"
            )
        self.env, self.device, self._reset_pressed = env, device, reset
        self._down = False

    def reset(self) -> None:
        """Begin an episode (no effect)."""

    def __call__(self, view: OperatorView, step: float) -> tuple[bool, Tensor]:
        """Return whether the person has control, and the action (1, A). Raises `Finished` when the person quits."""
        operator = self.device.read()
        if operator.reset and not self._down:
            self._reset_pressed()
        self._down = operator.reset
        twist = torch.tensor([[*operator.motion, *operator.rotation]])
        gripper = torch.tensor([[operator.gripper]])
        action = self.env.pipeline.controller.from_twist(twist, gripper, self.env.hold_action())
        return operator.held, action
