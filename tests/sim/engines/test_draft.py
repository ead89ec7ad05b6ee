"""Drafts of specs from other people's model files: they agree with our own specs, pass the check, and run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.cli.draft import module
from robot_rl.cli.main import main
from robot_rl.interface.kinematics import Kinematics
from robot_rl.robots import robots
from robot_rl.util.errors import ConfigError
from sim.engines.draft import draft
from sim.engines.robot_check import check_robot
from sim.scenes import robot_model

FILES = {
    "panda": "xml/franka_emika_panda/panda.xml", "ur5e": "xml/universal_robots_ur5e/ur5e.xml",
    "iiwa": "urdf/kuka_iiwa/model.urdf", "go2": "urdf/go2/urdf/go2.urdf",
    "anymal_c": "urdf/anymal_c/urdf/anymal_c.urdf",
}  # fmt: skip
ASSETS = robot_model(robots.get("go2")).parents[3]


@pytest.fixture(scope="module", params=list(FILES))
def drafted(request: Any) -> Any:
    return draft(ASSETS / FILES[request.param], request.param)


def test_a_draft_has_no_errors(drafted: Any) -> None:
    errors = [finding for finding in check_robot(drafted.robot) if finding.severity == "error"]
    assert not errors and drafted.assumed


def test_its_module_gives_the_same_robot(drafted: Any) -> None:
    scope: dict[str, Any] = {}
    exec(module(drafted.robot, "model", drafted.assumed), scope)  # noqa: S102  # our own text
    assert scope[drafted.robot.name.upper()] == drafted.robot
    assert all(f"- {note}" in scope["__doc__"] for note in drafted.assumed)


@pytest.mark.parametrize("name", ["panda", "ur5e"])
def test_drafted_arms_have_the_kinematics_and_limits_of_our_specs(name: str) -> None:
    ours, theirs = robots.get(name), draft(ASSETS / FILES[name], name).robot
    rng = torch.Generator().manual_seed(0)
    q = torch.tensor(ours.home) + torch.rand(50, len(ours.joints), generator=rng) - 0.5
    jacobians = [Kinematics(robot).jacobian(q) for robot in (ours, theirs)]
    turning = [jacobian[:, 3:] for *_, jacobian in jacobians]
    assert torch.allclose(*turning, atol=1e-4), "the axes of all joints"
    gap = jacobians[0][0] - jacobians[1][0]
    local = (jacobians[0][1].transpose(1, 2) @ gap[..., None]).squeeze(-1)
    assert (local - local[0]).abs().max() < 1e-4, "the tools differ by a constant offset in the hand"
    limits = [np.array([(joint.low, joint.high) for joint in robot.joints]) for robot in (ours, theirs)]
    assert np.abs(limits[0] - limits[1]).max() < 1e-3


def test_drafted_legs_have_our_joints_feet_and_limits() -> None:
    ours, theirs = robots.get("go2"), draft(ASSETS / FILES["go2"], "mine").robot
    assert ours.base and theirs.base
    assert set(theirs.joint_names) == set(ours.joint_names) and set(theirs.base.feet) == set(ours.base.feet)
    known = {joint.name: joint for joint in ours.joints}
    for joint in theirs.joints:
        assert (joint.velocity, joint.effort) == pytest.approx((known[joint.name].velocity, known[joint.name].effort))
        assert known[joint.name].low <= joint.low + 1e-3 and joint.high <= known[joint.name].high + 1e-3
    assert theirs.base.foot_radius == pytest.approx(ours.base.foot_radius, abs=0.002)


def test_home_is_the_same_every_time() -> None:
    first, second = (draft(ASSETS / FILES["iiwa"], "iiwa").robot for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("file", "message"), [
    ("xml/humanoid.xml", "several joints move the body"),
    ("xml/ant.xml", "the feet behind ankle_1, .* have no name"),
    ("urdf/shadow_hand/shadow_hand.urdf", r"joints that carry several others \\(wrist_joint\\)"),
    ("urdf/drones/racer.urdf", "has no joint that turns"),
    ("nothing.urdf", "is not a file"),
])  # fmt: skip
def test_other_robots_are_refused(file: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("\\\\", "\\")):
        draft(ASSETS / file, "other")


def test_the_command_writes_a_module_once(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "lab" / "iiwa.py"
    words = ["robots", "draft", str(ASSETS / FILES["iiwa"]), "--name", "iiwa", "--out", str(out)]
    assert main(words) == 0 and "7 joints; assumed:" in capsys.readouterr().out
    assert "IIWA = RobotSpec(" in out.read_text()
    assert main(words) == 2 and "is there already" in capsys.readouterr().err
    assert main(["robots", "draft", str(ASSETS / FILES["iiwa"]), "--name", "2 b"]) == 2
    broken = tmp_path / "broken.xml"
    broken.write_text("<mujoco><worldbody>")
    capsys.readouterr()
    assert main(["robots", "draft", str(broken)]) == 2 and "not a readable MJCF" in capsys.readouterr().err
