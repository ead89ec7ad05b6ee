"""Causes of shaking are found by name in a run's log; runs without a fault give none.

Runs are of twins in lockstep, one without a fault and one with. Of the other faults, those of the reported state are
put into the log of the former, and those of the motors are simulated from its commands. Limits are from other seeds.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from real.recording import motion as recording
from real.twin.faults import Faults, parse_fault
from robot_rl.cli.main import main
from robot_rl.data.motion import NAME, Motion, read_motion, write_motion
from robot_rl.diagnosis import find, measure
from robot_rl.robots import robots
from robot_rl.util.errors import UserError
from sim.engines.mujoco import MujocoEngine
from sim.scenes import Scene

SEED, ARM, DOG = 123, "fr3-reach", "go2-velocity"
JUMP = 0.1


@pytest.fixture(scope="module")
def runs(private_domain: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Function that records a run on a twin with faults, and returns its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2]))
        from benchmarks.shaking import record

        def run(task: str, *faults: str, seconds: float = 4.0) -> Path:
            folder = tmp_path_factory.mktemp("run")
            record(task, folder, faults, SEED, seconds)
            return folder

        yield run


@pytest.fixture(scope="module")
def arm(runs: Any) -> Motion:
    """Run of an arm without a fault."""
    return read_motion(runs(ARM))


@pytest.fixture(scope="module")
def dog(runs: Any) -> Motion:
    """Run of a quadruped without a fault."""
    return read_motion(runs(DOG, seconds=0.5))


@pytest.fixture(scope="module")
def late(runs: Any) -> Path:
    """Run of an arm with late commands, longer than the log."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "SECONDS", 4.0)
        return runs(ARM, "motor-delay=0.06", seconds=5.0)


def causes(motion: Motion) -> list[str]:
    return [cause.name for cause in find(motion, measure(motion))]


def rows(motion: Motion, keep: Any) -> Motion:
    """Return some rows of a log."""
    names = [name for name, value in vars(motion).items() if isinstance(value, np.ndarray)]
    return replace(motion, **{name: getattr(motion, name)[keep] for name in names})


def reported(motion: Motion, fault: str) -> Motion:
    """Return a log with a fault in its reported states."""
    robot = robots.get(motion.facts["robot"])
    faults = Faults([parse_fault(fault, robot)], robot.command_rate, np.random.default_rng(SEED))
    states = [faults.observe(*state) for state in zip(motion.position, motion.velocity, strict=True)]
    position, velocity = (np.stack(column) for column in zip(*states, strict=True))
    sent = [k for k in range(len(states)) if faults.due(k)]
    newest = np.array(sent)[np.searchsorted(sent, np.arange(len(states)), side="right") - 1]
    return replace(
        motion, position=position[newest], velocity=velocity[newest], received=motion.received[newest]
    )  # fmt: skip


def moved(motion: Motion, delay: float, jump: float = 0.0, **scales: float) -> Motion:
    """Return a log whose joints are those of a simulation that follows the same commands."""
    robot, rng = robots.get(motion.facts["robot"]), np.random.default_rng(SEED)
    engine = MujocoEngine(robot, Scene(timestep=0.002), 1)
    for name, value in scales.items():
        engine.parameters[f"robot.{name}"](np.zeros(1, int), np.array([value]))
    ticks = round(delay * robot.command_rate)
    commands = motion.setpoint[np.maximum(np.arange(len(motion.time)) - ticks, 0)]
    commands = commands + jump * (motion.time < 0.3)[:, None]
    engine.reset(np.zeros(1, int), motion.position[:1], {})
    width = torch.from_numpy(motion.gripper).float()[None, :, None]
    position = engine.track(torch.from_numpy(commands).float()[None], width)[0]
    engine.close()
    return replace(motion, position=position + rng.normal(0, 0.0006, position.shape))


def test_nothing_is_found_without_a_fault(arm: Motion, dog: Motion) -> None:
    assert causes(arm) == [] == causes(dog)
    cut = rows(arm, arm.time > 1.7)
    start = cut.time[0]
    cut = replace(cut, facts=arm.facts | {"whole": False}, time=cut.time - start, received=cut.received - start)
    assert causes(cut) == [], "a log that begins in a motion"


@pytest.mark.parametrize(
    ("delay", "stiffness", "damping"), [(0.0, 1.0, 1.0), (0.05, 0.75, 1.3), (0.002, 1.3, 0.75)]
)  # fmt: skip
def test_nothing_is_found_within_the_range_of_training(
    arm: Motion, delay: float, stiffness: float, damping: float
) -> None:
    friction = 0.5
    assert causes(moved(arm, delay, stiffness_scale=stiffness, damping_scale=damping, joint_friction=friction)) == []


