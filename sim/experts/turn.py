"""An imperfect demonstrator that turns the hand to a cube and lifts it, from observations alone."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from robot_rl.interface.control import Controller
from robot_rl.interface.rotation import columns_to_matrix
from robot_rl.interface.spec import VectorSpec
from sim.experts.lift import CLUMSY as HASTY
from sim.experts.lift import STEADY, LiftExpert, Skill

CLUMSY = replace(HASTY, aim=0.004, tremor=0.1)
"""A fast demonstrator with smaller errors: the cube leaves the fingers 8 mm on each side."""

__all__ = ["CLUMSY", "STEADY", "TurnExpert"]


class TurnExpert(LiftExpert):
    """Turn the tool to the cube's sides on the way to it, and keep it pointing down."""

    def __init__(self, observations: VectorSpec, controller: Controller, num_envs: int, skill: Skill, seed: int = 0):
        super().__init__(observations, controller, num_envs, skill, seed)
        self.turn = float(controller.twist_limit[3])
        self.axes, self.sides = observations.slice("tool_rotation"), observations.slice("cube_in_tool")

    def _turn(self, state: Tensor) -> Tensor:
        tool, cube = columns_to_matrix(state[:, self.axes]), state[:, self.sides]
        down = torch.tensor([0.0, 0.0, -1.0]).expand(len(state), 3)
        tilt = torch.linalg.cross(tool[:, :, 2], down)
        angle = torch.atan2(cube[:, 1], cube[:, 0])  # of the cube's x axis about the tool's z axis
        quarter = torch.pi / 2
        angle = angle - quarter * (angle / quarter).round()  # any of the four sides
        free = self.closing == 0
        turn = self.skill.gain * (tilt + (angle * free)[:, None] * tool[:, :, 2]) / self.turn
        turn = self.speed * turn / turn.abs().amax(-1, keepdim=True).clamp_min(1)
        return turn + self.noise[:, 3:6]
