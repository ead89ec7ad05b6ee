"""Twin of a legged robot: Unitree's messages, motors that keep their last command, a body that can fall."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from real.bus import Node, Stamped, qos
from real.bus.layout import template
from real.bus.stamps import stamped
from real.control.timing import prefer_realtime_bus
from real.drivers.lowlevel import Motors
from real.drivers.wire import LOW_COMMAND, LOW_STATE, layout
from real.topics import TRUTH_TOPIC
from real.twin.base import STATE, Twin, pose
from real.twin.faults import Fault
from robot_rl.interface.driver import UnitreeLowLevel
from sim.tasks.base import Task

ODOMETRY = "nav_msgs/msg/Odometry"
TRUTH_RATE = 100.0
"""Rate of `TRUTH_TOPIC`, Hz."""
TIMESTEP = 0.002
"""Physics step, s. The robot reports one state per step."""
GRAVITY = 9.81
"""Gravitational acceleration, m/s^2."""
MOTOR_TEMPERATURE, IMU_TEMPERATURE, BOARD_TEMPERATURE = 35, 45, 30
"""Reported temperatures, degrees Celsius."""
CELLS, CELL_VOLTAGE, CURRENT, CHARGE = 8, 3.9, 2.0, 90
"""Reported battery of a Go2: cells in series, voltage per cell (V), current (A), state of charge (%)."""


Numbers = Sequence[float]
"""Few numbers, for which arithmetic of Python is faster than numpy's: at 500 Hz every array counts."""


QUADRUPED = {
    "robot.action_delay": 0.02,  # transport adds about 7 ms
    "robot.stiffness_scale": 0.83, "robot.damping_scale": 1.35, "robot.strength_scale": 0.84,
    "robot.joint_friction": 0.35, "payload.mass": 2.2, "base.com_x": 0.03, "ground.friction": 0.45, "push.speed": 0.5,
    "sensor.encoder_offset": 0.021, "sensor.joint_noise": 0.011, "sensor.velocity_noise": 0.55,
    "sensor.gyro_noise": 0.11, "sensor.gyro_bias": 0.052, "sensor.tilt_noise": 0.022, "sensor.tilt_bias": 0.031,
}  # fmt: skip
"""Values of the parameters of a legged robot's twin. All except push.speed are at or beyond the edge of the ranges in
`sim/tasks/go2_velocity.py`; a test compares them."""


@dataclass(frozen=True)
class HiddenQuadruped:
    """Hidden dynamics of a legged robot's twin."""

    values: Mapping[str, float] = field(default_factory=lambda: dict(QUADRUPED))
    """Values by parameter of the table in `sim.parameters`."""
    accelerometer_noise: float = 0.2
    """Standard deviation, m/s^2; policies do not observe the accelerometer."""
    faults: tuple[Fault, ...] = ()
    """Faults beyond these: a run with any says nothing about the policy."""


