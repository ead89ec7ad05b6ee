"""Unitree's own SDK as a judge of motor commands and states on the wire, in another process.

It is unitree_sdk2py of the package unitree-sdk2py-dimos, with its generated message classes and its compiled checksum.
Of the other packages, unitree-sdk2 pins cyclonedds 0.10.2, which the registry does not have, and lacks the compiled
checksum and the motion switcher; far-unitree-sdk is a client in C++ without message classes; unitree-dds-wrapper needs
pygame and is not the SDK.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from real.bus import Node, qos
from real.control.guard import Guard
from real.drivers import open_driver
from real.drivers.lowlevel import DAMPING, NO_POSITION, Motors
from real.drivers.wire import LOW_COMMAND, layout
from robot_rl.robots.go2 import GO2
from tests.real.unitree.conftest import SdkRobot

Build = Callable[..., Any]
MOTORS, WIRE = Motors(GO2), layout(LOW_COMMAND)


@pytest.fixture
def guard(robot: SdkRobot, nodes: Callable[[str], Node]) -> Iterator[Guard]:
    made = Guard(nodes("guard"), GO2)
    thread = threading.Thread(target=made.run, daemon=True)
    thread.start()
    yield made
    made.close()
    thread.join(30)


def test_sdk_reads_the_guards_commands(robot: SdkRobot, guard: Guard, nodes: Build, eventually: Build) -> None:
    eventually(lambda: robot.commands)
    damped = robot.commands[0]
    assert damped["crc"] and damped["head"] == [0xFE, 0xEF] and damped["level"] == 0xFF and damped["off"] == 0
    assert damped["mode"] == [1] * 20 and damped["kd"] == [DAMPING] * 12 + [0.0] * 8 and damped["kp"] == [0.0] * 20
    policy = nodes("policy")
    output = policy.publisher(LOW_COMMAND, "lowcmd_wanted", qos.COMMAND)
    assert policy.wait_for(lambda: output.matched == 1, 30)
    home = np.array(GO2.home)[MOTORS.joint]
    robot.tell(motor={"q": {str(motor): angle for motor, angle in enumerate(home)}})
    eventually(lambda: guard.position == pytest.approx(home))
    position = np.array(GO2.home) + 0.01 * np.arange(12)  # each joint's is another
    raw = WIRE.seal(MOTORS.command(position, 0.25))
    eventually(lambda: output.publish(raw) and any(max(c["kp"]) for c in robot.commands))
    stood = next(c for c in robot.commands if max(c["kp"]))
    sent = WIRE.open(raw)
    assert sent is not None and stood["crc"]
    for name in ("q", "dq", "tau", "kp", "kd"):
        assert stood[name] == pytest.approx(sent["motor_cmd"][name].tolist()), name
    assert stood["q"][12:] == [pytest.approx(NO_POSITION)] * 8 and stood["kp"][3] == pytest.approx(10.0)
    assert len({round(q, 4) for q in stood["q"][:12]}) == 12, "an exchange of motors would show"


@pytest.mark.parametrize("fault", ["checksum", "field", "order"])
def test_sdk_refuses_what_is_damaged(robot: SdkRobot, nodes: Build, eventually: Build, fault: str) -> None:
    """The judge can say no: to a bit of the checksum, of a field, and to two motors exchanged after the checksum."""
    node = nodes("rogue")
    output = node.publisher(LOW_COMMAND, "lowcmd", qos.COMMAND)
    assert node.wait_for(lambda: output.matched == 1, 30)
    command = MOTORS.command(np.array(GO2.home))
    raw = bytearray(WIRE.seal(command))
    eventually(lambda: output.publish(bytes(raw)) and robot.commands)
    assert robot.commands[0]["crc"]
    if fault == "order":
        command["motor_cmd"][[0, 1]] = command["motor_cmd"][[1, 0]]
        crc, raw = raw[-4:], bytearray(WIRE.seal(command))
        raw[-4:] = crc
    else:
        raw[-1 if fault == "checksum" else 60] ^= 1
    eventually(lambda: output.publish(bytes(raw)) and len(robot.commands) > 1)
    assert not robot.commands[1]["crc"]


def test_driver_reads_the_sdks_state(robot: SdkRobot, nodes: Build, eventually: Build) -> None:
    driver = open_driver(nodes("policy"), GO2)
    reading = eventually(driver.reading)
    assert reading.position.tolist() == pytest.approx((0.01 * MOTORS.motor).tolist()), "in the order of the spec"
    assert reading.velocity.tolist() == pytest.approx((-0.01 * MOTORS.motor).tolist())
    assert reading.foot_force.tolist() == [20, 10, 40, 30], "FR FL RR RL becomes FL FR RL RR"
    first = reading.received
    eventually(lambda: driver.reading().received > first)
    assert driver.state.rejected == 0


def test_damaged_state_of_the_sdk_is_rejected(robot: SdkRobot, nodes: Build, eventually: Build) -> None:
    driver = open_driver(nodes("policy"), GO2)
    eventually(driver.reading)
    robot.tell(flip=1)
    eventually(lambda: driver.state.rejected > 3)
    last = driver.reading().received
    robot.tell()
    eventually(lambda: driver.reading().received > last)


def test_guard_stops_for_a_hot_motor_of_the_sdk(robot: SdkRobot, guard: Guard, eventually: Build) -> None:
    robot.tell(motor={"temperature": {"4": 75}}, soc=15)
    eventually(lambda: guard.health.warning == "motor of FL_thigh_joint at 75 degrees C; battery at 15 %")
    robot.tell(motor={"temperature": {"4": 85}})
    eventually(lambda: guard.damping == "motor of FL_thigh_joint at 85 degrees C")
    robot.tell(soc=9)
    eventually(lambda: guard.health.low == "battery at 9 %" and not guard.health.hot)
