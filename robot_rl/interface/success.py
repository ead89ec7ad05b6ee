"""Success and failure tests: batched functions of the robot state, named in a task and stored in its bundle.

A test is built by a function annotated to return `Test`, with arguments written as in `robot_rl.interface.call`:
`lifted:cube:0.12`. Other packages register tests as entry points of group `robot_rl.tests`, or an import path names the
function.
"""

import math
from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from robot_rl.interface.call import read_call
from robot_rl.interface.observations import down
from robot_rl.interface.rotation import heading
from robot_rl.interface.state import ABSENT, JointedName, ObjectName, RobotState
from robot_rl.util.limits import Interval, NonNegativeFloat, NonNegativeInt, PositiveFloat
from robot_rl.util.registry import Registry
from robot_rl.util.rows import Rows

Test = Callable[[RobotState], Tensor]
"""Function from a state to (n,) bool."""


class SuccessHold(Rows):
    """Counter of each environment's consecutive control periods with success."""

    ROWS = ("held",)

    def __init__(self, periods: int, n: int = 1, device: torch.device | str = "cpu"):
        """`periods` is the required number of consecutive control periods."""
        self.periods = periods
        self.held = torch.zeros(n, dtype=torch.long, device=device)
        """(n,) number of consecutive control periods with success so far."""

    def __call__(self, shown: Tensor) -> Tensor:
        """Count `shown` (n,) bool, success in this control period; return (n,) bool, success for `periods` periods."""
        self.held = torch.where(shown, self.held + 1, 0)
        return self.held >= self.periods

    def reset(self, where: Tensor | slice = slice(None)) -> None:
        """Reset the counters of environments `where`, indices or a mask (n,); of all environments by default."""
        self.held[where] = 0


def lifted(name: ObjectName, height: NonNegativeFloat) -> Test:
    """Test that the object's centre is above `height`, m, and within 5 cm of the tool, so it is not thrown."""

    def test(state: RobotState) -> Tensor:
        position = state.objects[name][:, :3]
        return (position[:, 2] > height) & ((position - state.tool_position).norm(dim=-1) < 0.05)

    return test


def reached(name: ObjectName, distance: PositiveFloat) -> Test:
    """Test that the tool is within `distance`, m, of the object's centre."""
    return lambda state: (state.objects[name][:, :3] - state.tool_position).norm(dim=-1) < distance


def fallen(tilt: Annotated[float, Interval(ge=0, le=180)], height: NonNegativeFloat) -> Test:
    """Test that the trunk is tilted by more than `tilt`, degrees, or, if its height above the ground is known, below
    `height`, m."""
    upright = math.cos(math.radians(tilt))

    def test(state: RobotState) -> Tensor:
        over = down(state.base_quat)[:, 2] > -upright
        return over if state.base_position is ABSENT else over | (state.base_height[:, 0] < height)

    return test


def standing(tilt: Annotated[float, Interval(ge=0, le=180)], height: NonNegativeFloat) -> Test:
    """Test that the trunk is tilted by at most `tilt`, degrees, and, if its height above the ground is known, at least
    `height`, m, high."""
    test = fallen(tilt, height)
    return lambda state: ~test(state)


def together(first: ObjectName, second: ObjectName, distance: PositiveFloat) -> Test:
    """Test that the centres of two objects are within `distance`, m, of each other."""
    return lambda state: (state.objects[first][:, :3] - state.objects[second][:, :3]).norm(dim=-1) < distance


def beyond(name: ObjectName, y: float) -> Test:
    """Test that the object is on the table beyond `y`, m: left of a positive `y`, or right of a negative `y`."""

    def test(state: RobotState) -> Tensor:
        position = state.objects[name][:, :3]
        far = position[:, 1] > y if y > 0 else position[:, 1] < y
        return far & (position[:, 2] < 0.05)

    return test


def beside(first: ObjectName, second: ObjectName, distance: PositiveFloat) -> Test:
    """Test that two objects on the table are within `distance`, m, and the tool is over 4 cm from the first object."""

    def test(state: RobotState) -> Tensor:
        one, other = (state.objects[name][:, :3] for name in (first, second))
        low = torch.maximum(one[:, 2], other[:, 2]) < 0.05
        away = (one - state.tool_position).norm(dim=-1) > 0.04
        return ((one - other)[:, :2].norm(dim=-1) < distance) & low & away

    return test


def inside(name: ObjectName, tray: ObjectName, half: PositiveFloat) -> Test:
    """Test that the object's centre is in a tray of half-width `half`, m, and the tool is over 4 cm from the object."""

    def test(state: RobotState) -> Tensor:
        one, other = (state.objects[key][:, :3] for key in (name, tray))
        away = (one - state.tool_position).norm(dim=-1) > 0.04
        return ((one - other)[:, :2].abs() < half).all(1) & ((one - other)[:, 2].abs() < 0.04) & away

    return test


def stacked(name: ObjectName, under: ObjectName, distance: PositiveFloat) -> Test:
    """Test that an object lies on another: its centre within `distance`, m, of the vertical through the other's and
    above its centre by 2 to 12 cm, and the tool over 4 cm from it."""

    def test(state: RobotState) -> Tensor:
        one, other = (state.objects[key][:, :3] for key in (name, under))
        gap = one - other
        away = (one - state.tool_position).norm(dim=-1) > 0.04
        return (gap[:, :2].norm(dim=-1) < distance) & (gap[:, 2] > 0.02) & (gap[:, 2] < 0.12) & away

    return test


def inserted(name: ObjectName, socket: ObjectName, distance: PositiveFloat, depth: float) -> Test:
    """Test that a peg is in its socket: its centre within `distance`, m, of the socket's axis, and at most `depth`, m,
    above the socket's centre."""

    def test(state: RobotState) -> Tensor:
        gap = state.objects[name][:, :3] - state.objects[socket][:, :3]
        return (gap[:, :2].norm(dim=-1) < distance) & (gap[:, 2] < depth)

    return test


def matched(
    name: ObjectName, goal: ObjectName, distance: PositiveFloat, angle: Annotated[float, Interval(gt=0, le=180)]
) -> Test:
    """Test that an object is within `distance`, m, horizontally, and `angle`, degrees, of yaw of the pose of a goal."""

    def test(state: RobotState) -> Tensor:
        one, other = state.objects[name], state.objects[goal]
        aligned = (heading(one[:, 3:]) * heading(other[:, 3:])).sum(-1) > math.cos(math.radians(angle))
        return ((one - other)[:, :2].norm(dim=-1) < distance) & aligned

    return test


def opened(name: JointedName, least: float, joint: NonNegativeInt = 0) -> Test:
    """Test that a joint of the object, by default its first, is beyond `least`, m or rad."""
    return lambda state: state.object_joints[name][:, joint] > least


TESTS: dict[str, Callable[..., Test]] = {
    f.__name__: f
    for f in (lifted, reached, together, beyond, beside, inside, fallen, standing, stacked, inserted, matched, opened)
}

tests = Registry("test", TESTS)


def state_test(text: str) -> Test:
    """Build a test from text such as "lifted:cube:0.12"."""
    test: Test = read_call(tests, text, Test)()
    return test


def objects_of(text: str) -> tuple[str, ...]:
    """Return the names of the views of objects that a test reads, such as `cube` and `drawer.joints`."""
    return read_call(tests, text, Test).objects
