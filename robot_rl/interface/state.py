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
"""Value of a view that does not exist for a robot, or that exists only in simulation."""

ObjectName = NewType("ObjectName", str)
"""Key of `RobotState.objects`; annotation of the parameters of terms and tests that name an object."""
JointedName = NewType("JointedName", str)
"""Key of `RobotState.object_joints`; annotation as `ObjectName`, of objects whose joints are read."""
OF_JOINTS = ".joints"
"""End of the name of a view with the joints of an object."""


@dataclass
class RobotState:
    """State of n robots; quaternions are w x y z. Views that do not exist are ABSENT."""

    joint_position: Tensor
    """(n, J) joint positions in the order of the robot's spec, rad."""
    joint_velocity: Tensor
    """(n, J) joint velocities, rad/s."""
    last_action: Tensor
    """(n, A) action executed in the previous control period, in [-1, 1]."""

    tool_position: Tensor = ABSENT
    """(n, 3) tool position in the base frame by forward kinematics of `joint_position`, m."""
    reference: Tensor = ABSENT
    """(n, R) the controller's reference from the previous control period; if actions rotate the tool, an orientation
    (n, 4), w x y z. Only in the states that an environment or driver reports."""
    gripper_width: Tensor = ABSENT
    """(n, 1) distance between the fingers, m."""
    objects: dict[str, Tensor] = field(default_factory=dict)
    """Pose (n, 7) of each tracked object in the base frame: position, m, and quaternion."""
    object_joints: dict[str, Tensor] = field(default_factory=dict)
    """Positions (n, J) of the joints of each object that has any, such as a drawer's slide, rad and m."""

    base_quat: Tensor = ABSENT
    """(n, 4) orientation of the trunk in the world from an IMU; on a real robot the heading drifts."""
    base_angular_velocity: Tensor = ABSENT
    """(n, 3) angular velocity of the trunk in its own frame from a gyroscope, rad/s."""
    command: Tensor = ABSENT
    """(n, C) velocity command in physical units, see `Interface.command`."""
    phase: Tensor = ABSENT
    """(n, 1) phase of the gait clock in [0, 1), see `Interface.gait`."""

    instruction: Tensor = ABSENT
    """(n, 1) index of the current instruction in `Interface.instructions`."""

    base_position: Tensor = ABSENT
    """(n, 3) position of the trunk in the world, m; simulation only."""
    base_velocity: Tensor = ABSENT
    """(n, 3) linear velocity of the trunk in its own frame, m/s; simulation only."""
    foot_position: Tensor = ABSENT
    """(n, 3 F) positions x y z of the F feet in the world, m; simulation only."""
    foot_velocity: Tensor = ABSENT
    """(n, 3 F) velocities x y z of the F feet in the world, m/s; simulation only."""
    foot_force: Tensor = ABSENT
    """(n, F) contact force of each foot, N."""
    joint_torque: Tensor = ABSENT
    """(n, J) motor torque, N m."""

    height_scan: Tensor = ABSENT
    """(n, K) height of uneven ground minus that of the trunk at the points of `Observer.scan`, m."""
    ground_height: Tensor = ABSENT
    """(n, 1) height of uneven ground below the trunk in the world, m; simulation only."""
    ground_normal: Tensor = ABSENT
    """(n, 3) upward unit normal of uneven ground below the trunk in the world; simulation only."""
    foot_ground_height: Tensor = ABSENT
    """(n, F) height of uneven ground below each foot in the world, m; simulation only."""

    @classmethod
    def from_views(cls, views: dict[str, Tensor], objects: Sequence[str]) -> RobotState:
        """Return the state with the given views; `objects` names the views that are poses of objects."""
        joints = {k.removesuffix(OF_JOINTS): v for k, v in views.items() if k.endswith(OF_JOINTS)}
        own = {k: v for k, v in views.items() if k not in objects and not k.endswith(OF_JOINTS)}
        return cls(**own, objects={k: views[k] for k in objects}, object_joints=joints)

    @property
    def base_height(self) -> Tensor:
        """Return the height (n, 1) of the trunk above the ground, m; simulation only."""
        height = self.base_position[:, 2:]
        return height if self.ground_height is ABSENT else height - self.ground_height

    @property
    def views(self) -> dict[str, Tensor]:
        """Return all existing views by name, including poses and joints of the objects."""
        own = {k: v for k, v in vars(self).items() if not isinstance(v, dict) and v is not ABSENT}
        if not self.object_joints:
            return own | self.objects
        return own | self.objects | {k + OF_JOINTS: v for k, v in self.object_joints.items()}

    def map(self, change: Callable[[str, Tensor], Tensor]) -> RobotState:
        """Return a state with change(name, view) in place of each view."""
        return self.from_views({k: change(k, v) for k, v in self.views.items()}, list(self.objects))

    def select(self, ids: Tensor) -> RobotState:
        """Return a state with rows `ids` of every view."""
        return self.map(lambda name, view: view.index_select(0, ids))

    def put(self, ids: Tensor, rows: RobotState) -> RobotState:
        """Return a copy in which rows `ids` of every view are those of `rows`, a state of len(ids) robots."""
        new = rows.views
        return self.map(lambda name, view: view.index_copy(0, ids, new[name]))


def leaves(values: Iterable[Tensor | RobotState]) -> list[Tensor]:
    """Return tensors and the views of states in `values` as one list of tensors, in order."""
    return [leaf for value in values for leaf in ([value] if isinstance(value, Tensor) else value.views.values())]


def is_commanded(state: RobotState) -> Tensor:
    """Return (n,) bool: whether the norm of the velocity command exceeds 0.05."""
    return state.command.square().sum(1) > 0.05**2
