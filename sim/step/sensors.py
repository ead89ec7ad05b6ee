"""Sensor model: noise, bias and delay per environment."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.state import ABSENT, RobotState
from robot_rl.util.rows import Rows
from sim.parameters import OBJECT, ROWS

NAMES = tuple(row.name for row in ROWS if row.owner == "sensor" and OBJECT not in row.name)
"""Parameters of the sensors, besides the constant error of each object's position."""
UNSEEN = (
    "base_position", "base_velocity", "foot_position", "foot_velocity", "joint_torque", "ground_height",
    "ground_normal", "foot_ground_height",
)  # fmt: skip
"""State views that real robots do not measure."""


@dataclass(frozen=True)
class Channel:
    """Consecutive components of the measurement with the same parameters; "": no error."""

    view: str
    width: int
    delay: str = ""
    noise: str = ""
    bias: str = ""
    offset: str = ""
    """Begin of the names of the components' constant errors, which end with an axis."""
    direction: int = 0
    """First column of this channel in the bias directions."""
    start: int = 0
    """First column of this channel in the view."""


class SensorModel(Rows):
    """Sensor errors of n robots: measured = delayed(true) + noise * normal + bias * direction + offset.

    With all parameters at zero, views stay unchanged. Views in `UNSEEN` are absent from the measurement. Views without
    a channel (`gripper_width`, `foot_force`) are exact and undelayed.
    """

    ROWS = ("values", "lag", "noise", "bias", "history")

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
        axes = [f"{name}.bias_{axis}" for name in objects for axis in "xyz"]
        self.names = (*NAMES, *axes)
        """Parameters of these sensors."""
        noisy = [Channel("joint_position", joints, state, "sensor.joint_noise", "sensor.encoder_offset")]
        exact, tilt, speed = [], [], Channel("joint_velocity", joints, state)
        if robot.base:
            gyro = Channel("base_angular_velocity", 3, state, "sensor.gyro_noise", "sensor.gyro_bias", direction=joints)
            noisy += [replace(speed, noise="sensor.velocity_noise"), gyro]
            exact += [Channel("base_quat", 4, state)]
            tilt += [Channel("", 3, "", "sensor.tilt_noise", "sensor.tilt_bias", direction=joints + 3)]
        else:
            exact += [speed]
        noisy += [Channel("height_scan", scan, noise="sensor.scan_noise")] if scan else []
        for k, name in enumerate(objects):  # own biases: the relative pose of two objects has a bias, too
            error, at = ("sensor.object_noise", "sensor.object_bias", f"{name}.bias_"), joints + 6 + 3 * k
            noisy += [Channel(name, 3, late, *error, direction=at)]
            exact += [Channel(name, 4, late, start=3)]
        self.channels = (*noisy, *exact)  # channels, first those with noise
        self.biases = joints + 6 + 3 * max(1, len(objects))
        """Number of bias directions per episode: encoders, gyroscope (3), tilt (3), and 3 per object."""
        self.noises = sum(c.width for c in (*noisy, *tilt))  # number of standard normal numbers per measurement
        self.seen = sum(c.width for c in noisy)
        with self.device:
            self._delays = self._parameters(self.channels, "delay")
            kinds = ("noise", "bias", "offset")
            self._noises, self._biases, self._offsets = (self._parameters((*noisy, *tilt), kind) for kind in kinds)
            self._directions = torch.cat(
                [c.direction + torch.arange(c.width) * bool(c.bias) for c in (*noisy, *tilt)]  # any without a bias
            )
            self.values = torch.zeros(num_envs, len(self.names) + 1)
            """Parameter values (n, P + 1); the last column is 0."""
            width = sum(c.width for c in self.channels)
            self.lag = torch.zeros(num_envs, width)
            """Delays of the components, in control periods."""
            self.history = torch.zeros(num_envs, 1, width)
            """True components (n, D, width) at the last D measurements, the newest first; D grows with the delays."""
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

    @property
    def picture_lag(self) -> Tensor:
        """Return the delay (n,) of pictures, in control periods."""
        return (self.values[:, self.names.index("camera.delay")] / self.period).round().long()

    def _parameters(self, channels: Sequence[Channel], kind: str) -> Tensor:
        """Return the column of `values` with the parameter `kind`, a field of `Channel`, of every channel component."""
        names = [(getattr(c, kind), axis) for c in channels for axis in range(c.width)]
        full = [name and (name + "xyz"[axis] if kind == "offset" else name) for name, axis in names]
        return torch.tensor([self.names.index(n) if n else len(self.names) for n in full])

    def set(self, names: Sequence[str], ids: Tensor, values: Sequence[np.ndarray]) -> None:
        """Set parameters `names` of robots `ids` (k,) to values (k,), which take effect at the next reset."""
        for name, new in zip(names, values, strict=True):
            if name.endswith("_delay"):
                self._remember(math.ceil(new.max(initial=0.0) / self.period - 1e-6))
            self.values[ids, self.names.index(name)] = torch.from_numpy(new).float().to(self.device)

    def _remember(self, depth: int) -> None:
        """Keep the components of at least `depth` measurements."""
        if (missing := depth - self.history.shape[1]) > 0:
            self.history = torch.cat([self.history, self.history[:, -1:].expand(-1, missing, -1)], 1)

    def take_rows(self, ids: Tensor, other: Self) -> None:
        self._remember(other.history.shape[1])
        other._remember(self.history.shape[1])
        super().take_rows(ids, other)

    def reset(self, ids: Tensor, state: RobotState, direction: Tensor) -> None:
        """Start episodes of robots `ids` (k,) at true states; `direction` (k, biases) in [-1, 1] scales the biases."""
        values = self.values[ids]
        self.lag[ids] = values[:, self._delays] / self.period
        self.noise[ids] = values[:, self._noises]
        self.bias[ids] = values[:, self._biases] * direction[:, self._directions] + values[:, self._offsets]
        self.history[ids] = self._signal(state)[:, None]

    def _signal(self, state: RobotState) -> Tensor:
        views = state.views
        return torch.cat([views[c.view][:, c.start : c.start + c.width] for c in self.channels], 1)

    def measure(self, true: RobotState, normals: Tensor, ids: Tensor | None = None) -> RobotState:
        """Return the measured state of robots `ids` (None: all); call once per control period, to advance the delays.

        `normals` (k, noises): standard normal numbers. Delayed components are interpolated linearly between two control
        periods.
        """
        signal = self._signal(true)
        history, lag, bias, noise = self.history, self.lag, self.bias, self.noise
        if ids is not None:
            history, lag, bias, noise = history[ids], lag[ids], bias[ids], noise[ids]
        late, newest = _delayed(signal, history, lag)
        if ids is None:
            self.history = newest
        else:
            self.history[ids] = newest
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
        return RobotState.from_views(true.views | views | objects, self.objects)


def _delayed(signal: Tensor, history: Tensor, lag: Tensor) -> tuple[Tensor, Tensor]:
    """Return components (k, W) of `lag` (k, W) control periods ago, and the history (k, D, W) with `signal` first."""
    depth = history.shape[1]
    if depth == 1:  # all delays are within a control period
        return torch.lerp(signal, history[:, 0], lag), signal[:, None]
    every = torch.cat([signal[:, None], history], 1)
    before = lag.long().clamp(max=depth - 1)[:, None]
    late = torch.lerp(every.gather(1, before)[:, 0], every.gather(1, before + 1)[:, 0], lag - before[:, 0])
    return late, every[:, :depth]


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
