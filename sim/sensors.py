"""What the robot's sensors report of the true state: noise, bias and delay, per environment."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from robot_rl.kinematics import Kinematics, matrix_to_quat
from robot_rl.spec import RobotSpec
from robot_rl.state import RobotState

PARAMETERS = ("sensor.joint_noise", "sensor.object_noise", "sensor.object_bias", "sensor.object_delay")


class SensorModel:
    """Corrupts state views; with every parameter at zero it passes them on unchanged."""

    def __init__(self, robot: RobotSpec, num_envs: int, period: float):
        self.kinematics = Kinematics(robot)
        self.period = period
        self.values = {name: torch.zeros(num_envs, 1) for name in PARAMETERS}
        self.bias = torch.zeros(num_envs, 3)
        self.previous: dict[str, Tensor] = {}

    def reset(self, ids: Tensor, state: RobotState, direction: Tensor) -> None:
        """Start episodes `ids` at a true state; `direction` (k, 3) in [-1, 1] is that of the bias."""
        self.bias[ids] = self.values["sensor.object_bias"][ids] * direction
        for name, pose in state.objects.items():
            self.previous.setdefault(name, pose.clone())[ids] = pose[ids]

    def set(self, name: str, ids: np.ndarray, values: np.ndarray) -> None:
        if name == "sensor.object_delay" and values.max(initial=0) > self.period + 1e-9:
            raise ValueError(f"{name}: at most one control period ({self.period} s), not {values.max():.3f} s")
        self.values[name][ids, 0] = torch.from_numpy(values).float()

    def measure(self, true: RobotState, normals: Tensor) -> RobotState:
        """The reported state; call once per control period, it advances the delay lines.

        `normals` (n, J + 3 per object) are standard normal numbers: the caller decides what they depend on.
        """
        joints = true.joint_position.shape[1]
        joint = true.joint_position + self.values["sensor.joint_noise"] * normals[:, :joints]
        position, rotation = self.kinematics.forward(joint)
        share = self.values["sensor.object_delay"] / self.period
        objects = {}
        of_objects = normals[:, joints:].split(3, -1)
        for (name, pose), normal in zip(true.objects.items(), of_objects, strict=True):
            noise = self.values["sensor.object_noise"] * normal
            delayed = pose + share * (self.previous[name] - pose)
            delayed[:, :3] += noise + self.bias
            delayed[:, 3:] /= delayed[:, 3:].norm(dim=-1, keepdim=True)
            objects[name] = delayed
            self.previous[name] = pose
        return replace(
            true, joint_position=joint, tool_position=position, tool_quat=matrix_to_quat(rotation), objects=objects
        )
