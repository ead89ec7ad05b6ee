"""Decide when a scripted operator takes over from a policy and gives control back."""

from __future__ import annotations

from torch import Tensor

from robot_rl.interface.state import RobotState

PATIENCE = 1.2
"""Time without progress before the operator takes over, s."""
LONGEST = 5.0
"""Longest correction, s."""
PROGRESS = 0.004
"""Smallest approach to the object, or rise with it, that counts as progress, m."""

BESIDE = 0.015
"""Horizontal distance from the object, m, at which open fingers miss it."""
ABOVE = 0.045
"""Height above the object, m, below which the policy does not correct a miss."""
GLANCE = 0.1
"""Time descending beside the object before the operator takes over, s."""


def lifted(offset: Tensor, height: float) -> float:
    """Return how far a lift has come, m, from the tool's offset (3,) to the object and the object's height, m."""
    return 3 * height - float(offset.norm())


def progress(state: RobotState) -> float:
    """Return how far an arm (n = 1) has come with its first object, m."""
    place = next(iter(state.objects.values()))[0, :3]
    return lifted(place - state.tool_position[0], float(place[2]))


class Watch:
    """Give the operator control for `LONGEST` after a lack of progress, or if the fingers descend beside the object."""

    def __init__(self) -> None:
        self.reset(0.0)

    def reset(self, now: float) -> None:
        """Begin an episode, without control."""
        self.best, self.improved, self.aligned = float("-inf"), now, now
        self.began: float | None = None
        """When control was taken, s."""

    def __call__(self, offset: Tensor, height: float, width: float, now: float) -> bool:
        """Return whether the operator has control.

        `offset` (3,) is from the tool to the object and `height` that of the object, m; `width` is the gripper's
        opening, 0 to 1.
        """
        score = lifted(offset, height)
        if score > self.best + PROGRESS:
            self.best, self.improved = score, now
        missing = float(offset[:2].norm()) > BESIDE and float(offset[2]) > -ABOVE and width > 0.6
        if not missing:
            self.aligned = now
        if self.began is None and (now - self.improved > PATIENCE or now - self.aligned > GLANCE):
            self.began = now
        elif self.began is not None and now - self.began > LONGEST:
            self.reset(now)
        return self.began is not None
