"""Smooth hand-back from a person to the policy, the same in simulation and on a robot."""

import math

from torch import Tensor

from robot_rl.interface.control import Controller

BLEND = 0.4
"""Time in which the policy's motion grows to its full size after a person has let go, s."""


class HandBack:
    """Blend the policy's first actions after a correction with holding, in which nothing moves::

        period    -1       0     1    2    3   ...  8
        executed  person   hold  1/8  2/8  3/8      8/8 of the policy's motion (20 Hz)

    The policy's action of period 0 was planned before the person let go, so it is not executed. Periods in which the
    policy does not move, because it still plans, do not count. The gripper is not blended: it opens or closes only.
    """

    def __init__(self, controller: Controller):
        self.controller = controller
        self.periods = math.ceil(BLEND * controller.config.rate)
        self._next = self.periods
        """Number of the next period in which the policy moves; from `periods` on its actions are not changed."""

    def reset(self) -> None:
        """Begin an episode, in which nothing has been handed back."""
        self._next = self.periods

    def begin(self) -> None:
        """Take note that the robot holds in this period, the first after a correction."""
        self._next = 1

    def __call__(self, action: Tensor) -> Tensor:
        """Return the action to execute in place of the policy's `action` (1, A)."""
        if self._next >= self.periods:
            return action
        twist, gripper = self.controller.to_twist(action)
        if not bool(twist.any()):
            return action
        share, self._next = self._next / self.periods, self._next + 1
        return self.controller.from_twist(share * twist, gripper)


def hand_back_of(controller: Controller) -> HandBack | None:
    """Return the blending of a controller's actions; None if a person cannot replace them. Such a robot walks, where
    holding would make it fall: a person gives it commands, which `Steering` ramps."""
    return HandBack(controller) if bool(controller.twist_limit.any()) else None
