"""Robots with Unitree's messages: records, checksums, validation of commands, and the driver."""

import math
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from real.bus import Node, decode, encode, open_node
from real.drivers import open_driver
from real.drivers.driver import Driver
from real.drivers.lowlevel import DAMPING, NO_POSITION, Motors
from real.drivers.state import NotReady
from real.drivers.wire import LOW_COMMAND, LOW_STATE, layout
from robot_rl.interface.command import GripperCommand, JointPositions
from robot_rl.robots.go2 import GO2

Build = Callable[..., Any]
TILTED = np.array([math.cos(0.2), 0.3 * math.sin(0.2), 0.5 * math.sin(0.2), math.sqrt(0.66) * math.sin(0.2)])
HG_COMMAND, HG_STATE = "unitree_hg/msg/LowCmd", "unitree_hg/msg/LowState"


# ---- messages ----------------------------------------------------------------------------------------------------
def go_idle() -> np.ndarray:
    command = layout(LOW_COMMAND).empty()
    command["head"], command["level_flag"] = (0xFE, 0xEF), 0xFF
    motors = command["motor_cmd"]
    motors["mode"], motors["q"], motors["dq"] = 1, 2.146e9, 16000.0
    return command


def hg_ladder() -> np.ndarray:
    command = layout(HG_COMMAND).empty()
    command["mode_machine"] = 5
    motors = command["motor_cmd"]
    motors["mode"], motors["q"], motors["kp"], motors["kd"] = 1, 0.1 * np.arange(35), 60.0, 2.0
    return command


def test_checksums_of_known_messages() -> None:
    go, hg = layout(LOW_COMMAND), layout(HG_COMMAND)
    assert (go.checksum(go.empty()), go.checksum(go_idle())) == (0x4B5A4880, 0x06E577CD)
    assert (hg.checksum(hg.empty()), hg.checksum(hg_ladder())) == (0xFE172F9F, 0x47E01511)


def test_records_have_the_sizes_of_the_c_structs() -> None:
    sizes = [layout(name).dtype.itemsize for name in (LOW_COMMAND, LOW_STATE, HG_COMMAND, HG_STATE)]
    assert sizes == [812, 1180, 1004, 2092]


def filled(record: np.ndarray, rng: np.random.Generator) -> None:
    for name in record.dtype.names or ():
        dtype = record.dtype[name].base
        if dtype.names:
            for part in np.atleast_1d(record[name]):
                filled(part, rng)
        elif dtype.kind == "f":
            record[name] = rng.normal(size=record[name].shape)
        else:
            record[name] = rng.integers(0, 100, record[name].shape)


def assert_equal(message: Any, record: Any) -> None:
    for name in record.dtype.names:
        value, part = getattr(message, name), record[name]
        if part.dtype.names:
            for inner, expected in zip(value, part, strict=True) if part.shape else [(value, part)]:
                assert_equal(inner, expected)
        else:
            np.testing.assert_array_equal(np.asarray(value), part)


@pytest.mark.parametrize("type_name", [LOW_COMMAND, LOW_STATE, HG_COMMAND, HG_STATE])
def test_round_trip_equals_the_messages_own_encoding(type_name: str) -> None:
    wire = layout(type_name)
    record = wire.empty()
    filled(record, np.random.default_rng(0))
    sealed = wire.seal(record)
    message = decode(sealed, type_name)
    assert_equal(message, record)
    assert bytes(encode(message, type_name)) == sealed
    opened = wire.open(sealed)
    assert opened is not None and opened.tobytes() == record.tobytes()


def test_checksum_ignores_padding() -> None:
    wire = layout(LOW_COMMAND)
    message = np.frombuffer(b"\xff" * wire.dtype.itemsize, wire.dtype).reshape(()).copy()
    for name in wire.dtype.names or ():
        message[name] = np.zeros((), wire.dtype[name].base)
    assert wire.open(wire.seal(message)) is not None and wire.checksum(message) == 0x4B5A4880


def test_damaged_bytes_are_not_decoded() -> None:
    wire = layout(LOW_STATE)
    raw = bytearray(wire.seal(wire.empty()))
    assert wire.open(bytes(raw)) is not None
    assert wire.open(bytes(raw[:-8])) is None, "cut short"
    assert wire.open(b"\x00\x00" + bytes(raw[2:])) is None, "big-endian"
    raw[100] ^= 1
    assert wire.open(bytes(raw)) is None, "one bit"


