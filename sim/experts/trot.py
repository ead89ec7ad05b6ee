"""Demonstrator that plays a scripted trot at the commanded velocity, without any feedback."""

import torch
from torch import Tensor

from robot_rl.interface.control import JointOffsetConfig, JointOffsetController
from robot_rl.interface.spec import VectorSpec
from robot_rl.robots import robots
from sim.tasks.go2_velocity import TASK

CLUMSY, STEADY = 0.1, 0.0
"""Standard deviation of the action noise, in units of the largest action."""


class TrotExpert:
    """Act with the offsets of go2-velocity's scripted gait; stand still while the command is zero."""

    def __init__(
        self, observations: VectorSpec, controller: JointOffsetController, num_envs: int, skill: float, seed: int = 0
    ):
        self.command, self.tremor, self.controller = observations.slice("command"), skill, controller
        gait = TASK.interface.controller
        assert isinstance(gait, JointOffsetConfig)
        self.trot = JointOffsetController(robots.get(TASK.interface.robot), gait)
        self.cycles = TASK.interface.gait / controller.config.rate
        """Cycles of the gait per action."""
        self.phase = torch.zeros(num_envs, 1)
        self.generator = torch.Generator().manual_seed(seed)

    def reset(self, ids: Tensor) -> None:
        """Begin the gait anew in environments `ids`."""
        self.phase[ids] = 0.0

    def act(self, observation: dict[str, Tensor]) -> Tensor:
        """Return actions (n, A) in [-1, 1] for observations (n, D)."""
        command = observation["observation.state"][:, self.command]
        offset = self.trot.gait(self.phase, command) * (command.norm(dim=1, keepdim=True) > 0.05)
        self.phase = (self.phase + self.cycles) % 1.0
        action = self.controller.actions.to_unit(offset)
        return (action + self.tremor * torch.randn(action.shape, generator=self.generator)).clamp(-1, 1)
