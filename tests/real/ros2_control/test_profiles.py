"""Profiles: they fit their robots and bundles, and what is wrong in one is refused with its remedy."""

import re
from pathlib import Path
from typing import Any

import pytest

from policies.bundle import save_bundle
from real.drivers import parts_of
from real.launching.launch import describe
from real.launching.node import LaunchError
from robot_rl.cli.bench.loop import acting
from robot_rl.cli.main import main
from robot_rl.interface.driver import ForwardPosition, JointTrajectory, SafetyConfig
from robot_rl.robots import robots
from robot_rl.robots.profiles import FOLDER, names, with_profile
from robot_rl.util.errors import ConfigError, UserError

BASE = "robots: [ur5e]\ndriver: forward_position\n"


@pytest.mark.parametrize("name", names())
def test_profile_fits_its_robot_and_the_robots_bundles(name: str) -> None:
    (robot,) = re.findall(r"^robots: \[(\w+)\]$", (FOLDER / f"{name}.yaml").read_text(), re.M)
    spec = robots.get(robot)
    other = with_profile(spec, name)
    assert other.fingerprint() == spec.fingerprint() and other.name == spec.name
    config: Any = other.driver
    assert config.safety.state_timeout >= 3 / config.state_rate
    assert config.controllers and parts_of(other).commands.accepts
    assert config.object_pose == spec.driver.object_pose


def test_profile_of_a_file_takes_the_rest_from_config_and_spec(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(BASE + "joint_names: {elbow_joint: ellbogen}\nstate_rate: 20\nsafety: {goal_timeout: 0.3}\n")
    spec = with_profile(robots.get("ur5e"), str(file))
    config = spec.driver
    assert isinstance(config, ForwardPosition) and config.base_frames == ("base_link",)
    assert (config.safety.state_timeout, config.safety.goal_timeout) == (0.15, 0.3)
    assert spec.driver_names("left_")[1:3] == ("left_shoulder_lift_joint", "left_ellbogen")
    assert with_profile(robots.get("fr3"), "franka_ros2").driver_names()[-1] == "fr3_finger_joint2"
    assert with_profile(robots.get("ur5e"), "") is robots.get("ur5e")


WRONG = (
    (BASE + "comand: x\n", "driver 'forward_position' has no field comand; did you mean command"),
    (BASE + "gripper_unit: mm\n", "gripper_unit is 'mm'; it must be 'width', 'finger' or 'open_fraction'"),
    (BASE + "joint_names: {elbow: x}\n", "no joint 'elbow'; did you mean elbow_joint"),
    (BASE + "joint_names: {elbow_joint: wrist_1_joint}\n", "'wrist_1_joint' is named 2 times"),
    (BASE + "state_rate: -1\n", "state_rate is -1; it must be greater than 0"),
    (BASE + "state_rate: 10\nsafety: {state_timeout: 0.1}\n", r"less than two periods.*at 10 Hz.*set 0\.3"),
    (BASE + "safety: {state_timout: 1}\n", r"no field safety\.state_timout; did you mean state_timeout"),
    (BASE + "safety: 3\n", "safety is 3; give its fields"),
    (BASE + "controllers: x\n", "controllers is 'x'; it must be a tuple"),
    (BASE + "stop: damp\n", "stop is 'damp', for robots that sink down"),
    ("robots: [ur5e]\ndriver: forward_positon\n", "unknown driver 'forward_positon'; did you mean forward_position"),
    ("robots: [ur5e]\ndriver: franka\n", "unknown driver 'franka'"),
    ("driver: forward_position\n", "`robots` is None; give a list"),
    ("robots: [fr3]\ndriver: forward_position\n", "is for fr3, not for robot 'ur5e'"),
    ("- a\n", "is no mapping"),
    ("a: [\n", "cannot be read"),
)


@pytest.mark.parametrize(("text", "words"), WRONG, ids=[words[:40] for _, words in WRONG])
def test_wrong_profile_is_refused_with_file_and_remedy(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=rf"mine\.yaml.*{words}"):
        with_profile(robots.get("ur5e"), str(file))


def test_unknown_profile_is_refused_before_anything_starts(tmp_path: Path, capsys: Any) -> None:
    save_bundle(acting(robots.get("ur5e"), None), tmp_path / "bundle")
    words = ["deploy", str(tmp_path / "bundle"), "--robot", "ur5e", "--out", str(tmp_path / "run"), "--profile"]
    for value, more, message in (
        ("ur_robot", (), "unknown profile 'ur_robot'; did you mean ur_robot_driver"),
        ("crisp", (), "profile 'crisp' is for fr3, not for robot 'ur5e'"),
        ("gone.yaml", (), "no profile gone.yaml"),
        ("ur_velocity", ("--twin",), "is a real robot's driver; leave out --twin"),
    ):
        assert main([*words, value, *more]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


def test_launch_files_pass_the_profile_on() -> None:
    for file, given in (("arm", {"policy": "x"}), ("finetune", {"policy": "x"}), ("record", {"task": "ur5e-reach"})):
        given = {**given, "robot": "ur5e", "profile": "ur_velocity"}
        commands = {node.name: node.command for node in describe(file, {**given, "view": "true"})}
        takers = {name for name, command in commands.items() if " ".join(command).find("--profile ur_velocity") > 0}
        assert {"deploy", "finetune", "record"} & set(commands) <= takers
        assert ("view" in commands) <= ("view" in takers)
        with pytest.raises(LaunchError, match="leave out twin:="):
            describe(file, {**given, "twin": "true"})


def test_state_limit_must_follow_a_rate_in_a_spec_too() -> None:
    with pytest.raises(ValueError, match=r"state_timeout is 0\.05 s, less than two periods of joint states at 30 Hz"):
        JointTrajectory(state_rate=30)
    assert JointTrajectory(state_rate=30, safety=SafetyConfig(state_timeout=0.1)).state_rate == 30
    with pytest.raises((ValueError, UserError)):
        JointTrajectory(ahead=0.5)
