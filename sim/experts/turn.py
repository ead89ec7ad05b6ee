"""Demonstrator that aligns the hand with a cube and lifts the cube, with errors, from observations alone."""

from dataclasses import replace

import torch
from torch import Tensor

from robot_rl.interface.control import Controller
from robot_rl.interface.rotation import columns_to_matrix
from robot_rl.interface.spec import VectorSpec
from sim.experts.lift import CLUMSY as CLUMSY_LIFT
from sim.experts.lift import STEADY, LiftExpert, Skill

CLUMSY = replace(CLUMSY_LIFT, aim=0.004, tremor=0.1)
"""Skill of a fast demonstrator with smaller errors than in `sim.experts.lift`: the fingers have 8 mm of clearance on
each side of the cube."""

__all__ = ["CLUMSY", "STEADY", "TurnExpert"]


class TurnExpert(LiftExpert):
    """Align the tool with the cube's sides during the approach, and keep the tool pointing down."""

    def __init__(self, observations: VectorSpec, controller: Controller, num_envs: int, skill: Skill, seed: int = 0):
        super().__init__(observations, controller, num_envs, skill, seed)
        self.turn = float(controller.twist_limit[3])
        self.axes, self.sides = observations.slice("tool_rotation"), observations.slice("cube_in_tool")

    def _turn(self, state: Tensor) -> Tensor:
        tool, cube = columns_to_matrix(state[:, self.axes]), state[:, self.sides]
        down = torch.tensor([0.0, 0.0, -1.0]).expand(len(state), 3)
        tilt = torch.linalg.cross(tool[:, :, 2], down)
        angle = torch.atan2(cube[:, 1], cube[:, 0])  # cube's x axis about the tool's z axis
        quarter = torch.pi / 2
        angle = angle - quarter * (angle / quarter).round()  # align with the nearest of the four sides
        free = self.closing == 0
        turn = self.skill.gain * (tilt + (angle * free)[:, None] * tool[:, :, 2]) / self.turn
        turn = self.speed * turn / turn.abs().amax(-1, keepdim=True).clamp_min(1)
        return turn + self.noise[:, 3:6]
