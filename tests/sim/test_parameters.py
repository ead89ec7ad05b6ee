"""Table of parameters, and ranges from files and the command line."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robot_rl.cli.main import main
from robot_rl.robots import robots
from robot_rl.util.errors import ConfigError, UserError
from sim.engines import engines
from sim.env import TaskEnv
from sim.make import make
from sim.objects import Drawer
from sim.parameters import ROWS, find, nominal_value, parameters
from sim.randomization.ranges import as_ranges, read_ranges, table, with_ranges, with_values
from sim.scenes import Scene
from sim.tasks import tasks
from sim.tasks.tabletop import TRAY

LIFT = tasks.get("panda-lift")


def test_every_row_states_its_facts_once() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.doc and row.unit and find(row.name.replace("<object>", "cube").replace("<camera>", "front")) is row
        assert row.nominal is None or (
            row.low <= row.nominal <= row.high and not (row.above and row.nominal == row.low)
        )
        assert row.effect != "scale" or (row.nominal == 1 and row.low == 0 and row.above), row.name
        assert (row.owner == "look") >= row.name.startswith(("light.", "picture."))


@pytest.mark.parametrize("name", list(tasks))
def test_every_parameter_of_a_task_is_in_the_table(name: str) -> None:
    task = tasks.get(name)
    known = parameters(robots.get(task.interface.robot), task.scene)
    assert {r.parameter for r in task.randomization} <= set(known)
    rows = table(task)
    assert [row["parameter"] for row in rows] == [r.parameter for r in task.randomization]
    assert all(row["unit"] == find(row["parameter"]).unit for row in rows)  # type: ignore[union-attr]


def test_engines_declare_names_of_the_table() -> None:
    names = {row.name for row in ROWS if row.owner == "engine"}
    assert engines.get("mujoco").settable == names
    assert engines.get("genesis").settable == names - {
        "<object>.size", "<object>.joint_friction", "<object>.joint_damping"
    }  # fmt: skip


def test_names_of_cameras_are_not_those_of_objects() -> None:
    assert find("camera.front.x").unit == "m" and find("camera.front.x").owner == "look"  # type: ignore[union-attr]
    assert find("light.x").owner == "look" and find("cube.x").owner == "placement"  # type: ignore[union-attr]
    assert find("cube.mas") is None


def test_nominal_values_are_those_of_the_scene() -> None:
    cube = LIFT.scene.objects[0]
    expected = {"cube.mass": cube.mass, "cube.size": cube.size, "cube.friction": 1.0, "cube.z": cube.rest}
    expected |= {"cube.x": 0.5, "cube.red": cube.rgba[0], "robot.stiffness_scale": 1.0, "sensor.joint_noise": 0.0}
    assert {name: nominal_value(name, LIFT.scene) for name in expected} == expected
    assert nominal_value("robot.joint_friction", LIFT.scene) is None, "that of the model"
    assert nominal_value("tray.x", tasks.get("tabletop").scene) == 0.0, "offset from a place"
    assert TRAY.acting == () and replace(cube, solid=False).acting == ("size",)
    drawer = Scene((Drawer("drawer"),))
    found = parameters(robots.get("panda"), drawer)
    assert {"drawer.joint_friction", "drawer.joint", "drawer_handle.bias_x", "drawer.bias_x"} <= set(found)
    assert not {"drawer.size", "drawer_handle.x", "drawer_handle.mass"} & set(found)
    assert "cube.joint" not in parameters(robots.get("panda"), LIFT.scene)
    assert nominal_value("drawer.joint_friction", drawer) == 1.0 and nominal_value("drawer.joint", drawer) == 0.0


# ---- files and flags -----------------------------------------------------------------------------------------------
JSON = {"cube.mass": {"low": 0.05, "high": 0.4}, "cube.bias_x": 0.02, "robot.action_delay": {"low": 0, "high": 0.07}}
TOML = """
"cube.bias_x" = 0.02
[cube.mass]
low = 0.05
high = 0.4
["robot.action_delay"]
low = 0
high = 0.07
"""


def test_json_and_toml_hold_the_same_ranges(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(JSON))
    (tmp_path / "a.toml").write_text(TOML)
    ranges = read_ranges(tmp_path / "a.json", ["robot.action_delay=0.01:0.02:uniform", "cube.friction=0.5"])
    assert read_ranges(tmp_path / "a.toml") == read_ranges(tmp_path / "a.json")
    changed = {r.parameter: r for r in with_ranges(LIFT, ranges).randomization}
    before = [r.parameter for r in LIFT.randomization]
    assert list(changed) == [*before, "cube.bias_x"], "own ranges keep their places, others follow"
    mass = changed["cube.mass"]
    assert (mass.low, mass.high, mass.distribution) == (0.05, 0.4, "log_uniform"), "the distribution of the task"
    assert changed["robot.action_delay"].high == 0.02 and changed["cube.friction"].low == 0.5
    assert with_ranges(LIFT, {}) is LIFT
    assert with_ranges(LIFT, as_ranges(LIFT.randomization)).randomization == LIFT.randomization


@pytest.mark.parametrize(("content", "message"), [
    ("{", "is no JSON or TOML file of ranges"),
    ("[1]", "holds no table"),
    ('{"cube.mass": {"low": 1}}', "cube.mass is .*; give low and high as numbers"),
    ('{"cube.mass": {"low": 1, "high": "2"}}', "give low and high as numbers"),
    ('{"cube.mass": {"low": 1, "high": 2, "width": 3}}', "give low and high as numbers"),
    ('{"cube.mas": 1}', "parameter of task 'panda-lift' 'cube.mas'; did you mean cube.mass"),
    ('{"cube.mass": {"low": 2, "high": 1}}', "low 2.0 is above high 1.0"),
    ('{"cube.mass": {"low": 1, "high": 2, "distribution": "wide"}}', "unknown distribution 'wide'"),
    ('{"payload.mass": 1}', "payload.mass"),
])  # fmt: skip
def test_invalid_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "ranges.json").write_text(content)
    with pytest.raises(UserError, match=message):
        with_ranges(LIFT, read_ranges(tmp_path / "ranges.json"))


@pytest.mark.parametrize("flag", ["cube.mass", "cube.mass=", "cube.mass=a:b", "cube.mass=1:2:3"])
def test_invalid_flags_are_refused(flag: str) -> None:
    with pytest.raises(ConfigError, match="write PARAMETER=LOW:HIGH|unknown distribution"):
        with_ranges(LIFT, read_ranges(None, [flag]))


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.text(max_size=30))
def test_no_flag_raises_another_error(text: str) -> None:
    with suppress(UserError):
        with_ranges(LIFT, read_ranges(None, [text]))


def test_an_added_parameter_is_applied_and_observed_by_the_critic() -> None:
    plain = TaskEnv(LIFT, 3, threads=1)
    env = TaskEnv(LIFT, 3, threads=1, ranges=read_ranges(None, ["cube.bias_x=0.02", "sensor.object_delay=0"]))
    env.reset(seed=0)
    assert env.privileged_size == plain.privileged_size + 1
    assert env.simulation["ranges"]["cube.bias_x"] == {"low": 0.02, "high": 0.02, "distribution": "uniform"}
    error = env.state.objects["cube"] - env.true.objects["cube"]
    assert (error[:, 0].mean() - 0.02).abs() < 0.01 and float(env.sampled[0, -1]) == 0.02
    for each in (env, plain):
        each.close()


def test_a_mirror_keeps_fitting_a_task_with_other_ranges() -> None:
    walk = tasks.get("go2-velocity")
    flags = ["sensor.object_noise=0", "robot.stiffness_scale=0.9"]
    with pytest.raises(UserError, match="object_noise"):
        with_ranges(walk, read_ranges(None, flags))
    env = make("go2-velocity", 2, ranges=read_ranges(None, [*flags[1:], "base.com_y=0:0.01"]), threads=1)
    size = env.observation_spec["observation.environment_state"].shape[0]
    assert len(env.mirror.privileged) == size == len(walk.mirror.privileged)  # type: ignore[union-attr]
    fixed = with_values(walk, {"base.com_y": 0.01, "payload.mass": 1.0})
    assert fixed.mirror is not None and fixed.mirror.privileged.sign.tolist()[-2:] == [-1.0, 1.0]
    env.close()


def test_a_task_with_values_draws_only_places() -> None:
    fixed = with_values(LIFT, {"robot.action_delay": 0.06, "sensor.object_delay": 0.06})
    env = TaskEnv(fixed, 2, threads=1)
    env.reset(seed=3)
    assert [r.parameter for r in env.randomization] == [
        "cube.x", "cube.y", "cube.yaw", "robot.action_delay", "sensor.object_delay",
    ]  # fmt: skip
    assert env.sampled[:, 3:].tolist() == [[0.06, 0.06]] * 2
    shipped = TaskEnv(LIFT, 2, threads=1)
    shipped.reset(seed=3)
    assert torch.equal(env.sampled[:, :3], shipped.sampled[:, :3]), "the same places as of the task itself"
    for each in (env, shipped):
        each.close()


# ---- commands ------------------------------------------------------------------------------------------------------
def test_ranges_are_in_the_settings_of_a_run_and_its_bundle(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "found.json").write_text(json.dumps({"target.x": {"low": 0.4, "high": 0.5}}))
    run, words = (
        tmp_path / "run",
        ["--randomization", str(tmp_path / "found.json"), "--range", "robot.action_delay=0.01"],
    )
    small = ["--training.steps", "512", "--training.num_envs", "8"]
    assert main(["train", "ur5e-reach", "--recipe", "sac", *small, *words, "--out", str(run)]) == 0
    expected = {"target.x": {"low": 0.4, "high": 0.5}, "robot.action_delay": {"low": 0.01, "high": 0.01}}
    assert json.loads((run / "config.json").read_text())["ranges"] == expected
    assert json.loads((run / "bundle" / "policy.json").read_text())["provenance"]["ranges"] == expected
    drawn = {row["parameter"]: row for row in json.loads((run / "randomization.json").read_text())}
    assert drawn["target.x"]["high"] == 0.5 and drawn["target.x"]["unit"] == "m"
    capsys.readouterr()
    (tmp_path / "found.json").unlink()
    assert main(["train", "ur5e-reach", "--recipe", "sac", *small, *words[2:], "--out", str(run), "--resume"]) != 0
    assert "ranges was" in capsys.readouterr().err, "a resume needs the same ranges"
    assert main(["evaluate", str(run), "--episodes", "4", "--range", "target.x=0.45", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranges"]["target.x"]["low"] == 0.45
    assert len(list(run.glob("evaluation-target*.json"))) == 1


def test_tasks_lists_ranges(capsys: Any) -> None:
    assert main(["tasks", "panda-lift", "--randomization"]) == 0
    out = capsys.readouterr().out
    assert "cube.mass" in out and "log_uniform" in out and "not randomized: " in out and "cube.bias_x" in out
    assert main(["tasks", "panda-lift", "--randomization", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[4]["nominal"] == 0.1
    assert main(["tasks", "--randomization"]) == 2
    assert "name one task" in capsys.readouterr().err


def test_tasks_without_a_robot_have_no_ranges(capsys: Any) -> None:
    assert main(["evaluate", "random:testbed:reach", "--range", "cube.mass=1", "--episodes", "2"]) == 2
    assert "has no parameters to randomize; leave out --randomization and --range" in capsys.readouterr().err
