"""Demonstrator that executes language instructions, from the true poses of all objects.

Each instruction is a sequence of waypoints for the tool relative to objects, with the gripper open or closed. The next
waypoint begins when the tool has arrived, or has been near the present waypoint for long enough. The sequence restarts
when the instruction changes, or when the object that should be in the gripper is not in the gripper.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from robot_rl.interface.control import Controller
from robot_rl.interface.spec import VectorSpec
from sim.experts.lift import ScriptedExpert, Skill
from sim.experts.turn import CLUMSY, STEADY
from sim.tasks.tabletop import TASK

__all__ = ["CLUMSY", "STEADY", "TabletopExpert"]
OPEN, SHUT = 1.0, -1.0
SAFE, DEEP = 0.12, 0.005
"""Heights of the tool above an object's centre for travelling and for grasping, m."""
LOST = 0.05
"""Distance between tool and object above which the object is not in the gripper, m."""
ARRIVED, PATIENCE = 0.012, 12
"""Distance at which the tool has arrived at a waypoint, m, and control periods after which a larger distance counts."""


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


def waypoints(success: str) -> list[Waypoint]:
    """Return waypoints that satisfy a success test of the task."""
    names = [o.name for o in TASK.scene.objects]
    verb, name, *rest = success.split(":")
    k = names.index(name)
    above, at = Waypoint(k, (0, 0, SAFE), OPEN), Waypoint(k, (0, 0, DEEP), OPEN)
    shut = Waypoint(k, (0, 0, DEEP), SHUT, 5, fixed=True)
    grasp = [above, at, shut, Waypoint(k, (0, 0, SAFE), SHUT, fixed=True, carries=True)]
    if verb == "reached":
        return [Waypoint(k, (0, 0, SAFE), SHUT), Waypoint(k, (0, 0, 0.02), SHUT, 100)]
    if verb == "lifted":
        return [*grasp[:3], Waypoint(k, (0, 0, 0.14), SHUT, 100, fixed=True, carries=True)]
    if verb == "beyond":
        side = 1 if float(rest[0]) > 0 else -1
        push = Waypoint(k, (0, side * 0.5, 0.012), SHUT, 100, carries=True)
        return [above, at, Waypoint(k, (0, 0, DEEP), SHUT, 4, fixed=True), push]
    other = names.index(rest[0])
    away = (0.0, 0.0) if verb == "inside" else (0.062, 0.0)
    low = 0.035 if verb == "inside" else 0.012
    carried = [Waypoint(other, (*away, z), SHUT, fixed=True, carries=True) for z in (SAFE + 0.02, low)]
    freed = [Waypoint(other, (*away, z), OPEN, hold, fixed=True) for z, hold in ((0.035, 4), (SAFE, 100))]
    return [*grasp, *carried, *freed]


class TabletopExpert(ScriptedExpert):
    """Follow the waypoints of each environment's instruction."""

    def __init__(self, observations: VectorSpec, controller: Controller, num_envs: int, skill: Skill, seed: int = 0):
        super().__init__(controller, num_envs, skill, seed)
        self.tool, self.index = observations.slice("tool_position"), observations.slice("instruction")
        self.things = [observations.slice(f"{o.name}_position") for o in TASK.scene.objects]
        paths = [waypoints(each.success) for each in TASK.interface.instructions]
        longest = max(map(len, paths))
        table = [[*path, *[path[-1]] * (longest - len(path))] for path in paths]
        self.near, self.offset, self.gripper, self.hold, self.fixed, self.carries = (
            torch.tensor([[getattr(waypoint, field.name) for waypoint in path] for path in table])
            for field in fields(Waypoint)
        )
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
        rows, instruction = torch.arange(len(state)), state[:, self.index.start].long()
        places = torch.stack([state[:, columns] for columns in self.things], 1)
        gap = (places[rows, self.near[instruction, 0]] - state[:, self.tool]).norm(dim=1)
        restart = (instruction != self.instruction) | (self.carries[instruction, self.at] & (gap > LOST))
        self.at, self.since = torch.where(restart, 0, self.at), torch.where(restart, 0, self.since)
        self.instruction = instruction
        position = places[rows, self.near[instruction, self.at]]
        self.base = torch.where((self.since == 0)[:, None], position, self.base)
        anchor = torch.where(self.fixed[instruction, self.at][:, None], self.base, position)
        goal = anchor + self.offset[instruction, self.at]
        goal[:, :2] += self.aim
        goal -= state[:, self.tool]
        self.since = self.since + 1
        distance, late = goal.norm(dim=1), self.since > PATIENCE + self.hold[instruction, self.at]
        arrived = (distance < ARRIVED) | (late & (distance < 0.03))
        done = arrived & (self.since > self.hold[instruction, self.at])
        gripper = self.gripper[instruction, self.at]
        twist = torch.cat([self.move(goal), torch.zeros(len(state), 3)], 1)
        last = self.near.shape[1] - 1
        self.since = torch.where(done & (self.at < last), 0, self.since)
        self.at = torch.where(done, (self.at + 1).clamp(max=last), self.at)
        return self.controller.from_twist(twist, gripper[:, None])
