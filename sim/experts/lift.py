"""Demonstrator that lifts a cube, with errors, from observations alone."""

from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.interface.control import Controller
from robot_rl.interface.spec import VectorSpec


@dataclass(frozen=True)
class Skill:
    """Errors and speed of a demonstrator."""

    aim: float = 0.012
    """Standard deviation of the error of the object's estimated position, m; the error is sampled per episode."""
    tremor: float = 0.2
    """Standard deviation of the action noise, in units of the largest action."""
    haste: float = 0.4
    """Range of speeds: each episode has a speed factor between 1 - haste and 1."""
    gain: float = 0.5
    """Fraction of the remaining distance that is commanded in one action."""


CLUMSY = Skill()
"""Skill of a fast demonstrator with large errors."""
STEADY = Skill(aim=0.002, tremor=0.05, haste=0.1, gain=1.0)
"""Skill of an operator that corrects a policy."""


class ScriptedExpert:
    """Base class of demonstrators that move the tool to goals with the errors of a `Skill`, in all environments."""

    def __init__(self, controller: Controller, num_envs: int, skill: Skill, seed: int):
        self.skill, self.controller = skill, controller
        self.step = float(controller.twist_limit[0])
        self.generator = torch.Generator().manual_seed(seed)
        self.aim, self.speed = torch.zeros(num_envs, 2), torch.ones(num_envs, 1)
        self.noise = torch.zeros(num_envs, controller.actions.size)

    def reset(self, ids: Tensor) -> None:
        """Draw the errors of new episodes in environments `ids`."""
        k, g = len(ids), self.generator
        self.aim[ids] = self.skill.aim * torch.randn(k, 2, generator=g)
        self.speed[ids] = 1 - self.skill.haste * torch.rand(k, 1, generator=g)
        self.noise[ids] = 0.0

    def move(self, goal: Tensor, tremor: Tensor | float = 1.0) -> Tensor:
        """Return noisy translations (n, 3), in units of the largest action, towards goals (n, 3) in m from the tool.
        `tremor` scales the noise."""
        motion = self.skill.gain * goal / self.step
        motion = self.speed * motion / motion.abs().amax(-1, keepdim=True).clamp_min(1)
        noise = self.skill.tremor * torch.randn(self.noise.shape, generator=self.generator)
        self.noise = 0.7 * self.noise + 0.7 * noise
        return motion + self.noise[:, :3] * tremor


class LiftExpert(ScriptedExpert):
    """Approach above the cube, descend, close the gripper, and lift."""

    def __init__(self, observations: VectorSpec, controller: Controller, num_envs: int, skill: Skill, seed: int = 0):
        super().__init__(controller, num_envs, skill, seed)
        self.offset, self.width = observations.slice("cube_to_tool"), observations.slice("gripper_width")
        self.closing = torch.zeros(num_envs, dtype=torch.long)
        """Number of control periods (n,) since the gripper began to close; 0: the gripper is open."""
        self.reset(torch.arange(num_envs))

    def reset(self, ids: Tensor) -> None:
        super().reset(ids)
        self.closing[ids] = 0

    def act(self, observation: dict[str, Tensor]) -> Tensor:
        """Return actions (n, A) in [-1, 1] for observations (n, D)."""
        state = observation["observation.state"]
        offset, width = state[:, self.offset].clone(), state[:, self.width].squeeze(-1)
        offset[:, :2] += self.aim
        across = offset[:, :2].norm(dim=-1)
        over = across < 0.012
        deep = over & (offset[:, 2] > -0.008)
        # Close the gripper at the cube; open it again if the fingers met without a cube between them.
        missed = (self.closing > 6) & (width < 0.015) | (across > 0.05)
        self.closing = torch.where(missed, 0, torch.where(deep | (self.closing > 0), self.closing + 1, 0))
        goal = offset.clone()
        goal[:, 2] = torch.where(over, offset[:, 2], offset[:, 2] + 0.08 * (across / 0.05).clamp(max=1))
        lift = self.closing > 5
        hold = (self.closing > 0) & ~lift
        goal = torch.where(hold[:, None], torch.zeros_like(goal), goal)
        goal = torch.where(lift[:, None], torch.tensor([0.0, 0.0, 0.1]), goal)
        fingers = torch.where(self.closing > 0, -1.0, 1.0)
        twist = torch.cat([self.move(goal), self._turn(state)], -1)
        return self.controller.from_twist(twist, fingers[:, None])

    def _turn(self, state: Tensor) -> Tensor:
        """Return rotations (n, 3) of the tool, in units of the largest action."""
        return state.new_zeros(len(state), 3)
