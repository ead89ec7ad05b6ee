"""What every controller is: a function from actions to commands."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from robot_rl.interface.command import Command
from robot_rl.interface.spec import VectorSpec
from robot_rl.interface.state import ABSENT, RobotState

if TYPE_CHECKING:
    from robot_rl.interface.control import ControllerConfig


@dataclass
class Target:
    """Command and gripper target at the end of a control period."""

    command: Command
    gripper: Tensor
    """(n, 1) distance between the fingers, m."""
    reference: Tensor = ABSENT
    """(n, R) controller's reference for the next control period, see `RobotState.reference`."""


class Controller(Protocol):
    """Convert actions to commands. Controllers are stateless, so control can switch between a policy and a person
    without a jump. The caller keeps `reference`, the only value that persists between control periods."""

    command: type[Command]
    """Kind of the command that the controller gives."""
    actions: VectorSpec
    twist_limit: Tensor
    """(6,) largest translation along, m, and rotation about, rad, the base frame's axes per action; 0: uncontrolled."""

    @property
    def config(self) -> "ControllerConfig":
        """Return the controller's config."""

    def reference(self, count: int) -> Tensor:
        """Return references (count, R) for the first control period; ABSENT for a controller without a reference."""

    def __call__(self, state: RobotState, action: Tensor) -> Target:
        """Return targets for physical actions (n, A) and measured states of n robots."""

    def hold_action(self, last: Tensor, gripper: Tensor) -> Tensor:
        """Return actions (n, A) in [-1, 1] that hold position. `last`: (n, A) previous actions; `gripper`: (n, 1)
        target distance between the fingers, m."""

    def from_twist(self, twist: Tensor, gripper: Tensor, hold: Tensor | None = None) -> Tensor:
        """Return actions (n, A), clipped to [-1, 1], that move the tool by a twist; NaN values stay NaN.

        Args:
            twist: (n, 6) translation x y z and rotation vector x y z in the base frame, in [-1, 1] relative to
                `twist_limit`; uncontrolled directions are ignored.
            gripper: (n, 1) from -1, closed, to 1, open; 0 keeps the gripper of `hold`.
            hold: (n, A) the result of `hold_action`; None if no gripper value is 0.

        Raises:
            ConfigError: the controller does not move a tool.
        """

    def to_twist(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Invert `from_twist`: return the twist (n, 6) and gripper (n, 1) of actions (n, A). Uncontrolled directions of
        the twist are 0.

        Raises:
            ConfigError: the controller does not move a tool.
        """
