"""Faults of a twin: how they are written, and how they act on commands and states."""

from typing import Any

import numpy as np
import pytest

from real.twin import open_twin
from real.twin.faults import FAULTS, Faults, parse_fault
from robot_rl.robots import robots
from robot_rl.util.errors import UserError
from sim.tasks import task_of

PANDA, GO2 = robots.get("panda"), robots.get("go2")


def of(*texts: str, robot: Any = PANDA) -> Faults:
    return Faults([parse_fault(text, robot) for text in texts], robot.command_rate, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("motor-dely=0.04", "did you mean motor-delay"),
        ("motor-delay=4", "written motor-delay=0 to 0.5 s"),
        ("motor-delay=nan", "written motor-delay=0 to 0.5 s"),
        ("motor-delay", "written motor-delay=0 to 0.5 s"),
        ("velocity-noise=much", "rad/s"),
        ("joint-order=3", "written joint-order=JOINT,OTHER"),
        ("joint-order=3,3", "written joint-order=JOINT,OTHER"),
        ("position-offset=0.1", "written position-offset=JOINT:-1 to 1 rad"),
        ("position-sign=jont2", "unknown joint 'jont2'; did you mean joint2"),
        ("position-sign=8", "unknown joint '8'"),
        ("quaternion-order", "of legged robots"),
    ],
)
def test_wrong_faults_are_refused_with_the_way_to_write_them(text: str, words: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_fault(text, PANDA)
    assert words in str(refused.value)


def test_every_fault_has_a_way_to_be_written() -> None:
    values = {name: "=" + ",".join("23"[: kind.joints]) for name, kind in FAULTS.items()}
    for name, kind in FAULTS.items():
        number = f"{kind.high:g}" if kind.high > kind.low else ""
        text = name + (":" if kind.joints and number else "").join([values[name], number])
        assert parse_fault(text.rstrip("="), GO2).name == name


def test_observation_faults_change_only_their_joints() -> None:
    q, v = np.arange(7.0), 10 * np.arange(7.0)
    position, velocity = of("joint-order=joint2,4").observe(q, v)
    assert position.tolist() == [0, 3, 2, 1, 4, 5, 6] and velocity.tolist() == [0, 30, 20, 10, 40, 50, 60]
    position, velocity = of("position-offset=2:0.5").observe(q, v)
    assert (position - q).tolist() == [0, 0.5, 0, 0, 0, 0, 0] and (velocity == v).all()
    position, velocity = of("position-scale=2:2", "position-sign=3").observe(q, v)
    assert position.tolist() == [0, 2, -2, 3, 4, 5, 6] and velocity.tolist() == [0, 20, -20, 30, 40, 50, 60]
    position, velocity = of("velocity-noise=2").observe(q, np.zeros(7))
    assert (position == q).all() and 0.5 < velocity.std() < 4 and (q == np.arange(7.0)).all()


def test_states_come_at_the_given_rate_and_jumps_end() -> None:
    slow = of("state-rate=30")
    assert slow.due(0) and sum(slow.due(count) for count in range(2000)) == 300
    assert all(of().due(count) for count in range(9))
    jumps = of("switch-jump=0.2")
    assert jumps.shift(0) == 0
    jumps.switch(100)
    assert jumps.shift(100) == jumps.shift(159) == 0.2 and jumps.shift(160) == 0


def test_same_fault_twice_is_refused() -> None:
    with pytest.raises(UserError, match="given twice"):
        of("motor-delay=0.1", "motor-delay=0.2")
    assert str(of("position-sign=1", "position-sign=2")) == "position-sign=1, position-sign=2"


def test_faults_are_kept_with_the_hidden_parameters_and_in_the_summary(nodes: Any) -> None:
    task = task_of("go2")
    faults = ("stiffness=2", "quaternion-order", "motor-delay=0.01")
    twin: Any = open_twin(nodes("twin", namespace="/faulty"), task, fault=faults, cameras=False)
    assert [fault.text for fault in twin.hidden.faults] == list(faults)
    twin.timing = {"ticks": 1, "speed": 1.0}
    assert twin.summary().startswith("with the faults stiffness=2, quaternion-order, motor-delay=0.01: ")
    plain: Any = open_twin(nodes("twin", namespace="/plain"), task, cameras=False)
    name = "robot.stiffness_scale"
    assert twin.engine._servo[name] == pytest.approx(2 * plain.engine._servo[name])
    assert twin._delayed.maxlen == plain._delayed.maxlen + 5 and not plain.faults
    twin.publish(0), plain.publish(0)
    assert abs(twin._report["imu_state"]["quaternion"][3]) > 0.9 < abs(plain._report["imu_state"]["quaternion"][0])


def test_armature_is_refused_where_the_model_has_none(nodes: Any) -> None:
    with pytest.raises(UserError, match="the model of ur5e has none"):
        open_twin(nodes("twin", namespace="/bare"), task_of("ur5e"), fault=("armature=3",), cameras=False)
