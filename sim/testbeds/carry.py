"""Carry: a hand takes an object on its left and carries it to the goal on its right; all starts are much alike."""

import torch
from torch import Tensor

from robot_rl.interface.spec import box
from sim.testbeds.base import Testbed

STEP = 0.06
"""Maximum motion of the hand per step and axis, m."""
REACH = 0.08
"""Distance between hand and object within which the hand takes the object, and keeps it, m."""
NEAR = 0.08
"""Distance between object and goal within which the task succeeds, m."""
HAND, OBJECT, GOAL = (0.0, -0.5), (-0.5, 0.0), (0.5, 0.0)
"""Middle of the starts of hand and object, and the goal, m."""
SPREAD = 0.05
"""Largest distance of a start from its middle, per axis, m."""


class Carry(Testbed):
    """State: hand (2), object (2), m; whether the hand holds the object (1)."""

    name, horizon, observation, action, draws = "carry", 50, 5, 2, 4
    goal = (
        "A hand takes an object when it comes within 0.08 m, and carries it to (0.5, 0) m; done when the object is "
        "within 0.08 m. An action of 1 moves the hand by 0.06 m."
    )
    fields = (
        box("hand_position", "x y", "m", -1, 1), box("object_position", "x y", "m", -1, 1),
        box("holds", "object", "1", 0, 1),
    )  # fmt: skip

    def start(self, u: Tensor) -> Tensor:
        middle = torch.tensor([*HAND, *OBJECT], device=u.device)
        return torch.cat([middle + SPREAD * (2 * u - 1), torch.zeros_like(u[:, :1])], 1)

    def advance(self, s: Tensor, a: Tensor) -> Tensor:
        hand, item = (s[:, :2] + STEP * a).clamp(-1, 1), s[:, 2:4]
        holds = (s[:, 4:] > 0.5) | ((hand - item).norm(dim=1, keepdim=True) < REACH)
        return torch.cat([hand, torch.where(holds, hand, item), holds.float()], 1)

    def outcome(self, s: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        success = self._left(s) < NEAR
        return success.float(), success, torch.zeros_like(success)

    def progress(self, s: Tensor) -> Tensor:
        """Return the negative weighted distance: 3 x object to goal + hand to object, m."""
        return -3 * self._left(s) - (s[:, :2] - s[:, 2:4]).norm(dim=1)

    def _left(self, s: Tensor) -> Tensor:
        return (s[:, 2:4] - torch.tensor(GOAL, device=s.device)).norm(dim=1)

    def expert(self, observation: Tensor, u: Tensor) -> Tensor:
        """Go to the object, then to the goal."""
        hand, item, holds = observation[:, :2], observation[:, 2:4], observation[:, 4:] > 0.5
        way = torch.where(holds, torch.tensor(GOAL, device=hand.device), item) - hand
        return way / way.abs().amax(1, keepdim=True).clamp_min(STEP)
