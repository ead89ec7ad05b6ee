"""Goal that a person sets by dragging a gizmo in the browser: the tool moves towards it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from real.drivers.state import JointReading
from real.teleop.towards import Vector, difference, towards
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.rotation import quat_to_matrix

STILL: Vector = (0.0, 0.0, 0.0)
Pose = tuple[Tensor, Tensor]
"""Position (1, 3), m, and rotation (1, 3, 3) in the base frame."""


class Gizmo:
    """The pose of a gizmo while it is dragged, and while control is kept after that."""

    def __init__(self, robot: RobotSpec, reading: Callable[[], JointReading | None], turns: bool):
        """`reading`: newest joint state; `turns`: the tool turns with the gizmo."""
        self.kinematics, self.turns = Kinematics(robot), turns
        self.goal: Pose | None = None
        """Pose that the tool is to reach; None while the gizmo follows the tool."""
        self.dragged = False
        """The gizmo is in the person's hand."""
        self._reading = reading

    def drag(self, phase: str, position: Any, wxyz: Any) -> None:
        """Take a phase of a drag, start, update or end, and the gizmo's pose: (3,), m, and a quaternion (4,).

        The drag goes on until the page says that nothing is down: viser also ends a drag whose connection is lost."""
        self.dragged |= phase != "end"
        place = torch.tensor(position, dtype=torch.float32)[None]
        self.goal = place, quat_to_matrix(torch.tensor(wxyz, dtype=torch.float32)[None])

    def drop(self) -> None:
        """Let go."""
        self.goal, self.dragged = None, False

    def motion(self) -> tuple[Vector, Vector]:
        """Return motion and rotation towards the goal, as of `Operator`; zero without a goal or a joint state."""
        reading = self._reading()
        if self.goal is None or reading is None:
            return STILL, STILL
        tool = self.kinematics.forward(torch.from_numpy(reading.position)[None].float())
        offset, angle = difference(tool, self.goal)
        return towards(offset, angle if self.turns else 0 * angle)
