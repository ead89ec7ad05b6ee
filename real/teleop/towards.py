"""Input that moves a tool towards a pose, for devices that name a goal: a leader arm, a gizmo in the browser."""

from torch import Tensor

from robot_rl.interface.rotation import rotation_error

FULL, TURN = 0.04, 0.1
"""Motion, m, and rotation, rad, of a control period that full input commands."""
GAIN = 0.5
"""Share of the difference that a control period covers. The robot answers a period later: 1 would overshoot."""
Vector = tuple[float, float, float]


def difference(pose: tuple[Tensor, Tensor], goal: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the translation (3,), m, and the rotation vector (3,), rad, from a pose to a goal in one frame; each is a
    position (1, 3) and a rotation (1, 3, 3)."""
    return (goal[0] - pose[0])[0], rotation_error(pose[1], goal[1])[0]


def towards(offset: Tensor, angle: Tensor) -> tuple[Vector, Vector]:
    """Return motion and rotation, as of `Operator`, that cover a difference (3,), m, and (3,), rad."""
    x, y, z = (GAIN * offset / FULL).clamp(-1, 1).tolist()
    roll, pitch, yaw = (GAIN * angle / TURN).clamp(-1, 1).tolist()
    return (x, y, z), (roll, pitch, yaw)
