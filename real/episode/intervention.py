"""Choose the executed action: the policy's, the person's, or a hold. All three pass the same shield."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from real.teleop.commands import Operator, OperatorInput
from robot_rl.interface.control import Controller
from robot_rl.operators.hand_back import hand_back_of

logger = logging.getLogger(__name__)


class Phase(Enum):
    """Phase of control between policy and person."""

    AUTONOMOUS = "autonomous"
    CORRECTING = "correcting"
    HANDING_BACK = "handing back"
    """First step after a correction: the policy's chunk is discarded and a new one is planned. Its motion then grows,
    see `HandBack`."""
    PAUSED = "paused"
    """The device fell silent during a correction: the robot holds until the device returns or the episode ends."""
    STOPPED = "stopped"


class Button(Enum):
    """State of the operator's enable button."""

    HELD = "held"
    RELEASED = "released"
    LOST = "lost"
    """The device fell silent while the button was held."""

    @classmethod
    def of(cls, operator: Operator | None) -> Button:
        """Return the button's state in an operator input; RELEASED without a device."""
        if operator is None:
            return cls.RELEASED
        return cls.HELD if operator.held else cls.LOST if operator.lost else cls.RELEASED


_NEXT = {
    (Phase.AUTONOMOUS, Button.HELD): Phase.CORRECTING,
    (Phase.CORRECTING, Button.RELEASED): Phase.HANDING_BACK,
    (Phase.CORRECTING, Button.LOST): Phase.PAUSED,
    (Phase.HANDING_BACK, Button.HELD): Phase.CORRECTING,
    (Phase.HANDING_BACK, Button.RELEASED): Phase.AUTONOMOUS,
    (Phase.HANDING_BACK, Button.LOST): Phase.AUTONOMOUS,
    (Phase.PAUSED, Button.HELD): Phase.CORRECTING,
    (Phase.PAUSED, Button.RELEASED): Phase.HANDING_BACK,
}
"""Next phase by present phase and button; all other pairs keep the phase."""


@dataclass
class Decision:
    """Decision on the action of one control period."""

    action: Tensor
    """Action to execute, (1, A) in [-1, 1]."""
    phase: Phase
    takeover: bool
    """A correction begins in this step."""
    operator: Operator | None


class Arbiter:
    """Decide once per control period between policy and person. The actions of both pass one controller, which starts
    from the measured state, and one shield, so a takeover causes no jump."""

    def __init__(self, operator: OperatorInput | None, controller: Controller, steers: bool = False):
        """Args: `steers`: the person sets the policy's velocity command instead of replacing its actions."""
        self.operator, self.controller = operator, controller
        self.phase = Phase.AUTONOMOUS
        self.hand_back = None if steers else hand_back_of(controller)
        self.acts = self.hand_back is not None
        """A person can replace the policy's actions. If False, the enable button does not change the phase."""
        if operator and not (steers or self.acts):
            logger.warning("this policy's actions move no tool: a person can stop the robot but not take over")

    @property
    def attended(self) -> bool:
        """Return whether a teleop device is connected."""
        return self.operator is not None and self.operator.devices > 0

    def reset(self) -> None:
        """Start an episode under the policy's control."""
        self.phase = Phase.AUTONOMOUS
        if self.hand_back:
            self.hand_back.reset()

    def decide(self, policy_action: Tensor, hold: Tensor) -> Decision:
        """Choose among the policy's action (1, A), the person's action, and `hold` (1, A). With a gripper input of 0,
        the person's action has the gripper value of `hold`."""
        operator = self.operator.read() if self.operator else None
        before = self.phase
        if operator is not None and operator.stop:
            self.phase = Phase.STOPPED
        elif self.acts:
            self.phase = _NEXT.get((before, Button.of(operator)), before)
        if self.phase is Phase.PAUSED and before is not Phase.PAUSED:
            logger.warning("the operator's device fell silent during a correction: the robot holds")
        if self.phase in (Phase.HANDING_BACK, Phase.PAUSED):
            if self.hand_back:
                self.hand_back.begin()
            # The policy's action was planned before the correction.
            return Decision(hold, self.phase, False, operator)
        if self.phase is not Phase.CORRECTING or operator is None:
            action = self.hand_back(policy_action) if self.hand_back else policy_action
            return Decision(action, self.phase, False, operator)
        twist = torch.tensor([[*operator.motion, *operator.rotation]], dtype=hold.dtype)
        gripper = torch.tensor([[operator.gripper]], dtype=hold.dtype)
        action = self.controller.from_twist(twist, gripper, hold)
        return Decision(action, self.phase, before is not Phase.CORRECTING, operator)
