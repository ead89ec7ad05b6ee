"""Controller of a mobile base."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from robot_rl.interface.command import BaseVelocity, Command
from robot_rl.interface.controller import Target
from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.spec import Field, VectorSpec
from robot_rl.interface.state import ABSENT, RobotState
from robot_rl.util.limits import Interval, PositiveFloat, validate


@dataclass(frozen=True)
class BaseVelocityConfig:
    """Control of a mobile base: actions are its velocities."""

    produces: ClassVar[tuple[type[Command], ...]] = (BaseVelocity,)
    kind: Literal["base_velocity"] = "base_velocity"
    rate: PositiveFloat = 10.0
    """Rate of actions, Hz."""
    forward: PositiveFloat = 0.5
    """Largest speed forward and backward, m/s."""
    left: Annotated[float, Interval(ge=0, le=10)] = 0.0
    """Largest speed to the left and to the right, m/s; 0 for a base that cannot move sideways."""
    turn: PositiveFloat = 1.0
    """Largest angular velocity, rad/s."""
    ramp: PositiveFloat = 0.5
    """Shortest time from standing to full speed, s."""

    def __post_init__(self) -> None:
        validate(self, "controller.")


class BaseVelocityController:
    """Actions are velocities of the base; a person commands them with the stick that steers."""

    def __init__(self, robot: RobotSpec, config: BaseVelocityConfig, command: type[Command] = BaseVelocity):
        self.config, self.command = config, command
        top = (config.forward, config.left, config.turn)
        axes = [k for k, speed in enumerate(top) if speed > 0]
        names, units = ("x", "y", "yaw"), ("m/s", "m/s", "rad/s")
        fields = [Field("base_velocity", (names[k],), units[k], (-top[k],), (top[k],), "base") for k in axes]
        self.actions = VectorSpec(tuple(fields))
        self.twist_limit = torch.zeros(6)
        self.axes = [(0, 1, 5)[k] for k in axes]
        """Component of a twist that each action commands."""
        self.twist_limit[self.axes] = torch.tensor([top[k] for k in axes]) / config.rate
        self.columns = axes

    def reference(self, count: int) -> Tensor:
        return ABSENT

    def __call__(self, state: RobotState, action: Tensor) -> Target:
        velocity = action.new_zeros(len(action), 3)
        velocity[:, self.columns] = action
        return Target(BaseVelocity(velocity), action.new_zeros(len(action), 1))

    def hold_action(self, last: Tensor, gripper: Tensor) -> Tensor:
        return torch.zeros_like(last)

    def from_twist(self, twist: Tensor, gripper: Tensor, hold: Tensor | None = None) -> Tensor:
        return twist[:, self.axes].clamp(-1, 1)

    def to_twist(self, action: Tensor) -> tuple[Tensor, Tensor]:
        twist = action.new_zeros(len(action), 6)
        twist[:, self.axes] = action
        return twist, action.new_zeros(len(action), 1)