@pytest.mark.parametrize(
    "fault",
    [
        "joint-order=2,4", "position-offset=2:0.08", "position-scale=1:1.3", "position-sign=2", "velocity-noise=0.5",
        "state-rate=30",
    ],
)  # fmt: skip
def test_fault_of_the_reported_state_is_the_likeliest_cause(arm: Motion, fault: str) -> None:
    assert causes(reported(arm, fault))[0] == fault.partition("=")[0]


@pytest.mark.parametrize(
    ("fault", "change"),
    [
        ("motor-delay", {"delay": 0.13}), ("stiffness", {"stiffness_scale": 4.0}), ("damping", {"damping_scale": 4.0}),
        ("switch-jump", {"jump": JUMP}),
    ],
)  # fmt: skip
def test_fault_of_the_motors_is_the_likeliest_cause(arm: Motion, fault: str, change: dict[str, float]) -> None:
    assert causes(moved(arm, **{"delay": 0.02} | change)) == [fault]


def test_joint_at_rest_has_an_offset_or_a_scale(arm: Motion) -> None:
    still = np.zeros(len(arm.time), int)
    held = replace(arm, position=arm.position[still], velocity=0 * arm.velocity, setpoint=arm.position[still])
    found = find(shifted := reported(held, "position-scale=4:1.1"), measure(shifted))
    assert [cause.name for cause in found] == ["position-offset", "position-scale"]
    assert "joint4 reports 1.10 times its position" in found[1].detail


def test_faults_of_a_quadruped_are_found(dog: Motion) -> None:
    assert dog.quat is not None
    assert causes(replace(dog, quat=np.roll(dog.quat, -1, 1))) == ["quaternion-order"]
    assert causes(reported(dog, "velocity-noise=5")) == ["velocity-noise"]
    assert causes(reported(dog, "state-rate=100")) == ["state-rate"]


def test_doctor_prints_causes_and_measures(late: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["doctor", "--log", str(late), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [cause["name"] for cause in found["causes"]] == ["motor-delay"] and not found["ok"]
    assert found["measures"]["fitted"]["action_delay"] == pytest.approx(0.126, abs=0.012), "s, 0.06 of them its own"
    assert "ms late at the joints" in found["causes"][0]["detail"]
    assert "robot.action_delay" in found["causes"][0]["remedy"]


def test_doctor_says_that_nothing_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts, rows = _log()
    write_motion(tmp_path, facts, rows)
    assert main(["doctor", "--log", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "nothing found in 2 s" in said.out and "not replayed" in said.err


def test_log_keeps_the_end_of_a_long_run(late: Path, arm: Motion) -> None:
    kept = read_motion(late)
    assert len(kept.time) == 4.0 * kept.facts["command_rate"] and not kept.facts["whole"] and arm.facts["whole"]
    assert kept.time[0] == 0 and (np.diff(kept.time) > 0).all() and (kept.received <= kept.time + 1e-9).all()


# ---- files -------------------------------------------------------------------------------------------------------
def _log(ticks: int = 1000, joints: int = 6) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    facts = {"robot": "ur5e", "task": "ur5e-reach", "command": "ToolPose", "command_rate": 500.0, "state_rate": 500.0}
    time = 7.0 + np.arange(ticks) / 500
    rows = {name: np.zeros((ticks, joints), np.float32) for name in ("position", "velocity", "setpoint")}
    rows |= {"time": time, "received": time, "gripper": np.zeros(ticks)}
    return facts | {"period": 0.05, "lockstep": True, "whole": True}, rows | {"follows": np.ones(ticks, bool)}


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
    assert main(["doctor", "--log", str(tmp_path)]) == 2, "1 is for causes that were found"
    with pytest.raises(UserError, match=r"has no motion\.npz: name the folder of a run"):
        read_motion(tmp_path)
    (tmp_path / NAME).write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(UserError, match="cannot be read"):
        read_motion(tmp_path)
    facts, rows = _log()
    del rows["setpoint"]
    write_motion(tmp_path, facts, rows)
    with pytest.raises(UserError, match="lacks setpoint"):
        read_motion(tmp_path)
    facts, rows = _log()
    write_motion(tmp_path, facts, rows | {"setpoint": rows["setpoint"][:-1]})
    with pytest.raises(UserError, match="different lengths"):
        read_motion(tmp_path)
