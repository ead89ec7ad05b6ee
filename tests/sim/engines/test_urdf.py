"""URDFs of arms: meshes are found, joints get servos, and unreadable files are refused with a remedy."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.interface.robot import Gripper, Joint, RobotSpec
from robot_rl.util.errors import ConfigError
from sim.engines.model import compile_model
from sim.engines.mujoco import MujocoEngine
from sim.engines.robot_check import check_robot
from sim.scenes import Scene, robot_model

TURN = """<robot name="turn">
<link name="world"/><link name="base"/>
<joint name="mount" type="fixed"><parent link="world"/><child link="base"/><origin xyz="0 0 0.5"/></joint>
<joint name="turn" type="{type}"><parent link="base"/><child link="arm"/><axis xyz="0 1 0"/>
<limit lower="-1" upper="1" effort="5" velocity="3"/><dynamics damping="0.1" friction="0.2"/></joint>
<link name="arm"><inertial><origin xyz="0.5 0 0"/><mass value="1"/>
<inertia ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/></inertial>
<{shape}><geometry>{geometry}</geometry></{shape}></link></robot>"""
CUBE = "".join(f"v {x} {y} {z}\n" for x in (0, 0.1) for y in (0, 0.1) for z in (0, 0.1)) + (
    "f 1 2 4 3\nf 5 6 8 7\nf 1 2 6 5\nf 3 4 8 7\nf 1 3 7 5\nf 2 4 8 6\n"
)


def turn(path: Path, effort: float = 9.0, shape: str = "collision", geometry: str = "", kind: str = "revolute") -> Any:
    path.parent.mkdir(parents=True, exist_ok=True)
    geometry = geometry or '<box size="0.1 0.1 0.1"/>'
    path.write_text(TURN.format(type=kind, shape=shape, geometry=geometry))
    return RobotSpec("turn", (Joint("turn", -1.0, 1.0, 3.0, 30.0, effort),), (0.0,), str(path))


@pytest.fixture
def panda_urdf(panda: Any) -> Any:
    """Bullet's URDF of the Panda: meshes by package://, a gripper with a mimic joint, no actuators."""
    joints = tuple(replace(joint, model_name=f"panda_{joint.name}") for joint in panda.joints)
    gripper = replace(panda.gripper, joints=("panda_finger_joint1", "panda_finger_joint2"))
    bodies = ("panda_hand", "panda_leftfinger", "panda_rightfinger")
    file = "urdf/panda_bullet/panda.urdf"
    return replace(panda, joints=joints, gripper=gripper, model=file, collision_bodies=bodies)


def test_a_urdf_arm_with_a_gripper_reaches_its_targets(panda_urdf: Any) -> None:
    engine = MujocoEngine(panda_urdf, Scene(), 1, threads=1)
    engine.reset(np.array([0]), np.array([panda_urdf.home]), {})
    goal = torch.tensor([panda_urdf.home]) + torch.tensor([0.2, -0.1, 0.1, 0.2, -0.2, 0.1, 0.3])
    engine.step(goal[:, None].repeat(1, 400, 1), torch.full((1, 400, 1), 0.03))
    assert torch.allclose(engine.joint_state()[0], goal, atol=2e-3)
    assert engine.gripper_width().item() == pytest.approx(0.03, abs=1e-3) and not engine.diverged()
    assert engine.model.nmesh == 18, "9 visual and 9 collision meshes with equal names in different folders"


def test_the_kinematics_of_a_urdf_are_checked(panda_urdf: Any) -> None:
    found = {f.what: f for f in check_robot(panda_urdf)}
    assert found["frames"].severity == found["joints"].severity == found["motion"].severity == "ok"
    assert found["limits"].severity == "warning", "the URDF has slightly wider limits than the spec"


@pytest.mark.parametrize(("effort", "left"), [(9.0, 5.0), (3.0, 3.0)])
def test_effort_is_the_smaller_one_of_spec_and_urdf(tmp_path: Path, effort: float, left: float) -> None:
    model = compile_model(turn(tmp_path / "turn.urdf", effort), Scene())
    assert model.actuator_forcerange.tolist() == [[-left, left]]
    assert model.body("base").pos.tolist() == [0, 0, 0], "the root link is the base frame"
    assert (model.dof_damping[0], model.dof_frictionloss[0]) == (0.1, 0.2)


