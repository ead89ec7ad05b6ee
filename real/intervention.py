"""Who acts: the policy, the person, or nobody. The person is above the policy and below the shield."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from real.teleop.commands import Operator, OperatorInput

logger = logging.getLogger(__name__)


class Phase(Enum):
    """State of the hand-over."""

    AUTONOMOUS = "autonomous"
    CORRECTING = "correcting"
    HANDING_BACK = "handing back"
    """First step after a correction: the policy's chunk is dropped and it looks anew."""
    PAUSED = "paused"
    """The device fell silent while it corrected: nobody acts until it speaks again or the episode ends."""
    STOPPED = "stopped"


_NEXT = {
    # phase: (operator holds, operator does not, device lost)
    Phase.AUTONOMOUS: (Phase.CORRECTING, Phase.AUTONOMOUS, Phase.AUTONOMOUS),
    Phase.CORRECTING: (Phase.CORRECTING, Phase.HANDING_BACK, Phase.PAUSED),
    Phase.HANDING_BACK: (Phase.CORRECTING, Phase.AUTONOMOUS, Phase.AUTONOMOUS),
    Phase.PAUSED: (Phase.CORRECTING, Phase.HANDING_BACK, Phase.PAUSED),
    Phase.STOPPED: (Phase.STOPPED, Phase.STOPPED, Phase.STOPPED),
}


@dataclass
class Decision:
    """What is executed in one control period."""

    action: Tensor
    """(1, A) in [-1, 1]"""
    phase: Phase
    takeover: bool
    """The correction begins here."""
    operator: Operator | None


class Arbiter:
    """Decides once per control period, so a takeover takes at most one.

    No jump: both sides send steps relative to the *measured* tool position through one controller and one shield.
    """

    def __init__(self, operator: OperatorInput | None):
        self.operator = operator
        self.phase = Phase.AUTONOMOUS
        self.steers = False
        """The person tells the policy where to go and does not act in its place: holding the dead-man changes nothing
        here."""

    @property
    def attended(self) -> bool:
        """Somebody can answer: a teleop device is open."""
        return self.operator is not None and self.operator.devices > 0

    def reset(self) -> None:
        """Start an episode under the policy's control."""
        self.phase = Phase.AUTONOMOUS

    def decide(self, policy_action: Tensor, last_action: Tensor) -> Decision:
        """Choose between the policy's action (1, A) and the person's; `last_action` is what was executed before.

        A gripper value of exactly 0 leaves the gripper as it was: a takeover does not drop what it holds.
        """
        operator = self.operator.read() if self.operator else None
        before = self.phase
        if operator is not None and operator.stop:
            self.phase = Phase.STOPPED
        elif not self.steers:
            said = 1 if operator is None else 0 if operator.held else 2 if operator.lost else 1
            self.phase = _NEXT[before][said]
        if self.phase is Phase.PAUSED and before is not Phase.PAUSED:
            logger.warning("the operator's device fell silent during a correction: the robot holds")
        if self.phase in (Phase.HANDING_BACK, Phase.PAUSED):
            # Standing still, when handing back for one period: the policy's action was planned before the correction.
            still = torch.zeros_like(policy_action)
            still[0, 3:] = last_action[0, 3:]  # the gripper, if there is one
            return Decision(still, self.phase, False, operator)
        if self.phase is not Phase.CORRECTING or operator is None:
            return Decision(policy_action, self.phase, False, operator)
        gripper = operator.gripper or last_action[0, 3:].sum().item()
        hands = torch.tensor([[*operator.motion, gripper]], dtype=policy_action.dtype).clamp(-1, 1)
        action = hands[:, : policy_action.shape[1]]
        return Decision(action, self.phase, before is not Phase.CORRECTING, operator)