class QuadrupedTwin(Twin):
    """Simulated robot that lies on level ground until its motors are commanded. Battery and temperatures are constants
    of a robot that has just been switched on. `push_every`: interval of pushes, s; 0: never; `hung`: in the air."""

    def __init__(
        self, node: Node, task: Task, hidden: HiddenQuadruped | None = None, seed: int = 0, cameras: bool = True,
        mjcf: str = "", push_every: float = 0.0, hung: bool = False,
    ):  # fmt: skip
        self.hidden = hidden or HiddenQuadruped()
        super().__init__(
            node, task, replace(task.scene, timestep=TIMESTEP, ground=None, hung=hung), seed, cameras, mjcf,
            self.hidden.values, self.hidden.faults,
        )  # fmt: skip
        ros, base = self.robot.driver, self.robot.base
        assert isinstance(ros, UnitreeLowLevel) and base is not None
        self.motors = Motors(self.robot)
        self._motor = self.motors.motor
        self._foot = np.array([base.feet.index(name) for name in ros.feet])
        self._lying = np.array([base.lying or self.robot.home])
        self._push_every = round(push_every * self.robot.command_rate)
        self._every_truth = round(self.robot.command_rate / TRUTH_RATE)
        self._offsets = self.rng.uniform(-1, 1, (3, max(3, len(self.robot.joints))))
        """Biases of encoders, gyroscope and tilt (rows), as fractions -1 to 1 of their largest values."""
        self._encoder_offset = self._value("sensor.encoder_offset") * self._offsets[0, : len(self._motor)]
        errors = ("joint_noise", "velocity_noise", "gyro_noise", "gyro_bias", "tilt_noise", "tilt_bias")
        self._errors = {name: self._value(f"sensor.{name}") for name in errors}
        self._command, self._state = layout(LOW_COMMAND), layout(LOW_STATE)
        self._report = self._state.empty()
        self._report["head"], self._report["level_flag"] = (0xFE, 0xEF), 0xFF
        self._report["motor_state"]["mode"][: self.motors.count] = 1
        self._report["motor_state"]["temperature"][: self.motors.count] = MOTOR_TEMPERATURE
        self._report["imu_state"]["temperature"] = IMU_TEMPERATURE
        self._report["temperature_ntc1"] = self._report["temperature_ntc2"] = BOARD_TEMPERATURE
        self._report["power_v"], self._report["power_a"] = CELLS * CELL_VOLTAGE, CURRENT
        battery = self._report["bms_state"]
        battery["soc"], battery["current"] = CHARGE, round(-1000 * CURRENT)
        battery["cell_vol"][:CELLS] = round(1000 * CELL_VOLTAGE)
        battery["bq_ntc"] = battery["mcu_ntc"] = BOARD_TEMPERATURE
        motors, imu = (self._report[name] for name in ("motor_state", "imu_state"))
        self._fields = {name: motors[name][: len(self._motor)] for name in ("q", "dq", "tau_est")}
        """Views of the report's fields."""
        self._fields |= {name: imu[name] for name in ("quaternion", "rpy", "accelerometer", "gyroscope")}
        self._velocity: Numbers | None = None
        """Trunk velocity (3,) at the last tick, world frame, m/s."""
        self._position = np.zeros(len(self.robot.joints))
        """Joint positions (J,) after the last tick, rad."""
        self._bus_is_realtime = False
        self._raw = b""
        """Bytes of the last valid command, by which repeated commands are recognized and not decoded again."""
        self._wanted = self._decode(self.motors.damp())
        self._springs = self._wanted[2][:0]
        delay = max(1, round(self._value("robot.action_delay") / TIMESTEP)) + self.faults.delay
        self._delayed = deque([self._wanted], maxlen=delay + 1)
        """Commands of the last ticks; the oldest of them is applied."""
        self.rejected = 0
        """Number of commands with a wrong checksum or length."""
        self.states = node.publisher(LOW_STATE, ros.low_state, STATE)
        self.truth = node.publisher(ODOMETRY, TRUTH_TOPIC, STATE)
        self._truth = template(ODOMETRY, header={"frame_id": "odom"}, child_frame_id="base")
        self._draw(seed)
        # The delay is that of `_delayed`: commands have gains, too.
        self.engine.parameters["robot.action_delay"](np.array([0]), np.array([TIMESTEP]))
        self.place(seed)
        self.command = node.subscribe(LOW_COMMAND, ros.low_command, qos.COMMAND, self._on_command)

    def _on_command(self, sample: Stamped) -> None:
        if not self._bus_is_realtime:
            self._bus_is_realtime = True
            prefer_realtime_bus()  # real motors do not depend on this computer's load
        if sample.raw == self._raw:
            return
        command = self._command.open(sample.raw)
        if command is None:
            self.rejected += 1
        else:
            self._raw, self._wanted = bytes(sample.raw), self._decode(command)

    def _decode(self, command: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return a LowCmd as a mask of joints with a setpoint (J,), setpoints (J,), and stiffness, damping and torque
        (3, 1, J)."""
        motors = command["motor_cmd"][self._motor]
        q, dq, tau, kp, kd = np.nan_to_num([motors[name] for name in ("q", "dq", "tau", "kp", "kd")]).astype(float)
        on = motors["mode"] == 1
        # Without stiffness the setpoint has no effect and may be Unitree's "no position", 2e9.
        return on & (kp > 0), q, np.stack([on * kp, on * kd, on * (tau + kd * dq)])[:, None]

    def place(self, seed: int) -> None:
        """Lay the robot on its belly with folded legs and damped motors; `seed` is ignored."""
        self._raw, self._wanted = b"", self._decode(self.motors.damp())
        self._delayed.extend([self._wanted] * (self._delayed.maxlen or 0))
        self.engine.reset(np.array([0]), self._lying, {})
        self._position = self.engine.joint_state()[0][0].numpy()
        self._apply_command()
        settle = torch.from_numpy(self._lying).float()[:, None].expand(-1, round(1 / TIMESTEP), -1)
        self.engine.step(settle, settle)
        self._position = self.engine.joint_state()[0][0].numpy()

    def tick(self, count: int) -> None:
        """Apply the delayed command, step the physics and publish."""
        if self._push_every and count and count % self._push_every == 0:
            angle = self.rng.uniform(0, 2 * np.pi)
            direction = torch.tensor([[np.cos(angle), np.sin(angle), 0.0]], dtype=torch.double)
            self.engine.push(self._value("push.speed") * direction)
        goal = self._apply_command(count)
        self.engine.step(goal, goal)
        self.publish(count)

    def _apply_command(self, count: int = 0) -> torch.Tensor:
        """Set the motors' gains; return their setpoints (1, 1, J), which the engine applies one step later."""
        self._delayed.append(self._wanted)
        springs, (has_setpoint, setpoint, _) = self._delayed[0][2], self._delayed[1]
        if springs is not self._springs:
            if not np.array_equal(springs, self._springs):
                if self._springs.size and 0 < springs[0].max() < self._springs[0].max():
                    self.faults.switch(count)  # the robot stands, and a policy takes over
                self.engine.set_springs(*springs)
            self._springs = springs
        # Motors servo on their reported positions.
        setpoint = setpoint - self._encoder_offset + self.faults.shift(count)
        return torch.from_numpy(np.where(has_setpoint, setpoint, self._position).astype(np.float32))[None, None]

    def publish(self, count: int) -> None:
        """Publish the robot's state, and at its rate the true motion."""
        h, still, fields = self._errors, self.hidden.accelerometer_noise, self._fields
        noise = self.rng.standard_normal(2 * len(self._motor) + 9)
        q, v = (view[0].numpy() for view in self.engine.joint_state())
        pose, speed = (view[0].tolist() for view in self.engine.base_motion())
        position, orientation, spin = pose[:3], pose[3:], speed[3:]
        velocity = _rotated_back(orientation, speed[:3])
        self._position, joints = q, len(q)
        q = q + self._encoder_offset + h["joint_noise"] * noise[:joints]
        v = v + h["velocity_noise"] * noise[joints : 2 * joints]
        q, v = self.faults.observe(q, v)
        order = self.motors.joint
        fields["q"][:], fields["dq"][:] = q[order], v[order]
        fields["tau_est"][:] = self.engine.joint_torque()[0].numpy()[order]
        lean = h["tilt_bias"] * self._offsets[2, :3] + h["tilt_noise"] * noise[-6:-3]
        fields["quaternion"][:] = quat = _times(orientation, (1.0, *(lean / 2).tolist()))
        fields["rpy"][:] = _roll_pitch_yaw(quat)
        if self.faults.turned:
            fields["quaternion"][:] = np.roll(quat, -1)
        fields["accelerometer"][:] = self._acceleration(orientation, speed[:3]) + still * noise[-9:-6]
        fields["gyroscope"][:] = np.array(spin) + h["gyro_bias"] * self._offsets[1, :3] + h["gyro_noise"] * noise[-3:]
        self._report["foot_force"] = self.engine.foot_state()["foot_force"][0].numpy()[self._foot]
        self._report["tick"] = round(count * 1000 / self.robot.command_rate)
        if self.faults.due(count):
            self.states.publish(self._state.seal(self._report))
        if count % self._every_truth == 0:
            self._publish_truth(position, orientation, velocity, spin)

    def _acceleration(self, quat: Numbers, velocity: Numbers) -> np.ndarray:
        """Return the accelerometer's ideal measurement (3,), trunk frame, m/s^2; at rest 9.81 upwards (REP 145)."""
        before, rate = self._velocity or velocity, self.robot.command_rate
        self._velocity = velocity
        x, y, z = ((now - then) * rate for now, then in zip(velocity, before, strict=True))
        return np.array(_rotated_back(quat, (x, y, z + GRAVITY)))

    def _publish_truth(self, position: Numbers, quat: Numbers, velocity: Numbers, spin: Numbers) -> None:
        numbers = pose("pose.pose", position, quat)
        for name, speeds in (("linear", velocity), ("angular", spin)):
            numbers |= {f"twist.twist.{name}.{axis}": speed for axis, speed in zip("xyz", speeds, strict=True)}
        self.truth.publish(self._truth.write(**stamped(), **numbers))

    def _summary(self) -> str:
        return f"{super()._summary()}; commands with a wrong checksum: {self.rejected}"


def _roll_pitch_yaw(quat: Numbers) -> Numbers:
    """Return roll, pitch, yaw (3,), rad, of a quaternion w x y z: R = Rz(yaw) Ry(pitch) Rx(roll)."""
    w, x, y, z = quat
    roll = math.atan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y))
    pitch = math.asin(max(-1.0, min(1.0, 2 * (w * y - z * x))))
    return roll, pitch, math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))


def _times(a: Numbers, b: Numbers) -> Numbers:
    """Return the product of two quaternions w x y z."""
    (w, x, y, z), (p, q, r, s) = a, b
    return (
        w * p - x * q - y * r - z * s, w * q + x * p + y * s - z * r, w * r - x * s + y * p + z * q,
        w * s + x * r - y * q + z * p,
    )  # fmt: skip


def _rotated_back(quat: Numbers, vector: Numbers) -> Numbers:
    """Return a vector (3,), rotated by the inverse of a unit quaternion w x y z."""
    (w, x, y, z), (a, b, c) = quat, vector
    u, v, t = 2 * (b * z - c * y), 2 * (c * x - a * z), 2 * (a * y - b * x)  # twice vector x axis
    return a + w * u + v * z - t * y, b + w * v + t * x - u * z, c + w * t + u * y - v * x
