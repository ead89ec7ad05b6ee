"""`robot-rl robot so101`: LeRobot's own code moves servos that speak Feetech's protocol."""

import time
from collections.abc import Callable

import numpy as np
import pytest

from real.bus import make
from robot_rl.robots.so101 import SO101
from tests.real.franka.conftest import ARRAY
from tests.real.lerobot.conftest import MOTORS, RANGES, TICK, Bench
from tests.real.lerobot.servos import GOAL, Servos

pytestmark = [pytest.mark.realtime, pytest.mark.timeout(120)]
Hold = Callable[..., Bench]
MIDDLE = np.array([(low + high) / 2 for low, high in RANGES])
SWING = np.array([0.3, -0.2, 0.25, -0.3, 0.4])


def goals(servos: Servos) -> np.ndarray:
    return np.array([servos.all[k].goal for k in range(1, 7)])


def test_states_and_goals_have_names_order_units_and_signs_of_the_spec(hold: Hold, servos: Servos) -> None:
    bench = hold()
    message = bench.states.latest.msg
    assert tuple(message.name) == MOTORS == (*SO101.joint_names, *SO101.fingers)
    ticks = np.array([servos.all[k].position for k in range(1, 7)])
    assert np.abs(bench.q - (ticks - MIDDLE)[:5] * TICK).max() < 1.5 * TICK
    start = np.array(bench.q)
    bench.stream(lambda t: (start + SWING * min(1.0, t)).tolist(), 1.5, 60)
    bench.arrive()
    assert np.abs(goals(servos)[:5] - (MIDDLE[:5] + (start + SWING) / TICK)).max() < 1.5
    assert np.abs(np.array(bench.q) - start - SWING).max() < 0.01


def test_the_arm_holds_when_goals_stop_and_follows_again(hold: Hold, servos: Servos) -> None:
    bench = hold()
    start = np.array(bench.q)
    bench.stream(lambda t: (start + SWING * t).tolist(), 0.5, 60)
    bench.until(lambda: bench.reports[-1].damping == "no goals")
    rest, count = goals(servos), len(servos.goals)
    bench.until(lambda: len(servos.goals) > count + 20)
    assert (goals(servos) == rest).all() and all(servo.torque for servo in servos.all.values())
    bench.stream(lambda t: (start + SWING * (0.5 + t)).tolist(), 0.3, 60)
    assert bench.reports[-1].damping == "" and not any(report.latched for report in bench.reports)


def test_goals_are_clipped_by_speed_lead_and_limits(hold: Hold, servos: Servos) -> None:
    bench = hold()
    start = bench.q
    bench.stream(lambda _: start, 0.2, 60)
    far = [3.0, *start[1:]]  # beyond the limit of the joint, and of the servo
    first = len(servos.goals)
    bench.stream(lambda _: far, 2.0, 60)
    pan = np.array([written[1] for _, written in servos.goals[first:]])
    step = 0.9 * 2.4 / 60 / TICK
    assert np.diff(pan).max() <= step + 2 and pan[-1] - pan[0] > 500, "it moves as fast as allowed"
    assert abs(pan[-1] - (MIDDLE[0] + SO101.joints[0].high / TICK)) < 2


def test_wrong_goals_do_not_move_the_arm(hold: Hold, servos: Servos) -> None:
    bench = hold()
    start, rest = np.array(bench.q), goals(servos)
    for goal in ((start + 0.5).tolist(), [float("nan")] * 5, start.tolist()[:4]):
        bench.stream(lambda _, goal=goal: goal, 0.5, 60)
        assert (np.abs(goals(servos) - rest) <= 1).all()
    assert "the first goal is more than 11 degrees away from the arm" in [r.damping for r in bench.reports]


def test_the_gripper_opens_to_a_width_at_limited_speed(hold: Hold, servos: Servos) -> None:
    bench = hold()
    low, high = RANGES[5]
    for width in (0.13, 0.0, 0.065):
        end = time.monotonic() + 15
        while abs(bench.width - width) > 0.001:
            assert time.monotonic() < end, (width, bench.width)
            bench.widths.publish(make(ARRAY, data=[width]))
            time.sleep(0.02)
        assert abs(servos.all[6].goal - (low + (high - low) * width / 0.13)) <= 1
    jaw = np.array([written[6] for _, written in servos.goals])
    assert np.abs(np.diff(jaw)).max() <= 0.1 / 60 / 0.13 * (high - low) + 2


def test_old_goals_in_the_servos_do_not_move_the_arm_at_the_start(hold: Hold, servos: Servos) -> None:
    """Servos go to the goal in their memory as soon as torque is switched on."""
    before = [servo.position for servo in servos.all.values()]
    for servo in servos.all.values():
        servo.put(GOAL, 2900)
    bench = hold()
    bench.until(lambda: len(servos.goals) > 30)
    assert np.abs(np.subtract([servo.position for servo in servos.all.values()], before)).max() <= 2
    assert all(servo.torque for servo in servos.all.values())


def test_dry_run_writes_nothing(hold: Hold, servos: Servos) -> None:
    bench = hold("--dry-run")
    start = np.array(bench.q)
    bench.stream(lambda t: (start + 2 * SWING * min(1.0, t)).tolist(), 2.5, 60)
    assert bench.reports[-1].damping == "", "an arm that does not move is not taken for blocked"
    bench.process.terminate()
    bench.process.wait(20)
    assert not servos.written and not any(servo.torque for servo in servos.all.values())
