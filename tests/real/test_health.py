"""Temperature and battery of a legged robot: judged by the guard, which damps the robot or lays it down."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from real.control.health import GAP, HOT_FOR, LOW_FOR, Health
from real.control.lying import LyingDown
from real.drivers import open_driver
from real.drivers.lowlevel import FIRMEST, Motors
from real.drivers.wire import LOW_STATE, layout
from real.topics import ERROR, WARN, GuardReport, values_of
from robot_rl.robots.go2 import GO2
from tests.real.test_diagnostics import Monitor
from tests.real.test_guard import STAND, WIRE, Bench, stand_up, ticks

Build = Callable[..., Any]
CALF = 5  # motor number 5 is the front left calf


def state(temperature: int = 30, charge: int = 90, volts: int = 3800) -> np.ndarray:
    made = layout(LOW_STATE).empty()
    made["motor_state"]["temperature"][CALF], made["bms_state"]["soc"] = temperature, charge
    made["bms_state"]["cell_vol"][:8] = volts
    return made


def looked(health: Health, begin: float, seconds: float, **fields: int) -> float:
    """Show the same state at 50 Hz; return the time after it."""
    for k in range(round(seconds / 0.02)):
        health.look(state(**fields), begin + 0.02 * k)
    return begin + seconds


@pytest.fixture
def health() -> Health:
    made = Health(Motors(GO2), GO2.driver)
    looked(made, 0.0, 0.1)
    return made


@pytest.mark.parametrize(("degrees", "warns", "stops"), [(69, 0, 0), (70, 1, 0), (84, 1, 0), (85, 0, 1), (255, 0, 1)])
def test_temperature_of_the_hottest_motor(health: Health, degrees: int, warns: bool, stops: bool) -> None:
    looked(health, 0.1, 0.2, temperature=degrees)
    text = f"motor of FL_calf_joint at {degrees} degrees C"
    assert (health.warning, health.hot) == (text * warns, text * stops) and health.values["hottest motor"] == text


def test_hot_motor_must_cool_below_the_warning(health: Health) -> None:
    now = looked(health, 0.1, HOT_FOR - 0.02, temperature=90)
    assert not health.hot, "one reading may be wrong"
    now = looked(health, now, 0.1, temperature=90)
    now = looked(health, now, 1.0, temperature=70)
    assert health.hot == "motor of FL_calf_joint at 90 degrees C"
    looked(health, now, 0.1, temperature=69)
    assert not health.hot


@pytest.mark.parametrize(("charge", "warns", "low"), [(21, 0, 0), (20, 1, 0), (11, 1, 0), (10, 0, 1), (0, 0, 1)])
def test_charge_of_the_battery(health: Health, charge: int, warns: bool, low: bool) -> None:
    now = looked(health, 0.1, LOW_FOR - 0.1, charge=charge)
    assert not health.low
    now = looked(health, now, 0.2, charge=charge)
    text = f"battery at {charge} %"
    assert (health.warning, health.low) == (text * warns, text * low)
    now = looked(health, now, 0.1, charge=20)
    assert health.low == text * low, "until it is charged"
    looked(health, now, 0.1, charge=21)
    assert not health.low


def test_what_is_not_reported_is_not_judged(health: Health) -> None:
    """Unitree's simulator fills neither temperature nor battery."""
    looked(health, 0.1, LOW_FOR + 1, temperature=0, charge=0, volts=0)
    assert not (health.warning or health.hot or health.low) and health.values["battery"] == "not reported"


def test_times_begin_anew_after_a_gap(health: Health) -> None:
    health.look(state(charge=5, temperature=90), 1.0)
    health.look(state(charge=5, temperature=90), 1.0 + GAP + LOW_FOR)
    assert not (health.hot or health.low), "two readings far apart are no two seconds"


def test_limits_in_the_wrong_order_are_refused() -> None:
    for wrong in ({"motor_temperature_warning": 90.0}, {"battery_low": 30.0}, {"battery_low": 0.0}):
        with pytest.raises(
            ValueError, match=f"driver: {'motor' if 'motor' in str(wrong) else 'battery'}.* must be above 0"
        ):
            replace(GO2, driver=replace(GO2.driver, **wrong))


def test_report_tells_a_warning_from_damping() -> None:
    for report in (GuardReport(warning="warm"), GuardReport("silence", True, {}, 2, "warm"), GuardReport("silence")):
        assert GuardReport.of(report.message()) == report
    assert GuardReport(warning="warm").message().level == WARN and GuardReport("hot").message().level == ERROR


def test_lying_down_goes_on_from_the_last_command_and_ends_damped() -> None:
    motors = Motors(GO2)
    lying = LyingDown(motors, GO2)
    lying.begin(STAND, 10.0)
    steps = [lying.command(10.0 + 0.002 * k) for k in range(1600)]
    assert all(motors.refusal(step) == "" for step in steps) and lying.over
    goals = np.array([step["motor_cmd"]["q"][:12] for step in steps[:1500]])
    scales = [motors.stiffness_scale(step) for step in steps]
    assert goals[0] == pytest.approx(STAND["motor_cmd"]["q"][:12]) and scales[0] == pytest.approx(1.0)
    assert np.abs(np.diff(goals, axis=0)).max() < 0.003 and max(scales) == pytest.approx(FIRMEST)
    assert goals[-1][motors.motor] == pytest.approx(list(GO2.base.lying)), "Unitree's lying posture"
    assert WIRE.seal(steps[-1]) == WIRE.seal(motors.damp())