@pytest.mark.parametrize(("file", "name"), [
    ("cube.obj", "cube.obj"),
    ("meshes/cube.obj", "meshes/cube.obj"),
    ("../meshes/cube.obj", "../meshes/cube.obj"),
    ("../meshes/cube.obj", "package://my_arm/meshes/cube.obj"),
    ("my_meshes/cube.obj", "package://my_meshes/cube.obj"),
    ("../meshes/cube.obj", "model://my_arm/meshes/cube.obj"),
    ("../meshes/my cube.obj", "package://my_arm/meshes/my%20cube.obj"),
    ("meshes/100%25.obj", "meshes/100%25.obj"),
    ("meshes/cube.obj", "file://{here}/meshes/cube.obj"),
    ("meshes/cube.obj", "file:{here}/meshes/cube.obj"),
    ("../../ros/share/arm_description/cube.obj", "package://arm_description/cube.obj"),
    ("../../workspace/arm_description/cube.obj", "package://arm_description/cube.obj"),
    ("../../models/arm/cube.OBJ", "model://arm/cube.OBJ"),
])  # fmt: skip
def test_meshes_are_found(tmp_path: Path, file: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = {"AMENT_PREFIX_PATH": "ros", "ROS_PACKAGE_PATH": "workspace", "GAZEBO_MODEL_PATH": "models"}
    for variable, folder in folders.items():
        monkeypatch.setenv(variable, f"{tmp_path / 'nothing'}:{tmp_path / folder}")
    name = name.format(here=tmp_path / "my_arm" / "urdf")
    robot = turn(tmp_path / "my_arm" / "urdf" / "turn.urdf", geometry=f'<mesh filename="{name}"/>')
    mesh = tmp_path / "my_arm" / "urdf" / file
    mesh.parent.mkdir(parents=True, exist_ok=True)
    mesh.write_text(CUBE)
    model = compile_model(robot, Scene())
    assert model.nmesh == 1 and model.mesh_vertnum[0] == 8


def test_a_missing_visual_mesh_is_omitted_and_reported(tmp_path: Path) -> None:
    robot = turn(tmp_path / "turn.urdf", shape="visual", geometry='<mesh filename="gone.dae"/>')
    assert compile_model(robot, Scene()).nmesh == 0
    assert any("gone.dae" in f.found for f in check_robot(robot) if f.what == "looks")


@pytest.mark.parametrize(("changes", "message"), [
    ({"geometry": '<mesh filename="gone.stl"/>'}, "collision mesh 'gone.stl' of link 'arm' is not there; put"),
    ({"geometry": '<mesh filename="model://a/b.stl"/>'}, "'model://a/b.stl' of link 'arm' .*GAZEBO_MODEL_PATH"),
    ({"geometry": '<mesh filename="turn.dae"/>'}, "'turn.dae' of link 'arm' is a .dae file; convert it to one of"),
    ({"kind": "floating"}, "joint 'turn' is floating, which is not supported"),
    ({"kind": "prismatic"}, "joint 'turn' does not turn"),
    ({"geometry": '<xacro:box xmlns:xacro="http://www.ros.org/wiki/xacro"/>'}, "xacro file; run `xacro turn.urdf"),
    ({"geometry": "<xacro:box/>"}, "xacro file; run `xacro turn.urdf"),
    ({"geometry": '<box size="${size} 1 1"/>'}, "xacro file; run `xacro turn.urdf"),
])  # fmt: skip
def test_unreadable_urdfs_are_refused(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    (tmp_path / "turn.dae").touch()
    with pytest.raises(ConfigError, match=message):
        compile_model(turn(tmp_path / "turn.urdf", **changes), Scene())  # type: ignore[arg-type]


def test_a_quadrupeds_folder_can_be_moved(go2: Any, tmp_path: Path) -> None:
    shutil.copytree(robot_model(go2).parents[1], tmp_path / "go2")
    moved = replace(go2, model=str(tmp_path / "go2" / "urdf" / "go2.urdf"))
    ours, shipped = compile_model(moved, Scene()), compile_model(go2, Scene())
    assert np.array_equal(ours.body_inertia, shipped.body_inertia) and ours.ngeom == shipped.ngeom
    with pytest.raises(ConfigError, match=r"gone\.urdf is not a file; correct `model` of robot 'go2'"):
        robot_model(replace(go2, model=str(tmp_path / "gone.urdf")))


LINK = """<link name="{name}">{inertial}<visual><geometry><sphere radius="0.01"/></geometry></visual></link>
<joint name="{name}" type="{type}"><parent link="{parent}"/><child link="{name}"/><axis xyz="0 1 0"/>
<limit lower="0" upper="0.03" effort="10" velocity="1"/>{mimic}</joint>"""
INERTIAL = """<inertial><mass value="0.05"/>
<inertia ixx="1e-4" iyy="1e-4" izz="1e-4" ixy="0" ixz="0" iyz="0"/></inertial>"""


def link(name: str, parent: str = "arm", type: str = "prismatic", mass: bool = True, mimic: str = "") -> str:
    mimic = f'<mimic joint="{mimic}"/>' if mimic else ""
    return LINK.format(name=name, parent=parent, type=type, inertial=INERTIAL if mass else "", mimic=mimic)


def with_links(path: Path, *links: str) -> Any:
    robot = turn(path)
    path.write_text(path.read_text().replace("</robot>", "".join(links) + "</robot>"))
    return robot


def test_joints_without_commands_are_reported(tmp_path: Path) -> None:
    robot = with_links(tmp_path / "turn.urdf", link("k1"), link("k2", mimic="k1"))
    robot = replace(robot, collision_bodies=("k1",))
    found = check_robot(robot)
    assert not [f for f in found if f.severity == "error"]
    assert any("2 joints nobody drives: k1, k2" in f.found for f in found if f.severity == "warning")
    driven = replace(robot, gripper=Gripper(("k1",), 0.03, 10.0))
    assert not [f for f in check_robot(driven) if "nobody drives" in f.found], "the second joint mimics the first"


def test_a_finger_that_mimics_another_follows_it(tmp_path: Path) -> None:
    robot = with_links(tmp_path / "turn.urdf", link("k1"), link("k2", mimic="k1"))
    engine = MujocoEngine(replace(robot, gripper=Gripper(("k1",), 0.03, 10.0)), Scene(), 1, threads=1)
    engine.reset(np.array([0]), np.zeros((1, 1)), {})
    engine.step(torch.zeros(1, 200, 1), torch.full((1, 200, 1), 0.01))
    fingers = [engine.qpos[0, engine.model.joint(name).qposadr[0]] for name in ("k1", "k2")]
    assert fingers == pytest.approx([0.01, 0.01], abs=1e-3)
    robot = with_links(tmp_path / "turn.urdf", link("claw", type="revolute"))
    with pytest.raises(ConfigError, match="finger joint 'claw' does not slide"):
        compile_model(replace(robot, gripper=Gripper(("claw",), 0.03, 10.0)), Scene())


def test_massless_links_are_welded_and_reported(tmp_path: Path) -> None:
    """A caster, and a sensor on a turntable. A link that the spec drives, or that carries mass, needs a mass."""
    caster, table = link("caster", type="continuous", mass=False), link("table", mass=False)
    robot = with_links(tmp_path / "turn.urdf", caster, table, link("eye", "table", "fixed", False))
    model = compile_model(robot, Scene())
    assert model.nv == 1 and model.body("eye").id > 0
    (finding,) = [f for f in check_robot(robot) if f.what == "masses" and f.severity == "warning"]
    assert "caster" in finding.found and "table" in finding.found and finding.remedy
    moved = replace(robot, gripper=Gripper(("table",), 0.03, 10.0))
    with pytest.raises(ConfigError, match="body 'table' moves and has no mass; give its link an <inertial>"):
        compile_model(moved, Scene())
    carries = with_links(tmp_path / "turn.urdf", link("slide", mass=False), link("load", "slide"))
    with pytest.raises(ConfigError, match="body 'slide' moves and has no mass"):
        compile_model(carries, Scene())


def test_an_impossible_inertia_is_repaired_and_reported(tmp_path: Path) -> None:
    robot = with_links(tmp_path / "turn.urdf", link("eye", type="fixed").replace('izz="1e-4"', 'izz="3e-4"'))
    assert compile_model(robot, Scene()).body("eye").inertia == pytest.approx([5e-4 / 3] * 3)
    assert any("eye" in f.found for f in check_robot(robot) if f.what == "masses" and f.severity == "warning")


def test_a_flat_mesh_is_accepted(tmp_path: Path) -> None:
    """A sticker on a link has no volume; links of a URDF do not get their mass from geoms."""
    (tmp_path / "flat.obj").write_text("v 0 0 0\nv 0.1 0 0\nv 0 0.1 0\nv 0.1 0.1 0\nf 1 2 3\nf 2 4 3\n")
    robot = turn(tmp_path / "turn.urdf", shape="visual", geometry='<mesh filename="flat.obj"/>')
    assert compile_model(robot, Scene()).nmesh == 1
