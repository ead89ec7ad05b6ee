"""Maze: a point goes around two walls to a random goal; the walls usually block the straight line to the goal."""

import torch
from torch import Tensor

from robot_rl.interface.spec import box
from sim.testbeds.base import Testbed

STEP = 0.1
"""Maximum motion per step in x and in y, m."""
NEAR = 0.1
"""Distance from the goal within which the point succeeds, m."""
PASSAGES = ((-1 / 3, 0.5, 1.0), (1 / 3, -1.0, -0.5))
"""Each wall as y of its centre line, and x of the left and right end of its opening, m."""
HALF = 0.1
"""Half the thickness of a wall, m."""
MARGIN = 1e-3
"""Distance from a wall's face to a point that is moved out of the wall, m: the point is then clearly on one side."""
GATES = torch.tensor([(y + side, *ends) for y, *ends in PASSAGES for side in (-HALF, HALF)])
"""Gates, the two faces of each wall's opening, from bottom to top: y, and x of the left and right end, m."""


def gates(p: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
    """Return the points (n, gates, 2) where the shortest path between p (n, 2) and goal (n, 2) crosses each gate, and
    whether the path crosses the gate, bool (n, gates)."""
    low, high = upwards(p, goal)
    y, left, right = GATES.unbind(1)
    through = (low[:, 1:] < y) & (high[:, 1:] >= y)
    at = torch.stack([(left + right) / 2, y], 1).repeat(len(p), 1, 1)
    for _ in range(20):  # shorten the path at one gate after the other
        for k in range(len(GATES)):
            before = torch.where(through[:, k - 1 : k], at[:, k - 1], low) if k else low
            after = torch.where(through[:, k + 1 : k + 2], at[:, k + 1], high) if k + 1 < len(GATES) else high
            share = (y[k] - before[:, 1]) / (after[:, 1] - before[:, 1]).clamp_min(1e-6)
            at[:, k, 0] = (before[:, 0] + share * (after[:, 0] - before[:, 0])).clamp(left[k], right[k])
    return at, through


def upwards(p: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lower (n, 2) and the upper (n, 2) of the points p (n, 2) and goal (n, 2), by y in each row."""
    up = (p[:, 1] < goal[:, 1])[:, None]
    return torch.where(up, p, goal), torch.where(up, goal, p)


def path_length(p: Tensor, goal: Tensor) -> Tensor:
    """Return the length (n,) of the shortest path from p (n, 2) to goal (n, 2), m."""
    at, through = gates(p, goal)
    last, end = upwards(p, goal)
    length = p.new_zeros(len(p))
    for k in range(len(GATES)):
        point = torch.where(through[:, k : k + 1], at[:, k], last)
        length, last = length + (point - last).norm(dim=1), point
    return length + (end - last).norm(dim=1)


def outside(p: Tensor, before: Tensor | None = None) -> Tensor:
    """Return positions (n, 2) in which points inside a wall are moved out along y: to the side of the wall where
    `before` (n, 2) is, or without `before` to the nearer face."""
    x, y = p.unbind(1)
    for middle, left, right in PASSAGES:
        side = torch.where((y if before is None else before[:, 1]) < middle, -HALF - MARGIN, HALF + MARGIN)
        inside = ((y - middle).abs() < HALF) & ((x < left) | (x > right))
        y = torch.where(inside, middle + side, y)
    return torch.stack([x, y], 1)


class Maze(Testbed):
    """State: position (2), goal (2), m."""

    name, horizon, observation, action, draws = "maze", 100, 4, 2, 4
    goal = (
        "A point in a square of 2 m goes to the target, round two walls that it slides along; done within 0.1 m. An "
        "action of 1 moves it by 0.1 m."
    )
    fields = (box("position", "x y", "m", -1, 1), box("target_position", "x y", "m", -1, 1))

    def start(self, u: Tensor) -> Tensor:
        return torch.cat([outside(2 * u[:, :2] - 1), outside(2 * u[:, 2:] - 1)], 1)

    def advance(self, s: Tensor, a: Tensor) -> Tensor:
        """Move the point in x, then in y; walls stop each of the two motions."""
        p = s[:, :2]
        x = (p[:, 0] + STEP * a[:, 0]).clamp(-1, 1)
        for middle, left, right in PASSAGES:
            x = torch.where((p[:, 1] - middle).abs() < HALF, x.clamp(left, right), x)
        y = (p[:, 1] + STEP * a[:, 1]).clamp(-1, 1)
        return torch.cat([outside(torch.stack([x, y], 1), p), s[:, 2:]], 1)

    def outcome(self, s: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        success = (s[:, :2] - s[:, 2:]).norm(dim=1) < NEAR
        return success.float(), success, torch.zeros_like(success)

    def progress(self, s: Tensor) -> Tensor:
        return -path_length(s[:, :2], s[:, 2:])

    def expert(self, observation: Tensor, u: Tensor) -> Tensor:
        """Slide along the wall before the next gate and pass the gate; after the last gate, go to the goal."""
        p, goal = observation[:, :2], observation[:, 2:]
        at, through = gates(p, goal)
        up = p[:, 1] < goal[:, 1]
        first = torch.where(up, through.long().argmax(1), len(GATES) - 1 - through.flip(1).long().argmax(1))
        inside = torch.where(GATES[first, 1] > 0, STEP, -STEP)
        beyond = at[torch.arange(len(p)), first] + torch.stack([inside, torch.where(up, STEP, -STEP)], 1)
        aim = torch.where(through.any(1)[:, None], beyond, goal)
        return ((aim - p) / STEP).clamp(-1, 1)