# ---- on the wire -------------------------------------------------------------------------------------------------
@pytest.fixture
def bench(topic_quadruped: Build, eventually: Build, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    for name, value in (("JUMP", 2.0), ("COMMAND_TIMEOUT", 0.5), ("STATE_TIMEOUT", 0.5)):
        monkeypatch.setattr(f"real.control.guard.{name}", value)
    monkeypatch.setattr("real.control.health.LOW_FOR", 0.1)
    robot = topic_quadruped(commands="lowcmd")
    with closing(Bench(robot)) as built:
        eventually(lambda: robot.is_damped)
        yield built


def test_warm_motor_is_reported_and_a_hot_one_damps(bench: Bench, eventually: Build) -> None:
    monitor, driver = Monitor(bench.node), open_driver(bench.node, GO2)
    driver.commands.publishers[0].close()  # the bench sends the commands
    stand_up(bench, eventually)
    bench.robot.temperature[CALF] = 72
    text = "motor of FL_calf_joint at 72 degrees C"
    eventually(lambda: monitor.heard and monitor.now("guard: guard").message == text)
    status = monitor.now("guard: guard")
    assert status.level == WARN and values_of(status)["hottest motor"] == text
    assert values_of(status)["battery"] == "battery at 90 %"
    eventually(lambda: driver.commands._guard.warning == text)
    assert not driver.objection(driver.commands._guard_heard) and not bench.robot.is_damped, "commands pass"
    bench.robot.temperature[CALF] = 86
    eventually(lambda: bench.robot.is_damped)
    hot = "motor of FL_calf_joint at 86 degrees C"
    assert bench.guard.damping == hot and bench.guard.lying.over
    eventually(lambda: driver.objection(driver.commands._guard_heard) == f"the guard damps the robot: {hot}")
    bench.robot.temperature[CALF] = 75
    bench.raw = WIRE.seal(Motors(GO2).command(bench.robot.position, 0.05))
    ticks(bench.robot, eventually, 200)
    assert bench.robot.is_damped, "it must cool below the warning"
    bench.robot.temperature[CALF] = 60
    stand_up(bench, eventually)
    assert bench.guard.events == {hot: 1}


@pytest.mark.parametrize("policy", ["goes on", "ends", "damps"])
def test_guard_lays_a_robot_with_a_low_battery_down(bench: Bench, eventually: Build, policy: str) -> None:
    stand_up(bench, eventually)
    bench.robot.charge = 10
    eventually(lambda: bench.guard.damping == "battery at 10 %")
    first = len(bench.robot.commands)
    if policy != "goes on":
        bench.raw = None if policy == "ends" else WIRE.seal(Motors(GO2).damp())
    eventually(lambda: bench.robot.is_damped, "damping", 10)
    motors = [motors for _, motors in bench.robot.commands[first:] if motors["kp"].any()]
    assert 1200 < len(motors) < 1600 and motors[-1]["q"].tolist() == pytest.approx(list(GO2.base.lying))
    ticks(bench.robot, eventually, 100)
    assert bench.robot.is_damped and bench.guard.latched and bench.guard.events == {"battery at 10 %": 1}


def test_remote_damps_while_the_guard_lays_the_robot_down(bench: Bench, eventually: Build) -> None:
    stand_up(bench, eventually)
    bench.robot.charge = 5
    eventually(lambda: bench.guard.damping == "battery at 5 %")
    ticks(bench.robot, eventually, 100)
    assert not bench.robot.is_damped
    bench.robot.remote[2:4] = 0x20, 0x02
    eventually(lambda: bench.robot.is_damped)
    bench.robot.remote[:] = 0
    ticks(bench.robot, eventually, 100)
    assert bench.robot.is_damped, "lying down is not taken up again"


def test_tilted_robot_with_a_low_battery_is_damped(bench: Bench, eventually: Build) -> None:
    stand_up(bench, eventually)
    bench.robot.quat = np.array([np.cos(0.45), np.sin(0.45), 0.0, 0.0])  # 52 degrees
    bench.robot.charge = 5
    eventually(lambda: bench.guard.damping == "battery at 5 %" and bench.robot.is_damped)


def test_closing_guard_ends_lying_down(bench: Bench, eventually: Build) -> None:
    stand_up(bench, eventually)
    bench.robot.charge = 5
    eventually(lambda: bench.guard.damping == "battery at 5 %")
    bench.raw = None
    bench.guard.close()
    bench.thread.join(0.5)
    assert bench.thread.is_alive() and not bench.robot.is_damped
    bench.thread.join(10)
    eventually(lambda: bench.robot.is_damped)
