"""Demonstrator that moves the tool to a target, from observations alone."""

import torch
from torch import Tensor

from robot_rl.interface.control import Controller
from robot_rl.interface.spec import VectorSpec

CLUMSY, STEADY = 0.3, 0.05
"""Standard deviation of the action noise, in units of the largest action."""


class ReachExpert:
    """Halve the distance to the target in every control period, along a straight line."""

    def __init__(self, observations: VectorSpec, controller: Controller, num_envs: int, skill: float, seed: int = 0):
        self.offset, self.tremor, self.controller = observations.slice("target_to_tool"), skill, controller
        self.step = float(controller.twist_limit[0])
        self.generator = torch.Generator().manual_seed(seed)

    def reset(self, ids: Tensor) -> None:
        """Do nothing: this demonstrator has no state."""

    def act(self, observation: dict[str, Tensor]) -> Tensor:
        """Return actions (n, A) in [-1, 1] for observations (n, D)."""
        motion = 0.5 * observation["observation.state"][:, self.offset] / self.step
        motion = motion / motion.abs().amax(-1, keepdim=True).clamp_min(1)
        motion = motion + self.tremor * torch.randn(motion.shape, generator=self.generator)
        gripper = motion.new_zeros(len(motion), 1)  # unused
        return self.controller.from_twist(torch.cat([motion, torch.zeros_like(motion)], -1), gripper)
