"""What the robot's sensors report of the true state: noise, bias and delay, per environment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.kinematics import Kinematics
from robot_rl.rotation import matrix_to_quat
from robot_rl.spec import RobotSpec
from robot_rl.state import ABSENT, RobotState

PARAMETERS = (
    "sensor.joint_noise", "sensor.velocity_noise", "sensor.encoder_offset",
    "sensor.gyro_noise", "sensor.gyro_bias", "sensor.tilt_noise", "sensor.tilt_bias", "sensor.state_delay",
    "sensor.object_noise", "sensor.object_bias", "sensor.object_delay",
)  # fmt: skip
_DELAYED = ("joint_position", "joint_velocity", "base_quat", "base_angular_velocity")
"""Views that the robot itself sends, late by sensor.state_delay."""
_UNSEEN = ("base_position", "base_velocity", "foot_position", "foot_velocity", "joint_torque")
_OF_TRUNK = ("sensor.velocity_noise", "sensor.gyro_noise", "sensor.gyro_bias", "sensor.tilt_noise", "sensor.tilt_bias")


def can_randomize(robot: RobotSpec, objects: int) -> set[str]:
    """The parameters that do something to this robot with this many objects."""
    return {p for p in PARAMETERS if (robot.base or p not in _OF_TRUNK) and (objects or ".object_" not in p)}


class SensorModel:
    """Corrupts state views; with every parameter at zero it passes them on unchanged. What no sensor sees is absent."""

    def __init__(self, robot: RobotSpec, objects: int, num_envs: int, period: float):
        self.robot, self.period = robot, period
        self.kinematics = Kinematics(robot) if robot.tool else None
        self.values = {name: torch.zeros(num_envs, 1) for name in PARAMETERS}
        joints = len(robot.joints)
        self.biases = joints + 6 + 3
        """Directions in [-1, 1] that an episode draws: of encoders, gyroscope, tilt, and objects."""
        self.noises = 2 * joints + 6 + 3 * objects if robot.base else joints + 3 * objects
        """Standard normal numbers of one measurement."""
        self.direction = torch.zeros(num_envs, self.biases)
        self.previous: dict[str, Tensor] = {}

    def reset(self, ids: Tensor, state: RobotState, direction: Tensor) -> None:
        """Start episodes `ids` at true states (k); `direction` (k, biases) in [-1, 1] are those of the biases."""
        self.direction[ids] = direction
        for name, view in state.views.items():
            if name in _DELAYED or name in state.objects:
                if name not in self.previous:
                    self.previous[name] = torch.zeros(len(self.direction), view.shape[1])
                self.previous[name][ids] = view

    def set(self, name: str, ids: np.ndarray, values: np.ndarray) -> None:
        if name.endswith("_delay") and values.max(initial=0) > self.period + 1e-9:
            raise ValueError(f"{name}: at most one control period ({self.period} s), not {values.max():.3f} s")
        self.values[name][ids, 0] = torch.from_numpy(values).float()

    def measure(self, true: RobotState, normals: Tensor, ids: Tensor | slice = slice(None)) -> RobotState:
        """The reported state of robots `ids`; call once per control period, it advances their delay lines.

        `normals` (k, noises) are standard normal numbers: the caller decides what they depend on.
        """
        value = {name: values[ids] for name, values in self.values.items()}
        direction, joints = self.direction[ids], true.joint_position.shape[1]
        late = {name: self._late(name, view, value["sensor.state_delay"], ids)
                for name, view in true.views.items() if name in _DELAYED}  # fmt: skip
        joint = late["joint_position"] + value["sensor.joint_noise"] * normals[:, :joints]
        joint = joint + value["sensor.encoder_offset"] * direction[:, :joints]
        seen: dict[str, Any] = dict.fromkeys((n for n in _UNSEEN if n in true.views), ABSENT)
        seen |= {"joint_position": joint, "joint_velocity": late["joint_velocity"]}
        if self.kinematics is not None:
            position, rotation = self.kinematics.forward(joint)
            seen |= {"tool_position": position, "tool_quat": matrix_to_quat(rotation)}
        used = joints
        if self.robot.base:
            speed, gyro, tilt = normals[:, joints : 2 * joints + 6].split([joints, 3, 3], 1)
            used = 2 * joints + 6
            drift, lean = direction[:, joints : joints + 6].split(3, 1)
            seen["joint_velocity"] = late["joint_velocity"] + value["sensor.velocity_noise"] * speed
            seen["base_angular_velocity"] = (
                late["base_angular_velocity"] + value["sensor.gyro_noise"] * gyro + value["sensor.gyro_bias"] * drift
            )
            error = value["sensor.tilt_noise"] * tilt + value["sensor.tilt_bias"] * lean
            seen["base_quat"] = _turned(late["base_quat"], error)
        seen["objects"] = self._objects(true.objects, normals[:, used:], value, direction[:, -3:], ids)
        return replace(true, **seen)

    def _late(self, name: str, view: Tensor, delay: Tensor, ids: Tensor | slice) -> Tensor:
        """The view as it was `delay` ago, on the straight line between the last two control periods."""
        before = self.previous[name][ids].clone()  # of all of them it is a view
        self.previous[name][ids] = view
        late = view + delay / self.period * (before - view)
        return late / late.norm(dim=-1, keepdim=True) if name == "base_quat" else late

    def _objects(
        self, true: dict[str, Tensor], normals: Tensor, value: dict[str, Tensor], direction: Tensor, ids: Tensor | slice
    ) -> dict[str, Tensor]:
        objects = {}
        for (name, pose), normal in zip(true.items(), normals.split(3, -1), strict=True) if true else ():
            late = self._late(name, pose, value["sensor.object_delay"], ids)
            late[:, :3] += value["sensor.object_noise"] * normal + value["sensor.object_bias"] * direction
            late[:, 3:] /= late[:, 3:].norm(dim=-1, keepdim=True)
            objects[name] = late
        return objects


def _turned(quat: Tensor, angle: Tensor) -> Tensor:
    """Orientations (n, 4) turned by small rotation vectors (n, 3), rad, of the trunk's frame."""
    w, x, y, z = quat.unbind(-1)
    a, b, c = (angle / 2).unbind(-1)
    turned = torch.stack(
        [w - x * a - y * b - z * c, x + w * a + y * c - z * b, y + w * b + z * a - x * c, z + w * c + x * b - y * a], -1
    )
    return turned / turned.norm(dim=-1, keepdim=True)