# ---- commands ----------------------------------------------------------------------------------------------------
MOTORS = Motors(GO2)
FR_CALF = 2  # motor number 2 is the front right calf, joint 5 of the spec


def test_command_has_the_motors_order_and_the_specs_gains_and_damping_no_stiffness() -> None:
    command = MOTORS.command(np.array(GO2.home), stiffness_scale=0.5)
    motors = command["motor_cmd"]
    assert motors["q"][:3] == pytest.approx(GO2.home[3:6]), "the right leg first"
    assert (motors["kp"][:12] == 20).all() and motors["kd"][:12] == pytest.approx(1.0)
    assert (motors["mode"] == 1).all() and not motors["dq"][:12].any() and not motors["tau"].any()
    assert (motors["q"][12:] == np.float32(NO_POSITION)).all() and not motors["kp"][12:].any()
    assert command["head"].tolist() == [0xFE, 0xEF] and command["level_flag"] == 0xFF
    assert MOTORS.refusal(command) == ""
    assert MOTORS.motor[MOTORS.joint].tolist() == list(range(12)) and MOTORS.motor[5] == FR_CALF

    motors = MOTORS.damp()["motor_cmd"][:12]
    assert not motors["kp"].any() and (motors["kd"] == DAMPING).all() and not motors["dq"].any()
    assert MOTORS.refusal(MOTORS.damp()) == ""


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("q", np.nan, "nonfinite command"), ("kd", np.inf, "nonfinite command"),
        ("q", GO2.joints[5].high + 0.05, "position out of limits"),
        ("q", GO2.joints[5].low - 0.05, "position out of limits"),
        ("kp", 61.0, "gain out of limits"), ("kp", -1.0, "gain out of limits"),
        ("kd", 6.0, "gain out of limits"), ("kd", 0.9, "gain out of limits"),
        ("tau", 0.1, "more than set-points and gains"), ("dq", 0.1, "more than set-points and gains"),
    ],
)  # fmt: skip
def test_invalid_set_points_and_gains_are_refused(field: str, value: float, reason: str) -> None:
    command = MOTORS.command(np.array(GO2.home))
    command["motor_cmd"][field][FR_CALF] = value
    assert MOTORS.refusal(command) == reason


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("head", 0), 0), (("level_flag",), 0), (("frame_reserve",), 1), (("sn", 1), 1), (("bms_cmd", "off"), 0xA5),
        (("motor_cmd", "mode", FR_CALF), 0), (("motor_cmd", "mode", 15), 0), (("motor_cmd", "reserve", FR_CALF), 1),
        (("motor_cmd", "kp", 12), np.nan), (("motor_cmd", "kp", 12), 25.0), (("motor_cmd", "kd", 19), np.nan),
        (("motor_cmd", "q", 12), 0.0), (("motor_cmd", "tau", 13), 1.0),
        (("wireless_remote", 39), 1), (("led", 0), 1), (("fan", 1), 1), (("gpio",), 1), (("reserve",), 1),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("valid", [MOTORS.command(np.array(GO2.home)), MOTORS.damp()], ids=["stand", "damp"])
def test_other_fields_of_a_command_are_refused(valid: np.ndarray, path: tuple[str | int, ...], value: float) -> None:
    command = valid.copy()
    field: Any = command
    for name in path[:-1]:
        field = field[name]
    field[path[-1]] = value
    wire = layout(LOW_COMMAND)
    for sent, refusal in ((command, "more than set-points and gains"), (valid, "")):
        opened = wire.open(wire.seal(sent))
        assert opened is not None and MOTORS.refusal(opened) == refusal


