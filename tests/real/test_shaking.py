"""A twin's faults are found by name in its run's log, in lockstep; runs without a fault give no cause.

The limits come from panda-lift and go2-velocity with seeds below 100; these runs are of other tasks or seeds.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_rl.cli.main import main
from robot_rl.data.motion import NAME, read_motion, write_motion
from robot_rl.diagnosis import find, measure
from robot_rl.util.errors import UserError

SEED, ARM = 123, "fr3-reach"


@pytest.fixture
def causes(private_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Record a run on a twin with faults, and return the names of the causes that are found, the likeliest first."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    from benchmarks.shaking import record

    def run(task: str, *faults: str) -> list[str]:
        record(task, tmp_path, faults, SEED, seconds=4.0)
        motion = read_motion(tmp_path)
        return [cause.name for cause in find(motion, measure(motion))]

    return run


@pytest.mark.parametrize("task", [ARM, "ur5e-reach", "go2-velocity"])
def test_nothing_is_found_without_a_fault(task: str, causes: Callable[..., list[str]]) -> None:
    assert causes(task) == []


@pytest.mark.parametrize(
    "fault",
    [
        "motor-delay=0.04", "velocity-noise=0.5", "joint-order=2,4", "position-offset=2:0.08", "position-scale=1:1.3",
        "position-sign=2", "stiffness=4", "damping=3", "switch-jump=0.1", "state-rate=30",
    ],
)  # fmt: skip
def test_fault_of_an_arm_is_the_likeliest_cause(fault: str, causes: Callable[..., list[str]]) -> None:
    assert causes(ARM, fault)[0] == fault.partition("=")[0]


@pytest.mark.parametrize("fault", ["quaternion-order", "velocity-noise=5", "state-rate=100"])
def test_fault_of_a_quadruped_is_the_likeliest_cause(fault: str, causes: Callable[..., list[str]]) -> None:
    assert causes("go2-velocity", fault)[0] == fault.partition("=")[0]


def test_doctor_prints_causes_and_measures(
    causes: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    causes("ur5e-reach", "motor-delay=0.05")
    capsys.readouterr()
    assert main(["doctor", "--log", str(tmp_path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [cause["name"] for cause in found["causes"]] == ["motor-delay"] and not found["ok"]
    assert found["measures"]["fitted"]["action_delay"] == pytest.approx(0.11, abs=0.01), "s, 0.06 of them its own"
    assert "robot.action_delay" in found["causes"][0]["remedy"]


# ---- files -------------------------------------------------------------------------------------------------------
def _log(ticks: int = 1000, joints: int = 6) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    facts = {"robot": "ur5e", "task": "ur5e-reach", "command": "ToolPose", "command_rate": 500.0, "state_rate": 500.0}
    time = 7.0 + np.arange(ticks) / 500
    rows = {name: np.zeros((ticks, joints), np.float32) for name in ("position", "velocity", "setpoint", "goal")}
    rows |= {"time": time, "received": time, "gripper": np.zeros(ticks), "stiffness": np.ones(ticks)}
    return facts | {"period": 0.05, "lockstep": True}, rows | {"follows": np.ones(ticks, bool)}


def test_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    facts, rows = _log()
    rows["position"][3, 2] = 0.5
    write_motion(tmp_path, facts, rows)
    motion = read_motion(tmp_path)
    assert motion.time[0] == 0 and motion.facts["robot"] == "ur5e" and motion.quat is None
    np.testing.assert_array_equal(motion.position, rows["position"])
    assert read_motion(tmp_path / NAME).follows.all() and [p.name for p in tmp_path.iterdir()] == [NAME]


def test_commands_that_are_no_joint_positions_are_judged_without_a_replay(tmp_path: Path) -> None:
    facts, rows = _log()
    rows["velocity"] += np.random.default_rng(0).normal(0, 1.0, rows["velocity"].shape).astype(np.float32)
    write_motion(tmp_path, facts, rows)
    motion = read_motion(tmp_path)
    assert [cause.name for cause in find(motion, measure(motion))] == ["velocity-noise"]


def test_unusable_logs_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no motion\.npz: name the folder of a run"):
        read_motion(tmp_path)
    (tmp_path / NAME).write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(UserError, match="cannot be read"):
        read_motion(tmp_path)
    facts, rows = _log()
    del rows["goal"]
    write_motion(tmp_path, facts, rows)
    with pytest.raises(UserError, match="lacks goal"):
        read_motion(tmp_path)
    facts, rows = _log()
    write_motion(tmp_path, facts, rows | {"goal": rows["goal"][:-1]})
    with pytest.raises(UserError, match="different lengths"):
        read_motion(tmp_path)
