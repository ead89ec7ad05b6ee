"""Sensor model: noise, bias and delay per environment."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.state import ABSENT, RobotState
from robot_rl.util.rows import Rows

PARAMETERS = (
    "sensor.joint_noise", "sensor.velocity_noise", "sensor.encoder_offset",
    "sensor.gyro_noise", "sensor.gyro_bias", "sensor.tilt_noise", "sensor.tilt_bias", "sensor.state_delay",
    "sensor.object_noise", "sensor.object_bias", "sensor.object_delay", "sensor.scan_noise",
)  # fmt: skip
UNSEEN = (
    "base_position", "base_velocity", "foot_position", "foot_velocity", "joint_torque", "ground_height",
    "ground_normal", "foot_ground_height",
)  # fmt: skip
"""State views that real robots do not measure."""
_OF_TRUNK = ("sensor.velocity_noise", "sensor.gyro_noise", "sensor.gyro_bias", "sensor.tilt_noise", "sensor.tilt_bias")


def can_randomize(robot: RobotSpec, objects: int, ground: bool = False) -> set[str]:
    """Return the parameters that affect this robot in a scene with this number of objects, and uneven ground or not."""
    absent = {".object_": not objects, ".scan_": not ground}
    known = {p for p in PARAMETERS if robot.base or p not in _OF_TRUNK}
    return {p for p in known if not any(gone and kind in p for kind, gone in absent.items())}


@dataclass(frozen=True)
class Channel:
    """Consecutive components of the measurement with the same parameters `delay`, `noise` and `bias`; "": no error."""

    view: str
    width: int
    delay: str = ""
    noise: str = ""
    bias: str = ""
    direction: int = 0
    """First column of this channel in the bias directions."""
    start: int = 0
    """First column of this channel in the view."""


class SensorModel(Rows):
    """Sensor errors of n robots: measured = delayed(true) + noise * normal + bias.

    With all parameters at zero, views stay unchanged. Views in `UNSEEN` are absent from the measurement. Views without
    a channel (`gripper_width`, `foot_force`) are exact and undelayed.
    """

    ROWS = ("values", "lag", "noise", "bias", "previous")

    def __init__(
        self, robot: RobotSpec, objects: Sequence[str], num_envs: int, period: float,
        device: torch.device | str = "cpu", scan: int = 0,
    ):  # fmt: skip
        """`scan`: number of points of `height_scan`."""
        self.robot, self.period, self.objects = robot, period, tuple(objects)
        self.device = torch.device(device)
        with self.device:
            self.kinematics = Kinematics(robot) if robot.tool else None
        joints, state, late = len(robot.joints), "sensor.state_delay", "sensor.object_delay"
        noisy = [Channel("joint_position", joints, state, "sensor.joint_noise", "sensor.encoder_offset")]
        exact, tilt, speed = [], [], Channel("joint_velocity", joints, state)
        if robot.base:
            gyro = Channel("base_angular_velocity", 3, state, "sensor.gyro_noise", "sensor.gyro_bias", joints)
            noisy += [replace(speed, noise="sensor.velocity_noise"), gyro]
            exact += [Channel("base_quat", 4, state)]
            tilt += [Channel("", 3, "", "sensor.tilt_noise", "sensor.tilt_bias", joints + 3)]
        else:
            exact += [speed]
        noisy += [Channel("height_scan", scan, noise="sensor.scan_noise")] if scan else []
        for k, name in enumerate(objects):  # own biases: the relative pose of two objects has a bias, too
            noisy += [Channel(name, 3, late, "sensor.object_noise", "sensor.object_bias", joints + 6 + 3 * k)]
            exact += [Channel(name, 4, late, start=3)]
        self.channels = (*noisy, *exact)  # channels, first those with noise
        self.biases = joints + 6 + 3 * max(1, len(objects))
        """Number of bias directions per episode: encoders, gyroscope (3), tilt (3), and 3 per object."""
        self.noises = sum(c.width for c in (*noisy, *tilt))  # number of standard normal numbers per measurement
        self.seen = sum(c.width for c in noisy)
        with self.device:
            self._delays = self._parameters(self.channels, "delay")
            self._noises, self._biases = (self._parameters((*noisy, *tilt), kind) for kind in ("noise", "bias"))
            self._directions = torch.cat(
                [c.direction + torch.arange(c.width) * bool(c.bias) for c in (*noisy, *tilt)]  # any without a bias
            )
            self.values = torch.zeros(num_envs, len(PARAMETERS) + 1)
            """Parameter values (n, P + 1); the last column is 0."""
            self.lag, self.previous = (torch.zeros(num_envs, sum(c.width for c in self.channels)) for _ in range(2))
            self.noise, self.bias = (torch.zeros(num_envs, self.noises) for _ in range(2))

    @property
    def encoder_offset(self) -> Tensor:
        """Return the encoder offsets (n, J), rad. Motors control the encoder reading, so joints rest below their
        commands by these offsets."""
        return self.bias[:, : len(self.robot.joints)]

    @property
    def state_age(self) -> Tensor:
        """Return the age (n,) of measured joint positions, s."""
        return self.lag[:, 0] * self.period  # the first channel

    @staticmethod
    def _parameters(channels: Sequence[Channel], kind: str) -> Tensor:
        """Return the column of `values` with the parameter `kind` (delay, noise or bias) of every channel component."""
        names = [getattr(c, kind) for c in channels for _ in range(c.width)]
        return torch.tensor([PARAMETERS.index(n) if n else len(PARAMETERS) for n in names])

    def set(self, names: Sequence[str], ids: Tensor, values: Sequence[np.ndarray]) -> None:
        """Set parameters `names` of robots `ids` (k,) to values (k,), which take effect at the next reset."""
        for name, new in zip(names, values, strict=True):
            most = new.max(initial=0.0)
            if name.endswith("_delay") and most > self.period + 1e-9:
                raise ValueError(f"{name}: at most one control period ({self.period} s), not {most:.3f} s")
            self.values[ids, PARAMETERS.index(name)] = torch.from_numpy(new).float().to(self.device)

    def reset(self, ids: Tensor, state: RobotState, direction: Tensor) -> None:
        """Start episodes of robots `ids` (k,) at true states; `direction` (k, biases) in [-1, 1] scales the biases."""
        values = self.values[ids]
        self.lag[ids] = values[:, self._delays] / self.period
        self.noise[ids] = values[:, self._noises]
        self.bias[ids] = values[:, self._biases] * direction[:, self._directions]
        self.previous[ids] = self._signal(state)

    def _signal(self, state: RobotState) -> Tensor:
        views = state.views
        return torch.cat([views[c.view][:, c.start : c.start + c.width] for c in self.channels], 1)

    def measure(self, true: RobotState, normals: Tensor, ids: Tensor | None = None) -> RobotState:
        """Return the measured state of robots `ids` (None: all); call once per control period, to advance the delays.

        `normals` (k, noises): standard normal numbers. Delayed components are interpolated linearly between the last
        two control periods.
        """
        signal = self._signal(true)
        previous, lag, bias, noise = self.previous, self.lag, self.bias, self.noise
        if ids is None:
            self.previous = signal
        else:
            previous, lag, bias, noise = previous[ids], lag[ids], bias[ids], noise[ids]
            self.previous[ids] = signal
        late = torch.lerp(signal, previous, lag)
        error = torch.addcmul(bias, noise, normals)
        late[:, : self.seen] += error[:, : self.seen]
        parts: dict[str, list[Tensor]] = {}
        for channel, part in zip(self.channels, late.split([c.width for c in self.channels], 1), strict=True):
            parts.setdefault(channel.view, []).append(part)
        objects = {n: torch.cat([parts[n][0], _unit(parts[n][1])], 1) for n in self.objects}
        views = {n: part for n, (part, *_) in parts.items() if n not in self.objects} | dict.fromkeys(UNSEEN, ABSENT)
        if self.kinematics is not None:
            views["tool_position"] = self.kinematics.forward(views["joint_position"])[0]
        if self.robot.base:
            views["base_quat"] = _turned(views["base_quat"], error[:, self.seen :])
        return replace(true, **views, objects=objects)


def _unit(vector: Tensor) -> Tensor:
    return vector / vector.square().sum(1, keepdim=True).sqrt()


def _turned(quat: Tensor, angle: Tensor) -> Tensor:
    """Return orientations (n, 4) after small rotations (n, 3), rad, in the trunk's frame."""
    w, x, y, z = quat.unbind(-1)
    a, b, c = (angle / 2).unbind(-1)
    turned = torch.stack(
        [w - x * a - y * b - z * c, x + w * a + y * c - z * b, y + w * b + z * a - x * c, z + w * c + x * b - y * a], -1
    )
    return _unit(turned)
