"""Whether an arm can always stop before it leaves its workspace or touches itself or the table.

A goal is admitted if the commands of its control period are clear, and the arm can brake after each of them on a way
that is clear. By induction, an arm whose goal is refused can always brake on the way that was checked a period before.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from robot_rl.interface.collision import Clearance
from robot_rl.interface.kinematics import Kinematics

WAYPOINTS = 3
"""Commands of a period that are checked, with where the arm would stop after each; and points on the last way there."""
BEND = 0.15
"""How much less the clearance may be between the corners of a way than at them, relative to the square of the arm's
motion between them, 1/m: fitted to fuzzed motion of FR3, Panda and UR5e, where one dip of 0.3 mm exceeded it. Closer
corners are checked on points between them."""
SAME = 1e-6
"""Difference of distances that counts as none, m: rounding."""
TINY = 1e-9


class Motion(NamedTuple):
    """How commands move now, and how many follow before the next goal."""

    setpoint: Tensor
    """Set-points of the last commands, (n, D)."""
    rate: Tensor
    """Their rates, (n, E)."""
    tick: float
    """Time from one command to the next, s."""
    ticks: int
    """Commands until the next goal."""


class Braking:
    """Straight braking of joints with accelerations (J,), rad/s^2, within position limits `low` and `high` (J,), rad.

    All joints come to rest together, as with `Shield.follow` towards where they are. A joint close to its position
    limit is faster.
    """

    def __init__(self, acceleration: Tensor, low: Tensor, high: Tensor):
        self.acceleration, self.low, self.high = acceleration, low, high

    def seconds(self, position: Tensor, velocity: Tensor, tick: float = 0.0) -> Tensor:
        """Return the times (..., J), s, until joints at positions and velocities (..., J), rad and rad/s, rest."""
        speed = velocity.abs()
        room = torch.where(velocity > 0, self.high - position, position - self.low).clamp_min(0)
        return torch.minimum(
            (speed / self.acceleration).amax(-1, keepdim=True), 2 * room / speed.clamp_min(TINY) + tick
        )

    def end(self, position: Tensor, velocity: Tensor) -> Tensor:
        """Return the positions (..., J), rad, at which the joints rest."""
        return position + velocity * self.seconds(position, velocity) / 2

    def commands(self, motion: Motion) -> tuple[Tensor, Tensor]:
        """Return the positions (T, n, J) and velocities (n, J) of the period's commands."""
        time = self.seconds(motion.setpoint, motion.rate, motion.tick).clamp_min(TINY)
        after = motion.tick * torch.arange(1, motion.ticks + 1, dtype=time.dtype, device=time.device)[:, None, None]
        rates = motion.rate * (1 - after / time).clamp_min(0)
        return motion.setpoint + motion.tick * rates.cumsum(0), rates[-1]


class Stopping:
    """Check of commands against workspace and clearance, and of where the arm could stop."""

    def __init__(
        self, kinematics: Kinematics, braking: Braking, box: tuple[Tensor, Tensor], clearance: Clearance | None,
        least: float,
    ):  # fmt: skip
        """Args: `box`: lower and upper corner (3,), m, of the tool's workspace. `least`: clearance to keep, m."""
        self.kinematics, self.braking, self.box, self.clearance, self.least = (
            kinematics, braking, box, clearance, least,
        )  # fmt: skip
        steps = kinematics.links[1:, 3, :, 0, 0].norm(dim=-1)
        far = clearance.farthest(len(steps)) if clearance else torch.zeros(len(steps))
        far[-1] = far[-1].maximum(steps[-1])
        arms = [far[-1]]
        for step, own in zip(steps[:-1].flip(0), far[:-1].flip(0), strict=True):
            arms.append(torch.maximum(step + arms[-1], own))
        self.arms = torch.stack(arms[::-1])
        """Bounds of the distances from each joint to the spheres and the tool that it moves, (J,), m."""

    def refused(
        self, goal: Tensor, commands: Tensor, rates: Tensor, motion: Motion
    ) -> tuple[Tensor, Tensor]:
        """Return masks (n,) of goals (n, J), rad, that lead out of the workspace, and of those that lead too close.

        `commands`, `rates`: (T, n, J) positions, rad, and velocities, rad/s, of the period with this goal. Arms that
        are outside or too close already may move, but no worse than if they braked at once.
        """
        chosen = [-1 - k * len(commands) // WAYPOINTS for k in range(WAYPOINTS)]
        way = commands[chosen]
        ends = self.braking.end(way, rates[chosen])
        corners = torch.stack([goal, ends[0], motion.setpoint])
        spread = ((corners.amax(0) - corners.amin(0)) * self.arms).sum(-1)
        room, near = self._distances(corners[:2])
        rows = torch.minimum(room, near - self.least).amin(0) < BEND * spread.square()
        if goal.is_cuda:  # the question would cost more than the answer
            return self._check(goal, way, ends, *motion[:2])
        outside, close = torch.zeros_like(rows), torch.zeros_like(rows)
        if rows.any():
            outside[rows], close[rows] = self._check(
                goal[rows], way[:, rows], ends[:, rows], motion.setpoint[rows], motion.rate[rows]
            )
        return outside, close

    def _check(
        self, goal: Tensor, way: Tensor, ends: Tensor, start: Tensor, rate: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the masks of `refused` from points on the way: after each of `way` (W, n, J), rad, the arm stops at
        `ends`; the first is the last in time."""
        last = [way[0] + k / WAYPOINTS * (ends[0] - way[0]) for k in range(1, WAYPOINTS)]
        room, near = (d.amin(0) for d in self._distances(torch.stack([*way, *ends, *last, (ends[0] + goal) / 2, goal])))
        outside, close = room < 0, near < self.least
        if goal.is_cuda or (outside | close).any():
            halt = self.braking.end(start, rate)
            now, parted = (d.amin(0) for d in self._distances(torch.stack([start, (start + halt) / 2, halt])))
            outside, close = outside & (room <= now + SAME), close & (near < parted - SAME)
        return outside, close

    def _distances(self, joints: Tensor) -> tuple[Tensor, Tensor]:
        """Return, at joint positions (P, n, J), rad, how far the tool is inside the workspace, negative: outside, and
        the clearance, (P, n), m."""
        position, _, origins, axes = self.kinematics.chain(joints.flatten(0, 1))
        inside = torch.minimum(position.T - self.box[0], self.box[1] - position.T)
        room = torch.where((inside < 0).any(-1), inside.clamp_max(0).sum(-1), inside.amin(-1))
        near = self.clearance(origins, axes) if self.clearance else torch.full_like(room, torch.inf)
        return room.view(joints.shape[:2]), near.view(joints.shape[:2])
