"""Demonstrators that follow waypoints for the tool, relative to objects, with the gripper open or closed.

The next waypoint begins when the tool has arrived, or has been near the present waypoint for long enough. The sequence
restarts when the object that should be in the gripper is not in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from robot_rl.interface.control import Controller
from robot_rl.interface.spec import VectorSpec
from sim.experts.lift import ScriptedExpert, Skill

OPEN, SHUT = 1.0, -1.0
LOST = 0.05
"""Distance between tool and object above which the object is not in the gripper, m."""
ARRIVED, PATIENCE = 0.012, 12
"""Distance at which the tool has arrived at a waypoint, m, and control periods after which a larger distance counts."""

SEARCH = 0.002
"""Radius of the circle on which a slow waypoint is searched for, m: a peg slips into its hole."""


@dataclass(frozen=True)
class Waypoint:
    """Goal of the tool, relative to an object."""

    near: int
    """Index of the object."""
    offset: tuple[float, float, float]
    """Offset from the object, m."""
    gripper: float
    hold: int = 0
    """Number of control periods for which the tool stays at the waypoint."""
    fixed: bool = False
    """Whether the offset is from the object's position when this waypoint began; the object may move with the tool."""
    carries: bool = False
    """Whether the object of the first waypoint must be in the gripper."""
    moves: bool = False
    """Whether the object of the first waypoint, and not the tool, is to arrive."""
    near_by: float = ARRIVED
    """Distance at which the waypoint counts as reached, m."""
    speed: float = 1.0
    """Fraction of the largest speed and tremor. A slow waypoint is searched for on a circle of radius `SEARCH`."""


class WaypointExpert(ScriptedExpert):
    """Follow the waypoints of each environment's instruction; a task without instructions has one path."""

    def __init__(
        self, observations: VectorSpec, controller: Controller, num_envs: int, skill: Skill, seed: int,
        objects: Sequence[str], paths: Sequence[Sequence[Waypoint]],
    ):  # fmt: skip
        """`objects`: names of the objects whose indices the waypoints hold."""
        super().__init__(controller, num_envs, skill, seed)
        self.tool = observations.slice("tool_position")
        self.index = observations.slice("instruction") if len(paths) > 1 else None
        self.things = [observations.slice(f"{name}_position") for name in objects]
        longest = max(map(len, paths))
        table = [[*path, *[path[-1]] * (longest - len(path))] for path in paths]
        names = [field.name for field in fields(Waypoint)]
        columns = [torch.tensor([[getattr(p, name) for p in path] for path in table]) for name in names]
        self.near, self.offset, self.gripper, self.hold, *more = columns
        self.fixed, self.carries, self.moves, self.near_by, self.slow = more
        self.at = torch.zeros(num_envs, dtype=torch.long)
        """Index (n,) of the current waypoint."""
        self.since = torch.zeros(num_envs, dtype=torch.long)
        """Number of control periods (n,) since the current waypoint began."""
        self.base = torch.zeros(num_envs, 3)
        """Position (n, 3), m, of the current waypoint's object when that waypoint began."""
        self.instruction = torch.full((num_envs,), -1)
        """Index (n,) of the current instruction; -1: none yet."""
        self.reset(torch.arange(num_envs))

    def reset(self, ids: Tensor) -> None:
        super().reset(ids)
        self.at[ids], self.since[ids] = 0, 0

    def act(self, observation: dict[str, Tensor]) -> Tensor:
        """Return actions (n, A) in [-1, 1] for observations (n, D)."""
        state = observation["observation.state"]
        rows, tool = torch.arange(len(state)), state[:, self.tool]
        instruction = torch.zeros(len(state), dtype=torch.long)
        if self.index is not None:
            instruction = state[:, self.index.start].long()
        places = torch.stack([state[:, columns] for columns in self.things], 1)
        carried = places[rows, self.near[instruction, 0]]
        lost = self.carries[instruction, self.at] & ((carried - tool).norm(dim=1) > LOST)
        restart = (instruction != self.instruction) | lost
        self.at, self.since = torch.where(restart, 0, self.at), torch.where(restart, 0, self.since)
        self.instruction = instruction
        position = places[rows, self.near[instruction, self.at]]
        self.base = torch.where((self.since == 0)[:, None], position, self.base)
        anchor = torch.where(self.fixed[instruction, self.at][:, None], self.base, position)
        goal = anchor + self.offset[instruction, self.at]
        goal[:, :2] += self.aim
        goal -= torch.where(self.moves[instruction, self.at][:, None], carried, tool)
        self.since = self.since + 1
        distance, late = goal.norm(dim=1), self.since > PATIENCE + self.hold[instruction, self.at]
        near = self.near_by[instruction, self.at]
        arrived = (distance < near) | (late & (distance < 2.5 * near))
        done = arrived & (self.since > self.hold[instruction, self.at])
        gripper = self.gripper[instruction, self.at]
        speed = self.slow[instruction, self.at][:, None]
        circle = SEARCH * torch.stack([(self.since * 0.7).cos(), (self.since * 0.7).sin(), torch.zeros(len(state))], 1)
        slow = (goal + circle).clamp(-self.step * speed, self.step * speed)
        goal = torch.where(speed < 1, slow, goal)
        twist = torch.cat([self.move(goal, speed), torch.zeros(len(state), 3)], 1)
        last = self.near.shape[1] - 1
        self.since = torch.where(done & (self.at < last), 0, self.since)
        self.at = torch.where(done, (self.at + 1).clamp(max=last), self.at)
        return self.controller.from_twist(twist, gripper[:, None])
