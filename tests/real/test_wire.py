"""Unitree's messages as records: checksums, bytes on the bus, and validation of commands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from real.bus import decode, encode, make
from real.robots.lowlevel import DAMPING, NO_POSITION, Motors
from real.robots.wire import LOW_COMMAND, LOW_STATE, layout
from robot_rl.robots.go2 import GO2

HG_COMMAND, HG_STATE = "unitree_hg/msg/LowCmd", "unitree_hg/msg/LowState"


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


@pytest.mark.parametrize(
    ("type_name", "command", "checksum"),
    [
        (LOW_COMMAND, layout(LOW_COMMAND).empty(), 0x4B5A4880),
        (LOW_COMMAND, go_idle(), 0x06E577CD),
        (HG_COMMAND, layout(HG_COMMAND).empty(), 0xFE172F9F),
        (HG_COMMAND, hg_ladder(), 0x47E01511),
    ],
    ids=["go zeros", "go idle", "hg zeros", "hg ladder"],
)
def test_checksums_of_known_messages(type_name: str, command: np.ndarray, checksum: int) -> None:
    assert layout(type_name).checksum(command) == checksum


@pytest.mark.parametrize(
    ("type_name", "size"), [(LOW_COMMAND, 812), (LOW_STATE, 1180), (HG_COMMAND, 1004), (HG_STATE, 2092)]
)
def test_record_has_the_size_of_the_c_struct(type_name: str, size: int) -> None:
    assert layout(type_name).dtype.itemsize == size


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


def as_fields(record: Any) -> Any:
    if record.dtype.names and record.shape:
        return [as_fields(part) for part in record]
    if record.dtype.names:
        return {name: as_fields(record[name]) for name in record.dtype.names}
    return record if record.shape else record.item()


@pytest.mark.parametrize("type_name", [LOW_COMMAND, LOW_STATE, HG_COMMAND, HG_STATE])
def test_round_trip_equals_the_messages_own_encoding(type_name: str) -> None:
    wire = layout(type_name)
    message = wire.empty()
    filled(message, np.random.default_rng(0))
    sealed = wire.seal(message)
    fields = as_fields(message)
    fields = {k: make(f"{type_name.split('/')[0]}/msg/{_type(type_name, k)}", **v) if isinstance(v, dict) else v
              for k, v in fields.items()}  # fmt: skip
    for name, value in fields.items():
        if isinstance(value, list):
            kind = f"{type_name.split('/')[0]}/msg/{_type(type_name, name)}"
            fields[name] = [make(kind, **part) for part in value]
    reference = bytes(encode(make(type_name, **fields), type_name))
    assert sealed == reference
    back = wire.open(sealed)
    assert back is not None and back.tobytes() == message.tobytes()
    assert decode(sealed, type_name).crc == message["crc"]


def _type(type_name: str, field: str) -> str:
    return {"motor_cmd": "MotorCmd", "bms_cmd": "BmsCmd", "imu_state": "IMUState", "motor_state": "MotorState",
            "bms_state": "BmsState"}[field]  # fmt: skip


def test_checksum_ignores_padding() -> None:
    wire = layout(LOW_COMMAND)
    message = np.frombuffer(b"\xff" * wire.dtype.itemsize, wire.dtype).reshape(()).copy()
    for name in wire.dtype.names or ():
        message[name] = np.zeros((), wire.dtype[name].base)
    assert wire.open(wire.seal(message)) is not None
    assert wire.checksum(message) == 0x4B5A4880


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
FR_CALF = 2
"""Motor number 2 is the front right calf, joint 5 of the spec."""


def test_command_has_the_motors_order_and_the_specs_gains() -> None:
    command = MOTORS.command(np.array(GO2.home), stiffness_scale=0.5)
    motors = command["motor_cmd"]
    assert motors["q"][:3] == pytest.approx(GO2.home[3:6]), "the right leg first"
    assert (motors["kp"][:12] == 20).all() and motors["kd"][:12] == pytest.approx(1.0)
    assert (motors["mode"] == 1).all() and not motors["dq"][:12].any() and not motors["tau"].any()
    assert (motors["q"][12:] == np.float32(NO_POSITION)).all() and not motors["kp"][12:].any()
    assert command["head"].tolist() == [0xFE, 0xEF] and command["level_flag"] == 0xFF
    assert MOTORS.refusal(command) == ""


def test_damping_command_has_no_stiffness() -> None:
    motors = MOTORS.damp()["motor_cmd"][:12]
    assert not motors["kp"].any() and (motors["kd"] == DAMPING).all() and not motors["dq"].any()
    assert MOTORS.refusal(MOTORS.damp()) == ""


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("q", np.nan, "nonfinite command"),
        ("kd", np.inf, "nonfinite command"),
        ("q", GO2.joints[5].high + 0.05, "position out of limits"),
        ("q", GO2.joints[5].low - 0.05, "position out of limits"),
        ("kp", 61.0, "gain out of limits"),
        ("kp", -1.0, "gain out of limits"),
        ("kd", 6.0, "gain out of limits"),
        ("kd", 0.9, "gain out of limits"),
        ("tau", 0.1, "more than set-points and gains"),
        ("dq", 0.1, "more than set-points and gains"),
    ],
)
def test_invalid_set_points_and_gains_are_refused(field: str, value: float, reason: str) -> None:
    command = MOTORS.command(np.array(GO2.home))
    command["motor_cmd"][field][FR_CALF] = value
    assert MOTORS.refusal(command) == reason


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("head", 0), 0),
        (("level_flag",), 0),
        (("frame_reserve",), 1),
        (("sn", 1), 1),
        (("motor_cmd", "mode", FR_CALF), 0),
        (("motor_cmd", "mode", 15), 0),
        (("motor_cmd", "reserve", FR_CALF), 1),
        (("motor_cmd", "kp", 12), np.nan),
        (("motor_cmd", "kp", 12), 25.0),
        (("motor_cmd", "kd", 19), np.nan),
        (("motor_cmd", "q", 12), 0.0),
        (("motor_cmd", "tau", 13), 1.0),
        (("bms_cmd", "off"), 0xA5),
        (("wireless_remote", 39), 1),
        (("led", 0), 1),
        (("fan", 1), 1),
        (("gpio",), 1),
        (("reserve",), 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("valid", [MOTORS.command(np.array(GO2.home)), MOTORS.damp()], ids=["stand", "damp"])
def test_other_fields_of_a_command_are_refused(valid: np.ndarray, path: tuple[str | int, ...], value: float) -> None:
    command = valid.copy()
    field: Any = command
    for name in path[:-1]:
        field = field[name]
    field[path[-1]] = value
    wire = layout(LOW_COMMAND)
    opened = wire.open(wire.seal(command))
    assert opened is not None and MOTORS.refusal(opened) == "more than set-points and gains"
    opened = wire.open(wire.seal(valid))
    assert opened is not None and MOTORS.refusal(opened) == ""


def test_motor_and_joint_indices_are_inverse() -> None:
    assert MOTORS.motor[MOTORS.joint].tolist() == list(range(12)) and MOTORS.motor[5] == FR_CALF


def test_guard_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys, real.control.guard, robot_rl.cli.guard; from robot_rl.robots import robots; robots.get('go2');"
        " sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