def test_guard_does_not_import_torch() -> None:
    code = (
        "import sys, real.control.guard, robot_rl.cli.twin; from robot_rl.robots import robots; robots.get('go2');"
        " sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- the driver --------------------------------------------------------------------------------------------------


@pytest.fixture
def ready(node: Node, topic_quadruped: Build) -> tuple[Any, Driver]:
    """Return a robot and its driver after the first state."""
    robot, driver = topic_quadruped(), open_driver(node, GO2)
    driver.preflight.wait_ready(30)
    return robot, driver


def test_joints_feet_and_trunk_are_in_the_order_of_the_spec(node: Node, topic_quadruped: Any, eventually: Any) -> None:
    robot = topic_quadruped()
    robot.position, robot.speed = np.arange(12) / 10, np.arange(12.0) - 5
    robot.quat, robot.gyroscope = TILTED, np.array([0.1, -0.2, 0.3])
    driver = open_driver(node, GO2)
    driver.preflight.wait_ready(30)
    eventually(lambda: abs(driver.reading().quat[3] - TILTED[3]) < 1e-6)
    state = driver.observe(torch.zeros(1, 12))
    assert state.joint_position[0].tolist() == pytest.approx((np.arange(12) / 10).tolist())
    assert state.joint_velocity[0].tolist() == pytest.approx((np.arange(12.0) - 5).tolist())
    assert state.base_quat[0].tolist() == pytest.approx(TILTED.tolist()), "w x y z"
    assert state.base_angular_velocity[0].tolist() == pytest.approx([0.1, -0.2, 0.3])
    assert state.foot_force[0].tolist() == [20, 10, 40, 30], "FR FL RR RL becomes FL FR RL RR"
    _, x, y, _ = TILTED
    assert driver.reading().upright == pytest.approx(1 - 2 * (x * x + y * y))


@pytest.mark.parametrize("damage", ["checksum", "nan", "orientation", "length"])
def test_damaged_state_is_rejected_and_counted(ready: Any, eventually: Build, damage: str) -> None:
    robot, driver = ready
    robot.silent = True
    eventually(lambda: not driver.state.joints.wait(0.05), "silence")
    message = robot.message()
    if damage == "nan":
        message["motor_state"]["q"][3] = np.nan
    if damage == "orientation":
        message["imu_state"]["quaternion"] = 0
    raw = robot._state.seal(message)
    if damage == "checksum":
        raw = raw[:-1] + bytes([raw[-1] ^ 1])
    before = driver.reading()
    if damage == "length":
        driver.state._on_state(type("Sample", (), {"raw": raw[:-8], "received": 0.0})())
    else:
        robot.states.publish(raw)
    eventually(lambda: driver.state.rejected == 1)
    assert driver.reading() is before


def test_repeated_state_ages(ready: tuple[Any, Driver], eventually: Build) -> None:
    """The robot's own software may hang and repeat its last state."""
    robot, driver = ready
    robot.frozen = True
    eventually(lambda: time.monotonic() - driver.reading().received > 0.1)
    count = driver.state.joints.latest.count
    eventually(lambda: driver.state.joints.latest.count > count + 5)
    assert driver.state.rejected == 0
    robot.frozen = False
    eventually(lambda: time.monotonic() - driver.reading().received < 0.05)


def test_missing_robot_or_guard_is_named(node: Node, topic_quadruped: Build) -> None:
    driver = open_driver(node, GO2)
    with pytest.raises(NotReady, match="state of go2 on /lowstate.*robot-rl twin go2"):
        driver.preflight.wait_ready(0.1)
    topic_quadruped(commands="elsewhere")
    driver.state.joints.wait(30)
    with pytest.raises(NotReady, match="nobody listens on /lowcmd_wanted.*robot-rl guard go2"):
        driver.preflight.wait_ready(0.2)


def test_second_policy_is_refused(node: Node, topic_quadruped: Build, eventually: Build) -> None:
    topic_quadruped()
    with open_node("other") as other:
        open_driver(other, GO2)
        driver = open_driver(node, GO2)
        eventually(driver.commands.publishers[0].other_writers)
        with pytest.raises(NotReady, match="/other already sends commands on /lowcmd_wanted"):
            driver.preflight.wait_ready(30)


def test_commands_arrive_in_the_order_of_the_spec(ready: tuple[Any, Driver], eventually: Build) -> None:
    robot, driver = ready
    driver.commands.stiffness_scale = 0.5
    driver.send(JointPositions(torch.tensor([GO2.home])), torch.zeros(1, 12), GripperCommand(0.0, 0.0, "release"))
    eventually(lambda: robot.commands)
    motors = robot.commands[0][1]
    assert motors["q"].tolist() == pytest.approx(list(GO2.home)) and (motors["kp"] == 20).all()
    driver.damp()
    eventually(lambda: robot.is_damped)
