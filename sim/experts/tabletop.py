"""A demonstrator that does what an instruction asks, from the true places of all objects.

Each instruction is a row of waypoints for the tool, relative to objects: above the object, at it, and so on, with the
gripper open or shut. The next one begins when the tool has arrived, or has been close for long enough. The row begins
anew when the object is not in the gripper where it should be, and when another instruction comes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.interface.control import Controller
from robot_rl.interface.spec import VectorSpec
from sim.experts.lift import CLUMSY as HASTY
from sim.experts.lift import STEADY, Skill
from sim.tasks.tabletop import TASK

__all__ = ["CLUMSY", "STEADY", "TabletopExpert"]
CLUMSY = Skill(aim=0.004, tremor=0.1, haste=HASTY.haste, gain=HASTY.gain)
OPEN, SHUT = 1.0, -1.0
SAFE, DEEP = 0.12, 0.005
"""Heights of the tool above an object's centre while it travels and when it grasps, m."""
LOST = 0.05
"""Distance of the object from the tool at which it is not in the gripper, m."""
ARRIVED, PATIENCE = 0.012, 12
"""Distance from a waypoint that is near enough, m, and control periods after which it counts as reached anyway."""


@dataclass(frozen=True)
class Waypoint:
    """A goal of the tool."""

    near: int
    """Index of the object that it is relative to."""
    offset: tuple[float, float, float]
    """m"""
    gripper: float
    hold: int = 0
    """Control periods to stay."""
    fixed: bool = False
    """Relative to where the object was when this waypoint began: it may move with the tool."""
    carries: bool = False
    """The object of the first waypoint is in the gripper."""


def waypoints(success: str) -> list[Waypoint]:
    """Return the way to satisfy a success test of the task."""
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
        return [
            above,
            at,
            Waypoint(k, (0, 0, DEEP), SHUT, 4, fixed=True),
            Waypoint(k, (0, side * 0.5, 0.012), SHUT, 100, carries=True),
        ]
    other = names.index(rest[0])
    away = (0.0, 0.0) if verb == "inside" else (0.062, 0.0)
    low = 0.035 if verb == "inside" else 0.012
    carried = [Waypoint(other, (*away, z), SHUT, fixed=True, carries=True) for z in (SAFE + 0.02, low)]
    freed = [Waypoint(other, (*away, z), OPEN, hold, fixed=True) for z, hold in ((0.035, 4), (SAFE, 100))]
    return [*grasp, *carried, *freed]


class TabletopExpert:
    """Follow waypoints. Batched, with memory per environment."""

    def __init__(self, observations: VectorSpec, controller: Controller, num_envs: int, skill: Skill, seed: int = 0):
        self.skill, self.controller = skill, controller
        self.tool, self.index = observations.slice("tool_position"), observations.slice("instruction")
        self.things = [observations.slice(f"{o.name}_position") for o in TASK.scene.objects]
        self.step = float(controller.twist_limit[0])
        self.rng = torch.Generator().manual_seed(seed)
        ways = [waypoints(each.success) for each in TASK.interface.instructions]
        longest = max(map(len, ways))
        table = [[*way, *[way[-1]] * (longest - len(way))] for way in ways]
        self.near = torch.tensor([[w.near for w in way] for way in table])
        self.offset = torch.tensor([[w.offset for w in way] for way in table])
        self.gripper = torch.tensor([[w.gripper for w in way] for way in table])
        self.hold = torch.tensor([[w.hold for w in way] for way in table])
        self.fixed = torch.tensor([[w.fixed for w in way] for way in table])
        self.carries = torch.tensor([[w.carries for w in way] for way in table])
        self.aim, self.speed = torch.zeros(num_envs, 3), torch.ones(num_envs, 1)
        self.noise = torch.zeros(num_envs, controller.actions.size)
        self.at = torch.zeros(num_envs, dtype=torch.long)
        """Waypoint (n,) of each environment."""
        self.since = torch.zeros(num_envs, dtype=torch.long)
        """Control periods (n,) since it began."""
        self.base = torch.zeros(num_envs, 3)
        """Where its object was when it began (n, 3)."""
        self.instruction = torch.full((num_envs,), -1)
        """Instruction (n,) that is followed; -1: none yet."""
        self.reset(torch.arange(num_envs))

    def reset(self, ids: Tensor) -> None:
        """Begin episodes `ids`."""
        count, rng = len(ids), self.rng
        self.aim[ids, :2] = self.skill.aim * torch.randn(count, 2, generator=rng)
        self.speed[ids] = 1 - self.skill.haste * torch.rand(count, 1, generator=rng)
        self.noise[ids], self.at[ids], self.since[ids] = 0.0, 0, 0

    def act(self, observation: dict[str, Tensor]) -> Tensor:
        """Return actions (n, A) in [-1, 1] for observations (n, D)."""
        state = observation["observation.state"]
        rows, instruction = torch.arange(len(state)), state[:, self.index.start].long()
        places = torch.stack([state[:, where] for where in self.things], 1)
        off = (places[rows, self.near[instruction, 0]] - state[:, self.tool]).norm(dim=1)
        again = (instruction != self.instruction) | (self.carries[instruction, self.at] & (off > LOST))
        self.at, self.since = torch.where(again, 0, self.at), torch.where(again, 0, self.since)
        self.instruction = instruction
        here = places[rows, self.near[instruction, self.at]]
        self.base = torch.where((self.since == 0)[:, None], here, self.base)
        anchor = torch.where(self.fixed[instruction, self.at][:, None], self.base, here)
        goal = anchor + self.offset[instruction, self.at] + self.aim - state[:, self.tool]
        self.since = self.since + 1
        away, tired = goal.norm(dim=1), self.since > PATIENCE + self.hold[instruction, self.at]
        arrived = (away < ARRIVED) | (tired & (away < 0.03))
        done = arrived & (self.since > self.hold[instruction, self.at])
        gripper = self.gripper[instruction, self.at]
        motion = self.skill.gain * goal / self.step
        motion = self.speed * motion / motion.abs().amax(-1, keepdim=True).clamp_min(1)
        self.noise = 0.7 * self.noise + 0.7 * self.skill.tremor * torch.randn(self.noise.shape, generator=self.rng)
        twist = torch.cat([motion + self.noise[:, :3], torch.zeros(len(state), 3)], 1)
        last = self.near.shape[1] - 1
        self.since = torch.where(done & (self.at < last), 0, self.since)
        self.at = torch.where(done, (self.at + 1).clamp(max=last), self.at)
        return self.controller.from_twist(twist, gripper[:, None])
