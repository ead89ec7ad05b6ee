"""Identification of an arm from logs with known truth, and of what a log cannot show."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from real.sessions.excitation import chirp
from robot_rl.cli.main import main
from robot_rl.data.motion import OBJECT, write_motion
from robot_rl.identification.identify import identify
from robot_rl.identification.log import read_log
from robot_rl.identification.tracker import tracked
from robot_rl.interface.kinematics import Kinematics
from robot_rl.robots import robots
from robot_rl.util.errors import ConfigError, UserError
from sim.engines.mujoco import MujocoEngine
from sim.randomization.ranges import with_ranges
from sim.scenes import Scene
from sim.tasks import tasks

PANDA = robots.get("panda")
LIFT = tasks.get("panda-lift")
TRUE = {
    "robot.action_delay": 0.047, "robot.stiffness_scale": 0.7, "robot.damping_scale": 1.35, "robot.joint_friction": 0.8,
}  # fmt: skip
NOISE = 0.0006


def simulated(goal: np.ndarray, true: dict[str, float]) -> np.ndarray:
    """Return joint positions (T, J) that a simulated arm with parameters `true` has at the time of each set-point."""
    engine = MujocoEngine(PANDA, Scene(timestep=1 / PANDA.command_rate), 1, threads=1)
    for name, value in true.items():
        engine.parameters[name](np.array([0]), np.array([value]))
    engine.reset(np.array([0]), goal[:1], {})
    path = engine.track(torch.from_numpy(goal[None]).float(), torch.full((1, len(goal), 1), 0.08))[0]
    engine.close()
    return np.concatenate([goal[:1], path[:-1]])


def write(folder: Path, goal: np.ndarray, place: np.ndarray, more: Any = None, **facts: Any) -> Path:
    folder.mkdir()
    time = np.arange(len(goal)) / facts.get("command_rate", PANDA.command_rate)
    known = {"robot": "panda", "task": "panda-lift", "command": "JointPositions", "command_rate": PANDA.command_rate,
             "state_rate": PANDA.state_rate, "period": 0.05, "lockstep": True, "whole": True}  # fmt: skip
    columns = {"time": time, "received": time, "position": place, "velocity": np.zeros_like(place), "setpoint": goal,
               "gripper": np.full(len(time), 0.08), "follows": np.ones(len(time), bool)}  # fmt: skip
    write_motion(folder, known | facts, columns | (more or {}))
    return folder


def excited(seconds: float) -> np.ndarray:
    return chirp(PANDA, LIFT.interface, np.arange(round(seconds * PANDA.command_rate)) / PANDA.command_rate)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Log of 42 s of an arm with hidden dynamics."""
    goal = excited(42.0)
    place = simulated(goal, TRUE) + np.random.default_rng(0).normal(0, NOISE, goal.shape)
    return write(tmp_path_factory.mktemp("log") / "run", goal, place)


