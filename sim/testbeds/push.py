"""Push: a finger pushes a puck without inertia to a goal; the puck must come within 3 cm of the goal."""

import torch
from torch import Tensor

from robot_rl.interface.spec import box
from robot_rl.interface.symmetry import Mirror, Reflection
from sim.testbeds.base import Testbed

STEP, SUBSTEPS = 0.03, 3
"""Maximum motion of the finger per step and axis, m, and number of contact substeps per step."""
CONTACT = 0.08
"""Sum of the radii of finger and puck, m."""
WALL = 0.5
"""Half of the arena's width, m."""
NEAR = 0.03
"""Distance between puck and goal within which the task succeeds, m."""


class Push(Testbed):
    """State: finger (2), puck (2), goal (2), m."""

    name, horizon, observation, action, draws = "push", 100, 10, 2, 6
    goal = (
        "A round finger pushes a round puck, both without inertia; done when the puck's centre is within 0.03 m of the "
        "goal. They touch at a distance of 0.08 m between their centres. An action of 1 moves the finger by 0.03 m."
    )
    mirror = Mirror(Reflection(range(10), [1, -1] * 5), Reflection([], []), Reflection([0, 1], [1, -1]))
    fields = (
        box("finger_position", "x y", "m", -0.5, 0.5), box("puck_position", "x y", "m", -0.5, 0.5),
        box("goal_position", "x y", "m", -0.3, 0.3), box("puck_to_finger", "x y", "m", -1, 1),
        box("goal_to_puck", "x y", "m", -0.8, 0.8),
    )  # fmt: skip

    def start(self, u: Tensor) -> Tensor:
        u = 2 * u - 1
        finger, puck, goal = 0.4 * u[:, :2], 0.25 * u[:, 2:4], 0.3 * u[:, 4:6]
        return self._contact(torch.cat([finger, puck, goal], 1))

    def advance(self, s: Tensor, a: Tensor) -> Tensor:
        for _ in range(SUBSTEPS):
            finger = (s[:, :2] + a * (STEP / SUBSTEPS)).clamp(-WALL, WALL)
            s = self._contact(torch.cat([finger, s[:, 2:]], 1))
        return s

    def _contact(self, s: Tensor) -> Tensor:
        """Resolve contact: move the puck out of the finger, or the finger out of a puck at a wall."""
        finger, puck, goal = s[:, :2], s[:, 2:4], s[:, 4:]
        away = puck - finger
        distance = away.norm(dim=1, keepdim=True).clamp_min(1e-6)
        touching = distance < CONTACT
        moved = (finger + away / distance * CONTACT).clamp(-WALL, WALL)
        puck = torch.where(touching, moved, puck)
        away = puck - finger
        distance = away.norm(dim=1, keepdim=True).clamp_min(1e-6)
        finger = torch.where(distance < CONTACT - 1e-6, puck - away / distance * CONTACT, finger)
        return torch.cat([finger, puck, goal], 1)

    def observe(self, s: Tensor) -> Tensor:
        return torch.cat([s, s[:, 2:4] - s[:, :2], s[:, 4:6] - s[:, 2:4]], 1)

    def restore(self, observation: Tensor) -> Tensor:
        return observation[:, :6]

    def outcome(self, s: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        success = (s[:, 2:4] - s[:, 4:6]).norm(dim=1) < NEAR
        return success.float(), success, torch.zeros_like(success)

    def progress(self, s: Tensor) -> Tensor:
        """Return the negative weighted distance: 3 x puck to goal + finger to the pushing side of the puck, m."""
        finger, puck, goal = s[:, :2], s[:, 2:4], s[:, 4:]
        left = (goal - puck).norm(dim=1)
        behind = puck - CONTACT * (goal - puck) / left[:, None].clamp_min(1e-6)
        return -3 * left - (behind - finger).norm(dim=1)

    def expert(self, observation: Tensor, u: Tensor) -> Tensor:
        """Move around the puck to the side opposite the goal, then push."""
        puck, goal = observation[:, 6:8], observation[:, 8:10]  # relative to the finger; to the puck
        ahead = goal / goal.norm(dim=1, keepdim=True).clamp_min(1e-6)
        side = torch.stack([-ahead[:, 1], ahead[:, 0]], 1)
        along = (puck * ahead).sum(1, keepdim=True)  # distance of the finger behind the puck
        off = (puck * side).sum(1, keepdim=True)
        pushing = (along > 0.5 * CONTACT) & (off.abs() < 0.02)
        push = ahead + 25 * off * side
        turn = torch.where(off >= 0, -1.0, 1.0)
        beside = puck + turn * 1.3 * CONTACT * side - CONTACT * ahead
        behind = puck - 1.25 * CONTACT * ahead
        around = torch.where(along > 0.8 * CONTACT, behind, beside)
        wanted = torch.where(pushing, push, around / STEP)
        return wanted / wanted.abs().amax(1, keepdim=True).clamp_min(1.0)
