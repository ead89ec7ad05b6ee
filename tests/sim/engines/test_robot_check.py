"""`robot-rl robots check` reports differences between spec and model file, and exits with status 2."""

import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from robot_rl.cli.main import main
from robot_rl.interface.robot import Gripper, Joint, RobotSpec
from robot_rl.robots import robots
from sim.engines.limit_check import check_rates
from sim.engines.robot_check import check_robot
from sim.scenes import robot_model

PANDA, GO2, UR5E = robots.get("panda"), robots.get("go2"), robots.get("ur5e")


@pytest.mark.parametrize("name", ["panda", "ur5e", "go2"])
def test_the_shipped_robots_match_their_files(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["robots", "check", name, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and len(report["findings"]) >= 7


def test_the_drivers_joint_names_are_reported() -> None:
    named = replace(PANDA, driver=replace(PANDA.driver, joint_names=(("joint1", "a1"),)))
    (driver,) = [f for f in check_robot(named) if f.what == "driver"]
    assert "a1, joint2" in driver.found and "joint_prefix" in driver.remedy and "joint_names" in driver.remedy


def joint(k: int, **changes: Any) -> Callable[[], Any]:
    joints = list(PANDA.joints)
    return lambda: replace(PANDA, joints=(*joints[:k], replace(joints[k], **changes), *joints[k + 1 :]))


def swapped() -> Any:
    j = UR5E.joints
    return replace(UR5E, joints=(j[0], j[2], j[1], *j[3:]), home=(0.0,) * 6)


@pytest.mark.parametrize(("build", "what", "found"), [
    (joint(2, axis=(0.0, 1.0, 0.0)), "frames", "'joint3' is off by .* those before it fit"),
    (joint(3, position=(0.0925, 0.0, 0.0)), "frames", "'joint4' is off by 10.0 mm and 0.0 degrees"),
    (joint(0, name="joint9"), "joints", "lacks the joints .*joint9"),
    (joint(1, low=-2.5), "limits", "'joint2' reaches from -1.7628 to"),
    (swapped, "joints", "from base to tool the file has .*lift_joint.*elbow_joint"),
    (lambda: replace(PANDA, home=(0.0, 1.7, 0.0, -0.4, 0.0, 2.3, 0.0)), "tool", "outside of the workspace"),
    (lambda: replace(PANDA, gripper=replace(PANDA.gripper, width=0.12)), "gripper", "0.080 m, .* 0.12 m"),
    (lambda: replace(PANDA, model="gone.xml"), "file", "gone.xml"),
    (lambda: replace(GO2, base=replace(GO2.base, height=0.5)), "feet", "1[789].* mm above the ground"),
    (lambda: replace(GO2, base=replace(GO2.base, body="bsae")), "bodies", "bsae"),
    (lambda: replace(GO2, joints=tuple(replace(j, stiffness=1.0) for j in GO2.joints)), "motion", "falls within"),
])  # fmt: skip
def test_errors_are_reported_first_and_with_a_remedy(build: Callable[[], Any], what: str, found: str) -> None:
    findings = check_robot(build())
    errors = [f for f in findings if f.severity == "error"]
    assert findings[0].severity == "error"
    assert any(f.what == what and re.search(found, f.found) for f in errors), errors
    assert all(f.remedy or f.what == "file" for f in errors)


def test_a_smaller_effort_in_the_file_is_a_warning() -> None:
    (effort,) = [f for f in check_robot(joint(0, effort=100.0)()) if f.what == "effort"]
    assert effort.severity == "warning" and "joint1 87 of 100" in effort.found and effort.remedy


def every(robot: Any, **changes: Callable[[Joint], Any]) -> Any:
    """Return the robot with changes of every joint."""
    return replace(robot, joints=tuple(replace(j, **{k: to(j) for k, to in changes.items()}) for j in robot.joints))


def far(joint: Joint) -> Any:
    return tuple(1000 * x for x in joint.position)


IN_MM = ((300.0, -300.0, 100.0), (600.0, 300.0, 500.0))


@pytest.mark.parametrize(("build", "what", "found", "remedy"), [
    (lambda: every(PANDA, velocity=lambda j: 150.0), "speed", "cannot be rad/s: joint1 150", "rad/s, not degrees/s"),
    (lambda: every(GO2, velocity=lambda j: math.degrees(30.1)), "speed", "FL_hip_joint 1724", "rad/s, not degrees/s"),
    (lambda: every(PANDA, effort=lambda j: 1000 * j.effort), "effort", "87 of 87000", "N m, not N mm"),
    (lambda: every(PANDA, low=lambda j: -166.0, high=lambda j: 166.0, velocity=lambda j: 2.0), "limits", "-166",
     "rad, not degrees"),
    (lambda: every(PANDA, position=far), "frames", "off by", "m, not mm"),
    (lambda: replace(PANDA, tool=replace(PANDA.tool, workspace=IN_MM)), "tool", "outside", "m, not mm"),
    (lambda: replace(PANDA, gripper=replace(PANDA.gripper, width=80.0)), "gripper", "0 to 80 m", "m, not mm"),
    (lambda: replace(GO2, base=replace(GO2.base, height=300.0)), "feet", "above the ground", "m, not mm"),
])  # fmt: skip
def test_other_units_are_refused_and_the_remedy_begins_with_them(
    build: Callable[[], Any], what: str, found: str, remedy: str
) -> None:
    errors = [f for f in check_robot(build()) if f.severity == "error" and f.what == what]
    assert any(found in f.found and f.remedy.startswith(f"write {remedy}, in the spec") for f in errors), errors


URDF = """<robot name="turn"><link name="base"/><link name="arm"><inertial><mass value="1"/>
<inertia ixx="0.1" iyy="0.1" izz="0.1" ixy="0" ixz="0" iyz="0"/></inertial></link><joint name="turn" type="revolute">
<parent link="base"/><child link="arm"/><axis xyz="0 0 1"/>
<limit lower="-2" upper="2" effort="50" velocity="{speed}"/></joint></robot>"""


@pytest.mark.parametrize(("speed", "theirs", "severity", "words"), [
    (3.1416, 3.14, "ok", "within the file's"),
    (180.0, 3.14, "error", "turn 180 of 3.14"),
    (6.0, 3.14, "warning", "allows more than the file, rad/s: turn 6 of 3.14"),
    (3.14, 180.0, "warning", "far above the spec's"),
    (3.14, 0.0, "ok", "none to compare"),
])  # fmt: skip
def test_speeds_are_compared_with_a_urdfs(
    tmp_path: Any, speed: float, theirs: float, severity: str, words: str
) -> None:
    (tmp_path / "turn.urdf").write_text(URDF.format(speed=theirs))
    robot = RobotSpec("turn", (Joint("turn", -2.0, 2.0, speed, 10.0, 50.0),), (0.0,), str(tmp_path / "turn.urdf"))
    (found,) = [f for f in check_robot(robot) if f.what == "speed"]
    assert found.severity == severity and words in found.found, found
    assert bool(found.remedy) == (severity != "ok")


@pytest.mark.parametrize(("rate", "severity", "found", "remedy"), [
    (200.0, "ok", "10 in a control period at 20 Hz", ""),
    (125.0, "warning", "125 Hz are no whole number in a control period at 20 Hz", "to 5, 25 Hz"),
    (83.3333, "warning", "nor at any other whole number of Hz", "to 20.8333 Hz"),
    (120.0, "warning", "1.667 physics steps", "Scene(timestep=...)"),
])  # fmt: skip
def test_rates_that_do_not_fit_tasks_are_reported(rate: float, severity: str, found: str, remedy: str) -> None:
    (rates,) = check_rates(replace(PANDA, command_rate=rate))
    assert rates.severity == severity and found in rates.found and remedy in rates.remedy, rates


def test_jerk_limited_commands_without_a_limit_of_jerk_are_refused() -> None:
    smooth = replace(PANDA, driver=replace(PANDA.driver, follow="jerk_limited"))
    errors = [f for f in check_robot(smooth) if f.severity == "error"]
    assert len(errors) == 1 and "joint1, joint2" in errors[0].found and "rad/s^3" in errors[0].remedy
    assert check_robot(every(smooth, jerk=lambda j: 5000.0))[0].severity != "error"


def test_a_gripper_without_fingers_is_a_warning(tmp_path: Any) -> None:
    (tmp_path / "turn.urdf").write_text(URDF.format(speed=3.0))
    arm = RobotSpec("turn", (Joint("turn", -2.0, 2.0, 3.0, 10.0, 50.0),), (0.0,), str(tmp_path / "turn.urdf"))
    for robot in (PANDA, arm):
        found = check_robot(replace(robot, gripper=Gripper((), width=0.08, force=20.0)))
        assert found[0].severity == "warning", found[0]
        assert any(f.what == "gripper" and "no finger joints" in f.found for f in found)


LINK0, LINK1 = '<body name="link0" childclass="panda">', '<body name="link1" pos="0 0 0.333">'
BALL, LID = '<body name="ball" pos="1 0 1"><freejoint/>', '<body name="lid"><joint name="lid"/>'
SHAPE = '<geom type="sphere" size="0.1"/></body>'


@pytest.mark.parametrize(("old", "new", "what", "found"), [
    ("", "", "collisions", "8 bodies not in collision_bodies, .*link0"),
    ('mesh="hand_c" class="collision"', 'mesh="hand_c" class="visual"', "collisions", "hand of .*no shape"),
    ("", "", "left out", "1 keyframe"),
    (LINK1, LINK1.replace(">", ' gravcomp="1">'), "weight", "all 11 bodies, the file of 1"),
    (LINK0, f'<camera name="eye" pos="0 0 1"/>{LINK0}', "cameras", "eye"),
    ('<option integrator="implicitfast"/>', '<option gravity="0 0 -1.6"/>', "physics", "gravity"),
    (LINK0, f'<body name="flag"/>{LINK0}', "masses", "1 body without a mass: flag"),
    (LINK1, f"{LID}{SHAPE}{LINK1}", "joints", "1 joint nobody drives: lid"),
    (LINK0, f"{BALL}{SHAPE}{LINK0}", "joints", "1 joint nobody drives: of body ball"),
    ('range="0 0.04"', 'range="0.01 0.04"', "gripper", "from 0.020 to 0.080"),
])  # fmt: skip
def test_contents_of_a_file_are_reported(tmp_path: Any, old: str, new: str, what: str, found: str) -> None:
    file = robot_model(PANDA)
    text = file.read_text().replace('meshdir="assets"', f'meshdir="{file.parent / "assets"}"')
    assert old in text
    (tmp_path / "panda.xml").write_text(text.replace(old, new, 1))
    reported = [f.found for f in check_robot(PANDA, str(tmp_path / "panda.xml")) if f.what == what]
    assert any(re.search(found, text) for text in reported), reported


def test_a_robot_by_import_path_is_checked_with_another_file(monkeypatch: Any, tmp_path: Any, capsys: Any) -> None:
    module = ModuleType("some_arm")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "some_arm", module)
    module.__file__ = str(tmp_path / "some_arm.py")
    module.ARM = replace(UR5E, name="some-arm")  # type: ignore[attr-defined]
    (tmp_path / "other.xml").write_text("<mujoco/>")
    assert main(["robots", "check", "some_arm:ARM", "--mjcf", str(tmp_path / "other.xml")]) == 2
    printed = capsys.readouterr().out
    assert "error" in printed and "shoulder_pan" in printed


def test_impossible_and_unknown_specs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="velocity"):
        Joint("turn", -1.0, 1.0, 0.0, 1.0, 1.0)
    assert main(["robots", "check", "pnada"]) == 2
    assert "did you mean panda" in capsys.readouterr().err
