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
    assert not [finding for finding in check_robot(drafted.robot) if finding.severity == "error"]


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


def leg(name: str, x: float, y: float) -> str:
    """Return a leg whose foot is a named sphere of the shank, as in MuJoCo Menagerie."""
    return f"""<body name="{name}_hip" pos="{x} {y} 0"><joint name="{name}_h" axis="1 0 0" range="-1 1"/>
      <geom size="0.04" mass=".7"/>
      <body name="{name}_thigh" pos="0 {y} 0"><joint name="{name}_t" range="-1.5 3.4"/><geom size="0.03" mass="1"/>
        <body name="{name}_calf" pos="0 0 -0.21"><joint name="{name}_c" range="-2.7 -0.8"/>
          <geom type="capsule" size="0.01" fromto="0 0 0 0 0 -0.2" mass=".2"/>
          <geom name="{name}" size="0.022" pos="0 0 -0.21"/></body></body></body>"""


QUADRUPED = """<mujoco><compiler autolimits="true" angle="radian"/><default><joint axis="0 1 0"/></default>
  <worldbody><body name="trunk" pos="0 0 .4"><freejoint/><geom type="box" size=".2 .1 .05" mass="7"/>{legs}</body>
  </worldbody><actuator>{motors}</actuator></mujoco>"""
LEGS = {"FL": (0.2, 0.1), "FR": (0.2, -0.1), "RL": (-0.2, 0.1), "RR": (-0.2, -0.1)}


def test_feet_may_be_spheres_of_the_shank_and_motors_have_gears(tmp_path: Path) -> None:
    joints = [f"{name}_{part}" for name in LEGS for part in "htc"]
    motors = "".join(f'<motor joint="{joint}" gear="10" ctrlrange="-2 2"/>' for joint in joints)
    motors = motors.replace('<motor joint="FL_t" gear="10" ctrlrange="-2 2"/>',
                            '<position joint="FL_t" kp="7" kv="0.3" gear="2" forcerange="-9 9"/>')  # fmt: skip
    file = tmp_path / "dog-2.xml"
    file.write_text(QUADRUPED.format(legs="".join(leg(name, x, y) for name, (x, y) in LEGS.items()), motors=motors))
    robot = draft(file, "dog").robot
    assert robot.base and robot.base.feet == tuple(LEGS) and robot.base.foot_radius == 0.022
    assert 0.28 < robot.base.height < 0.42, "the soles, and not the knees, are on the ground"
    known = {joint.name: joint for joint in robot.joints}
    assert known["FR_t"].effort == 20.0 and known["FL_t"].effort == 18.0
    assert (known["FL_t"].stiffness, known["FL_t"].damping) == (28.0, 1.2), "of a gear, squared"
    assert not [finding for finding in check_robot(robot) if finding.severity == "error"]


@pytest.mark.parametrize("name", ["go2", "anymal_c"])
def test_left_and_right_legs_stand_alike(name: str) -> None:
    home = np.abs(np.array(draft(ASSETS / FILES[name], name).robot.home)).reshape(4, 3)
    assert np.abs(home - home[0]).max() < 0.02


@pytest.mark.parametrize("name", ["panda", "ur5e", "iiwa"])
def test_tools_point_down_and_reach_their_workspace(name: str) -> None:
    robot = draft(ASSETS / FILES[name], name).robot
    assert robot.tool is not None
    place, rotation = Kinematics(robot).forward(torch.tensor(robot.home)[None])[:2]
    assert rotation[0, 2, 2] < -0.9
    low, high = (torch.tensor(corner) for corner in robot.tool.workspace)
    assert (low < place[0]).all() and (place[0] < high).all() and low[2] > 0


def test_home_is_the_same_every_time() -> None:
    first, second = (draft(ASSETS / FILES["iiwa"], "iiwa").robot for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("file", "message"), [
    ("xml/humanoid.xml", "several joints move the body"),
    ("urdf/shadow_hand/shadow_hand.urdf", "are fingers that turn"),
    ("urdf/drones/racer.urdf", "has no joint that turns"),
    ("urdf/kuka_iiwa/model_mobile.urdf", "a sliding joint carries"),
    ("urdf/wheel/fancy_wheel.urdf", "no posture has the tool in front"),
    ("urdf/simple/two_cube_revolute.urdf", "no posture has the tool in front"),
    ("nothing.urdf", "is not a file"),
])  # fmt: skip
def test_other_robots_are_refused(file: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        draft(ASSETS / file, "other")


@pytest.mark.parametrize(("change", "message"), [
    (lambda text: text.replace('name="FL_t"', ""), "the joints of the bodies FL_thigh have no name"),
    (lambda text: text.replace('name="trunk"', ""), "the trunk, has no name"),
    (lambda text: text.replace('name="FL" ', ""), "the foot behind FL_c has no name"),
    (lambda text: text.replace('range="-1.5 3.4"', 'range="-85 190"'), "are they degrees"),
    (lambda text: text.replace('"FL_c"', '"FL_jaw"'), "FL_jaw are fingers that turn"),
    (lambda text: text.replace(leg("FL", 0.2, 0.1), ""), "four or more legs"),
    (lambda text: text.replace("0 0 -0.21", "0 0 0.21"), "do not reach below the trunk"),
])  # fmt: skip
def test_odd_legs_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    file = tmp_path / "dog.xml"
    text = QUADRUPED.format(legs="".join(leg(name, x, y) for name, (x, y) in LEGS.items()), motors="")
    file.write_text(change(text))
    with pytest.raises(ConfigError, match=message):
        draft(file, "dog")


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


def test_models_of_mujoco_menagerie_are_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    folder = tmp_path / "unitree_go2"
    folder.mkdir()
    text = QUADRUPED.format(legs="".join(leg(name, x, y) for name, (x, y) in LEGS.items()), motors="")
    (folder / "go2.xml").write_text(text)
    monkeypatch.setenv("MENAGERIE_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["robots", "draft", "menagerie:unitree_go2"]) == 1
    assert "run `mujoco-menagerie path unitree_go2` with a network" in capsys.readouterr().err
    monkeypatch.setenv("MENAGERIE_ROOT", str(tmp_path))
    assert main(["robots", "draft", "menagerie:unitree_go2"]) == 0
    said = capsys.readouterr().out
    assert "GO2 = RobotSpec(" in said and 'model="menagerie:unitree_go2"' in said
    scope: dict[str, Any] = {}
    exec(said, scope)  # noqa: S102  # our own text
    assert robot_model(scope["GO2"]) == folder / "go2.xml"
    assert not [finding for finding in check_robot(scope["GO2"]) if finding.severity == "error"]
    for wrong, message in (
        ("menagerie:unitree_go3", "did you mean"), ("menagerie:unitree_go2/go5", "file of menagerie:unitree_go2"),
        ("menagerie:franka_fr3", "not found under MENAGERIE_ROOT"),
    ):  # fmt: skip
        assert main(["robots", "draft", wrong]) in (1, 2) and message in capsys.readouterr().err
