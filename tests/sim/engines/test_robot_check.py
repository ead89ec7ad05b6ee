"""`robot-rl robots check` reports differences between spec and model file, and exits with status 2."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from robot_rl.cli.main import main
from robot_rl.interface.robot import Joint
from robot_rl.robots import robots
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
