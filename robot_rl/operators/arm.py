"""What a scripted operator of an arm sees: progress of a lift, and fingers that are about to miss the object."""

from __future__ import annotations

from torch import Tensor

from robot_rl.interface.pipeline import Pipeline
from robot_rl.interface.state import RobotState
from robot_rl.operators.scripted import OperatorConfig, OperatorView

CORRECTIONS = OperatorConfig("miss", patience=24, length=100)
"""Corrections as on the twin: after 1.2 s without progress or a miss, for 5 s, at 20 Hz."""
BESIDE = 0.015
"""Horizontal distance from the object, m, at which open fingers miss it."""
ABOVE = 0.045
"""Height above the object, m, below which the policy does not correct a miss."""


def offset(state: RobotState) -> Tensor:
    """Return the vector (3,) from the tool of one arm to its first object, m."""
    return next(iter(state.objects.values()))[0, :3] - state.tool_position[0]


def progress(state: RobotState) -> float:
    """Return how far one arm has come with lifting its first object, m."""
    height = next(iter(state.objects.values()))[0, 2]
    return float(3 * height - offset(state).norm())


def missing(state: RobotState, width: float) -> bool:
    """Return whether open fingers are low beside the first object; `width`, m, is that of the open gripper."""
    away, opening = offset(state), float(state.gripper_width) / width if width else 0.0
    return float(away[:2].norm()) > BESIDE and float(away[2]) > -ABOVE and opening > 0.6


def arm_view(pipeline: Pipeline, state: RobotState, action: Tensor) -> OperatorView:
    """Return what an operator sees of one arm in `state`, before the policy's action (1, A)."""
    width = pipeline.robot.gripper.width if pipeline.robot.gripper else 0.0
    return OperatorView(
        {"observation.state": pipeline.observer(state)},
        action,
        lambda: progress(state),
        lambda: missing(state, width),
    )
