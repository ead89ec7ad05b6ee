"""Named, batched views of a robot and its objects.

Simulation engines and robot drivers fill the views. Observation terms, controllers, tests and the shield read only
views, so the same code runs in simulation and on robots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NewType

import torch
from torch import Tensor

ABSENT = torch.empty(0, 0)
"""Value of a view that does not exist for this robot, or outside simulation."""

ObjectName = NewType("ObjectName", str)
"""Key of `RobotState.objects`: annotation for parameters of terms and tests."""


@dataclass
class RobotState:
    """State of n robots; quaternions are w x y z. Views that do not exist are ABSENT."""

    joint_position: Tensor
    """(n, J) rad, in the spec's joint order."""
    joint_velocity: Tensor
    """(n, J) rad/s."""
    last_action: Tensor
    """(n, A) action executed in the previous control period, in [-1, 1]."""

    tool_position: Tensor = ABSENT
    """(n, 3) m, base frame, by forward kinematics of joint_position."""
    reference: Tensor = ABSENT
    """(n, R) the controller's reference from the previous control period, for tools that rotate the orientation (n, 4)
    w x y z; only in reported states."""
    gripper_width: Tensor = ABSENT
    """(n, 1) distance between the fingers, m."""
    objects: dict[str, Tensor] = field(default_factory=dict)
    """Pose (n, 7) of each tracked object in the base frame: position, m, and quaternion."""

    base_quat: Tensor = ABSENT
    """(n, 4) orientation of the trunk in the world from an IMU; on a robot the heading drifts."""
    base_angular_velocity: Tensor = ABSENT
    """(n, 3) rad/s, trunk frame, from a gyroscope."""
    command: Tensor = ABSENT
    """(n, C) command in physical units, see `Interface.command`."""
    phase: Tensor = ABSENT
    """(n, 1) phase of the gait clock in [0, 1), see `Interface.gait`."""

    instruction: Tensor = ABSENT
    """(n, 1) index of the current instruction in `Interface.instructions`."""

    base_position: Tensor = ABSENT
    """(n, 3) m, world; simulation only."""
    base_velocity: Tensor = ABSENT
    """(n, 3) m/s, trunk frame; simulation only."""
    foot_position: Tensor = ABSENT
    """(n, 3 F) m, world, x y z per foot; simulation only."""
    foot_velocity: Tensor = ABSENT
    """(n, 3 F) m/s, world; simulation only."""
    foot_force: Tensor = ABSENT
    """(n, F) contact force of each foot, N."""
    joint_torque: Tensor = ABSENT
    """(n, J) motor torque, N m."""

    @classmethod
    def from_views(cls, views: dict[str, Tensor], objects: Sequence[str]) -> RobotState:
        """Return the state with the given views, of which `objects` are poses."""
        return cls(**{k: v for k, v in views.items() if k not in objects}, objects={k: views[k] for k in objects})

    @property
    def views(self) -> dict[str, Tensor]:
        """Return all existing views by name, including objects."""
        return {k: v for k, v in vars(self).items() if k != "objects" and v is not ABSENT} | self.objects

    def map(self, change: Callable[[str, Tensor], Tensor]) -> RobotState:
        """Return a state with change(name, view) in place of each view."""
        return self.from_views({k: change(k, v) for k, v in self.views.items()}, list(self.objects))

    def select(self, ids: Tensor) -> RobotState:
        """Return a state with rows `ids` of every view."""
        return self.map(lambda name, view: view.index_select(0, ids))

    def put(self, ids: Tensor, rows: RobotState) -> RobotState:
        """Return a copy with rows `ids` replaced by the rows of another state."""
        new = rows.views
        return self.map(lambda name, view: view.index_copy(0, ids, new[name]))


def leaves(values: Iterable[Tensor | RobotState]) -> list[Tensor]:
    """Return tensors and the views of states as one list, in order."""
    return [leaf for value in values for leaf in ([value] if isinstance(value, Tensor) else value.views.values())]


def is_commanded(state: RobotState) -> Tensor:
    """Return (n,) bool: the norm of the command exceeds 0.05."""
    return state.command.square().sum(1) > 0.05**2
