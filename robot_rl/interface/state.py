"""Named, batched views of a robot and its surroundings.

Simulation engines and robot drivers fill them. Observation terms, controllers, tests and the shield read nothing else,
so they run unchanged on both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NewType

import torch
from torch import Tensor

ABSENT = torch.empty(0, 0)
"""Value of a view that this robot, or this side, does not have."""


ObjectName = NewType("ObjectName", str)
"""Key of `RobotState.objects`: annotates a parameter of a term or test that names an object of the scene."""


@dataclass
class RobotState:
    """State of n robots; quaternions are w x y z. Missing views are ABSENT."""

    joint_position: Tensor
    """(n, J) rad, in the spec's joint order."""
    joint_velocity: Tensor
    """(n, J) rad/s."""
    last_action: Tensor
    """(n, A) the action executed in the previous control period, in [-1, 1]."""

    tool_position: Tensor = ABSENT
    """(n, 3) m, forward kinematics of joint_position, base frame."""
    reference: Tensor = ABSENT
    """(n, R) reference of the controller from the previous control period; only in reported states. For a tool that
    turns: the orientation to hold, (n, 4) w x y z."""
    gripper_width: Tensor = ABSENT
    """(n, 1) distance between the fingers, m."""
    objects: dict[str, Tensor] = field(default_factory=dict)
    """Pose (n, 7) of each tracked object in the base frame: position in m and quaternion."""

    base_quat: Tensor = ABSENT
    """(n, 4) orientation of the trunk in the world, as an IMU estimates it; its heading drifts on a robot."""
    base_angular_velocity: Tensor = ABSENT
    """(n, 3) rad/s, trunk frame, as a gyroscope measures it."""
    command: Tensor = ABSENT
    """(n, C) command in physical units, see `Interface.command`."""
    phase: Tensor = ABSENT
    """(n, 1) phase of the gait clock in [0, 1); see `Interface.gait`."""

    instruction: Tensor = ABSENT
    """(n, 1) index of the instruction in force in `Interface.instructions`."""

    base_position: Tensor = ABSENT
    """(n, 3) m, world; in simulation only."""
    base_velocity: Tensor = ABSENT
    """(n, 3) m/s, trunk frame; in simulation only."""
    foot_position: Tensor = ABSENT
    """(n, 3 F) m, world, foot after foot; in simulation only."""
    foot_velocity: Tensor = ABSENT
    """(n, 3 F) m/s, world; in simulation only."""
    foot_force: Tensor = ABSENT
    """(n, F) contact force of each foot, N."""
    joint_torque: Tensor = ABSENT
    """(n, J) torque of the motors, N m."""

    @classmethod
    def from_views(cls, views: dict[str, Tensor], objects: Sequence[str]) -> RobotState:
        """Return the state with these `views`."""
        return cls(**{k: v for k, v in views.items() if k not in objects}, objects={k: views[k] for k in objects})

    @property
    def views(self) -> dict[str, Tensor]:
        """Return all present views by name, objects included."""
        return {k: v for k, v in vars(self).items() if k != "objects" and v is not ABSENT} | self.objects

    def map(self, change: Callable[[str, Tensor], Tensor]) -> RobotState:
        """Return a state with change(name, view) for each view."""
        return self.from_views({k: change(k, v) for k, v in self.views.items()}, list(self.objects))

    def select(self, ids: Tensor) -> RobotState:
        """Return rows `ids` of every view."""
        return self.map(lambda name, view: view.index_select(0, ids))

    def put(self, ids: Tensor, rows: RobotState) -> RobotState:
        """Return a copy with rows `ids` replaced by those of another state."""
        new = rows.views
        return self.map(lambda name, view: view.index_copy(0, ids, new[name]))


def leaves(values: Iterable[Tensor | RobotState]) -> list[Tensor]:
    """Return the tensors, and the views of the states, in order."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        else:
            found.extend(value.views.values())
    return found


def is_commanded(state: RobotState) -> Tensor:
    """Return (n,) bool: the command is not zero, with a dead-band of 0.05."""
    return state.command.square().sum(1) > 0.05**2