@pytest.mark.timeout(600)
def test_an_arm_is_identified_within_ten_percent(run: Path, capsys: Any) -> None:
    assert main(["sysid", str(run), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    found = {row["parameter"]: row for row in shown["estimates"]}
    for name, value in TRUE.items():
        row = found[name]
        assert row["estimate"] == pytest.approx(value, rel=0.1), row
        assert row["high"] - row["low"] < 0.4 * value, "the interval is narrow"
    assert found["sensor.joint_noise"]["estimate"] == pytest.approx(NOISE, rel=0.05)
    assert shown["rms_after"] < 1.2 * NOISE < 0.1 * shown["rms_before"], "on windows that were held out"
    ranges = json.loads((run / "ranges.json").read_text())
    task = with_ranges(LIFT, ranges)
    drawn = {r.parameter: r for r in task.randomization}
    assert drawn["robot.stiffness_scale"].low < 0.7 < drawn["robot.stiffness_scale"].high
    assert b"identified" in (run / "ranges.html").read_bytes()


@pytest.mark.timeout(300)
def test_slow_motion_shows_no_gains_of_their_own(tmp_path: Path) -> None:
    """It shows their ratio: each alone is named as hidden, and not in the ranges."""
    time = np.arange(round(24 * PANDA.command_rate)) / PANDA.command_rate
    goal = np.array(PANDA.home) + 0.1 * np.sin(0.4 * time)[:, None] * np.minimum(1, time)[:, None]
    place = simulated(goal, {}) + np.random.default_rng(1).normal(0, NOISE, goal.shape)
    found = identify(read_log(write(tmp_path / "slow", goal, place)))
    hidden = {e.parameter: e.why for e in found.estimates if not e.shown}
    assert "looks like robot.damping_scale" in hidden["robot.stiffness_scale"]
    assert not hidden.keys() & found.ranges().keys()


# ---- legs ----------------------------------------------------------------------------------------------------------
@pytest.mark.timeout(600)
def test_the_legs_of_a_hung_robot_are_identified_within_ten_percent(tmp_path: Path) -> None:
    go2, walk = robots.get("go2"), tasks.get("go2-velocity").interface
    rate, seconds = go2.command_rate, 24.0
    goal = chirp(go2, walk, np.arange(round(seconds * rate)) / rate, hung=True)
    goal = goal.clip([j.low + 0.02 for j in go2.joints], [j.high - 0.02 for j in go2.joints])
    true = {"robot.stiffness_scale": 0.75, "robot.damping_scale": 1.3, "robot.joint_friction": 0.3}
    scene = Scene(timestep=0.002, cone="pyramidal", impratio=1.0, hung=True)
    engine = MujocoEngine(go2, scene, 1, threads=1)
    for name, value in true.items():
        engine.parameters[name](np.array([0]), np.array([value]))
    engine.reset(np.array([0]), goal[:1], {})
    height = float(engine.qpos[0, 2])
    late = round(0.018 * rate)  # and the engine's own step
    sent = np.concatenate([np.repeat(goal[:1], late, 0), goal[:-late]])
    path = engine.track(torch.from_numpy(sent[None]).float(), torch.zeros(1, len(goal), 1))[0]
    assert abs(float(engine.qpos[0, 2]) - height) < 0.01, "the trunk hangs"
    engine.close()
    place = np.concatenate([goal[:1], path[:-1]]) + np.random.default_rng(0).normal(0, 0.005, goal.shape)
    upright = {"quat": np.tile([1.0, 0.0, 0.0, 0.0], (len(goal), 1)), "gyroscope": np.zeros((len(goal), 3))}
    log = read_log(write(tmp_path / "legs", goal, place, upright, robot="go2", task="go2-velocity", hung=True,
                         command_rate=rate, state_rate=rate))  # fmt: skip
    found = {e.parameter: e for e in identify(log).estimates}
    for name, value in (true | {"robot.action_delay": 0.02}).items():
        assert found[name].shown and found[name].estimate == pytest.approx(value, rel=0.1), found[name]
    assert not found["payload.mass"].shown  # the trunk does not move
    assert found["robot.strength_scale"].estimate == 1.0  # stiffness and damping include it


def test_an_arm_cannot_hang(capsys: Any) -> None:
    assert main(["excite", "panda", "--hung", "--twin"]) == 2
    assert "fixed" in capsys.readouterr().err


# ---- tracker -------------------------------------------------------------------------------------------------------
def poses(goal: np.ndarray, offset: Any, delay: float, grasp: Any, noise: float) -> np.ndarray:
    """Return rows (T, 4) of arrival and position of a held object, tracked at 30 Hz."""
    rate = PANDA.command_rate
    place, turn = (x.numpy() for x in Kinematics(PANDA, torch.float64).forward(torch.from_numpy(goal)))
    true = place + turn @ np.array(grasp) + np.array(offset)
    every = round(rate / 30)
    rows = np.full((len(goal), 4), -np.inf)
    rng = np.random.default_rng(2)
    for k in range(len(goal)):
        if k % every == 0:
            now = k / rate
            at = max(0, round((now - delay) * rate))
            newest = np.array([now, *(true[at] + rng.normal(0, noise, 3))])
        rows[k] = newest
    return rows


def holding(seconds: float, turns: bool = True) -> np.ndarray:
    time = np.arange(round(seconds * PANDA.command_rate)) / PANDA.command_rate
    goal = chirp(PANDA, LIFT.interface, time, holds=True)
    if not turns:
        goal[:, 1:] = PANDA.home[1:]
        goal[:, 0] = PANDA.home[0]
        goal[:, 6] = PANDA.home[6] - 0.2 * np.sin(time)  # about the vertical axis only
    return goal


def test_offset_and_delay_of_a_tracker(tmp_path: Path) -> None:
    goal = holding(40)
    cube = poses(goal, (0.018, -0.015, 0.003), 0.06, (0.004, 0.0, -0.006), 0.0025)
    found = tracked(read_log(write(tmp_path / "held", goal, goal, {f"{OBJECT}cube": cube})), "cube")
    assert found is not None and found.count > 1000
    assert found.delay == pytest.approx(0.06, rel=0.1) and found.noise == pytest.approx(0.0025, rel=0.05)
    assert np.abs(found.offset[:2] - [0.018, -0.015]).max() < 0.0015
    assert np.abs((found.offset - [0.018, -0.015, 0.003]) / found.offset_error).max() < 4


def test_a_hand_that_does_not_tilt_hides_the_height(tmp_path: Path) -> None:
    goal = holding(40, turns=False)
    cube = poses(goal, (0.018, -0.015, 0.003), 0.06, (0.004, 0.0, -0.006), 0.001)
    log = read_log(write(tmp_path / "flat", goal, goal, {f"{OBJECT}cube": cube}))
    found = tracked(log, "cube")
    assert found is not None and np.isinf(found.offset_error).all()


# ---- bad inputs ----------------------------------------------------------------------------------------------------
def test_bad_logs_are_refused(tmp_path: Path, run: Path) -> None:
    goal = excited(20)
    with pytest.raises(UserError, match="neither motion.npz nor meta/info.json"):
        read_log(tmp_path)
    with pytest.raises(UserError, match=r"has 4.0 s of motion; record at least 10 s"):
        read_log(write(tmp_path / "short", goal[:800], goal[:800]))
    with pytest.raises(UserError, match="no joint is commanded to move"):
        read_log(write(tmp_path / "still", 0 * goal, 0 * goal))
    with pytest.raises(ConfigError, match="only logs of joint positions"):
        read_log(write(tmp_path / "twist", goal, goal, command="Twist"))
    with pytest.raises(ConfigError, match="is a log of robot 'panda', not of 'ur5e'"):
        read_log(run, "ur5e")


def test_a_csv_file_gives_what_its_run_gives(tmp_path: Path, run: Path, capsys: Any) -> None:
    motion = np.load(run / "motion.npz")
    names = [f"{kind}.{joint}" for kind in ("command", "position") for joint in PANDA.joint_names]
    table = np.column_stack([motion["time"], motion["setpoint"], motion["position"], motion["gripper"]])
    file = tmp_path / "log.csv"
    np.savetxt(file, table, delimiter=",", header=",".join(["time", *names, "gripper"]), comments="")
    assert main(["sysid", str(file), "--robot", "panda", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["sysid", str(run), "--out", str(tmp_path / "run.json"), "--json"]) == 0
    other = {e["parameter"]: e["estimate"] for e in json.loads(capsys.readouterr().out)["estimates"]}
    for estimate in found["estimates"]:
        assert estimate["estimate"] == pytest.approx(other[estimate["parameter"]], rel=0.01, abs=1e-4)


@pytest.mark.parametrize(("change", "message"), [
    (lambda text: text.replace("position.joint3", "q3"), "lacks the columns position.joint3"),
    (lambda text: text.replace("0.25,", "soon,", 1), "has a row that is not numbers"),
    (lambda text: text.replace("0.25,", "0.05,", 1), "time must rise from row to row"),
    (lambda text: text.replace("0.25,", "nan,", 1), "all numbers must be finite"),
    (lambda text: text.splitlines()[0], "time must rise from row to row"),
])  # fmt: skip
def test_bad_csv_files_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    names = [f"{kind}.{joint}" for kind in ("command", "position") for joint in PANDA.joint_names]
    rows = [",".join([f"{0.05 * k:g}", *["0"] * 14]) for k in range(300)]
    file = tmp_path / "log.csv"
    file.write_text(change("\n".join([",".join(["time", *names]), *rows])))
    with pytest.raises(ConfigError, match=message):
        read_log(file, "panda")
    with pytest.raises(ConfigError, match="name it with --robot"):
        read_log(file)


def test_datasets_need_joint_positions(tmp_path: Path, capsys: Any) -> None:
    assert main(["collect", "panda-lift", "--episodes", "2", "--num-envs", "2", "--image-size", "0",
                 "--out", str(tmp_path / "data")]) == 0  # fmt: skip
    with pytest.raises(UserError, match="action lack the joints joint1, .*motion.npz has joint commands"):
        read_log(tmp_path / "data")


def test_a_dataset_with_joint_positions_is_read(tmp_path: Path) -> None:
    from robot_rl.data.dataset import Feature
    from robot_rl.data.writer import DatasetWriter

    names, goal = PANDA.joint_names, excited(30)[:: round(PANDA.command_rate / 20)].astype(np.float32)
    features = {key: Feature("float32", (7,), tuple(names)) for key in ("observation.state", "action")}
    with DatasetWriter.create(tmp_path / "data", fps=20, features=features, robot_type="panda") as writer:
        for _ in range(2):
            writer.add_episode({"observation.state": goal, "action": goal}, "move")
    log = read_log(tmp_path / "data")
    assert len(log.pieces) == 2 and log.seconds == pytest.approx(2 * 30, abs=0.3)
    assert np.abs(log.pieces[0].position[:: round(PANDA.command_rate / 20)][:500] - goal[:500]).max() < 1e-5


# ---- chirps --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["panda-lift", "ur5e-reach", "go2-velocity"])
@pytest.mark.parametrize("holds", [False, True])
def test_chirps_stay_within_the_limits_of_the_shield(name: str, holds: bool) -> None:
    interface = tasks.get(name).interface
    robot = robots.get(interface.robot)
    path = chirp(robot, interface, np.arange(3000) / 50, holds)
    speed = np.abs(np.gradient(path, 1 / 50, axis=0)).max(0)
    assert (speed <= interface.shield.velocity * np.array([j.velocity for j in robot.joints])).all()
    assert (path >= [j.low for j in robot.joints]).all() and (path <= [j.high for j in robot.joints]).all()
    assert np.abs(path[0] - robot.home).max() < 0.01
    correlation = np.corrcoef(path.T) - np.eye(len(robot.joints))
    assert np.abs(correlation).max() < 0.6, "joints can be told apart"
