"""Via: a point goes to a goal through a via-point; its actions by chance, step by step, lead to neither."""

import torch
from torch import Tensor

from robot_rl.interface.spec import box
from sim.testbeds.base import Testbed

STEP = 0.04
"""Maximum motion per step and axis, m."""
NEAR = 0.15
"""Distance from via-point and goal within which the point reaches them, m."""


class Via(Testbed):
    """State: position (2), via-point (2), goal (2), m; whether the via-point was reached; not observed: whether it was
    reached before the last step, and the last three actions (6). Reaching the via-point pays 0.5, then the goal 0.5."""

    name, horizon, observation, action, draws = "via", 60, 7, 2, 6
    goal = (
        "A point goes to the via-point, then to the target; each is reached within 0.15 m. An action of 1 moves it by "
        "0.04 m."
    )
    fields = (
        box("position", "x y", "m", -1.2, 1.2), box("via_position", "x y", "m", -1, 1),
        box("target_position", "x y", "m", -1, 1), box("passed", "via", "1", 0, 1),
    )  # fmt: skip

    def start(self, u: Tensor) -> Tensor:
        x, y = 2 * u[:, :3] - 1, 2 * u[:, 3:] - 1
        position = torch.stack([0.1 * x[:, 0], -0.8 + 0.1 * y[:, 0]], 1)
        via = torch.stack([x[:, 1].sign() * (0.5 + 0.2 * x[:, 1].abs()), 0.2 * y[:, 1]], 1)
        goal = torch.stack([0.3 * x[:, 2], 0.8 + 0.1 * y[:, 2]], 1)
        return torch.cat([position, via, goal, torch.zeros(len(u), 8, device=u.device)], 1)

    def advance(self, s: Tensor, a: Tensor) -> Tensor:
        at = (s[:, :2] + STEP * a).clamp(-1.2, 1.2)
        passed = (s[:, 6:7] > 0.5) | ((at - s[:, 2:4]).norm(dim=1, keepdim=True) < NEAR)
        return torch.cat([at, s[:, 2:6], passed.float(), s[:, 6:7], a, s[:, 8:12]], 1)

    def observe(self, s: Tensor) -> Tensor:
        return s[:, :7]

    def outcome(self, s: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        success = (s[:, 6] > 0.5) & ((s[:, :2] - s[:, 4:6]).norm(dim=1) < NEAR)
        reward = 0.5 * (s[:, 6] - s[:, 7]) + 0.5 * success
        return reward, success, torch.zeros_like(success)

    def measure(self, s: Tensor, a: Tensor) -> dict[str, Tensor]:
        now, last, before = s[:, 8:].unflatten(1, (3, 2)).unbind(1)
        return {"jerk": STEP * self.rate**3 * (now - 2 * last + before).norm(dim=1)}

    def progress(self, s: Tensor) -> Tensor:
        """Return the negative length of the way to the goal through the via-point, m."""
        to_via, to_goal = (s[:, :2] - s[:, 2:4]).norm(dim=1), (s[:, :2] - s[:, 4:6]).norm(dim=1)
        return -torch.where(s[:, 6] > 0.5, to_goal, to_via + (s[:, 2:4] - s[:, 4:6]).norm(dim=1))

    def expert(self, observation: Tensor, u: Tensor) -> Tensor:
        """Go to the via-point, then to the goal."""
        at, via, goal, passed = observation.split([2, 2, 2, 1], 1)
        way = torch.where(passed > 0.5, goal, via) - at
        return way / way.abs().amax(1, keepdim=True).clamp_min(STEP)
