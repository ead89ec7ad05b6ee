"""Named, batched views of a robot and its surroundings.

Simulation engines fill them for a thousand robots, a robot's driver for one. Observation terms, controllers,
success tests and the shield read nothing else, which is why they run unchanged on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor


@dataclass
class RobotState:
    """State of n robots in base-frame coordinates; quaternions are w x y z."""

    joint_position: Tensor
    """(n, J) rad, in the spec's joint order."""
    joint_velocity: Tensor
    """(n, J) rad/s."""
    tool_position: Tensor
    """(n, 3) m, forward kinematics of joint_position."""
    tool_quat: Tensor
    """(n, 4)."""
    gripper_width: Tensor
    """(n, 1) distance between the fingers, m."""
    last_action: Tensor
    """(n, A) the action executed in the previous control period, in [-1, 1]."""
    objects: dict[str, Tensor] = field(default_factory=dict)
    """Pose (n, 7) of each tracked object: position in m and quaternion."""

    def select(self, ids: Tensor) -> RobotState:
        """Rows `ids` of every view."""
        tensors = {f.name: getattr(self, f.name)[ids] for f in fields(self) if f.name != "objects"}
        return replace(self, **tensors, objects={k: v[ids] for k, v in self.objects.items()})

    @property
    def finite(self) -> Tensor:
        """(n,) bool: every number of the row is finite."""
        views = [getattr(self, f.name) for f in fields(self) if f.name != "objects"] + list(self.objects.values())
        return torch.stack([v.isfinite().all(-1) for v in views]).all(0)
