"""Manufacturers' model files: names, feet and base are found by the spec, and do not affect the scene's settings."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from robot_rl.interface.robot import FloatingBase, Gripper, Joint, RobotSpec
from robot_rl.robots import robots
from robot_rl.util.errors import ConfigError
from sim.engines.model import compile_model
from sim.engines.mujoco import MujocoEngine
from sim.engines.robot_check import check_robot
from sim.objects import Box
from sim.scenes import Camera, Scene, robot_model

PANDA = robots.get("panda")
SCENE = Scene((Box("cube", 0.02, 0.1),), (Camera("front", (1.15, 0.0, 0.55), (0.45, 0.0, 0.1)),))
LEGS = (("FL", 0.2, 0.1), ("FR", 0.2, -0.1), ("RL", -0.2, 0.1), ("RR", -0.2, -0.1))
FOOT = '<geom name="{leg}" class="foot"/><body name="{leg}_foot" pos="0 0 -0.2"/>'


def quadruped(path: Path, foot: str = FOOT, head: str = "", world: str = "") -> Path:
    """Write an MJCF in the form of Unitree's go2.xml, with one joint per leg."""
    inertia = '<inertial pos="0 0 0" mass="{}" diaginertia="0.01 0.01 0.01"/>'
    legs = "".join(
        f'<body name="{leg}_calf" pos="{x} {y} 0">{inertia.format(0.3)}<joint name="{leg}_joint"/>'
        f'<geom class="collision" type="cylinder" size="0.01 0.05" pos="0 0 -0.08"/>{foot.format(leg=leg)}</body>'
        for leg, x, y in LEGS
    )
    motors = "".join(f'<motor class="dog" name="{leg}" joint="{leg}_joint"/>' for leg, _, _ in LEGS)
    path.write_text(f"""<mujoco model="dog"><compiler angle="radian" autolimits="true"/>{head}
    <option cone="elliptic" impratio="100"/>
    <default><default class="dog"><geom friction="0.4" margin="0.001" condim="1"/>
      <joint axis="0 1 0" range="-1 1" damping="0.1"/><motor ctrlrange="-23.7 23.7"/>
      <default class="collision"><geom group="3"/>
      <default class="foot"><geom size="0.022" pos="-0.002 0 -0.2" priority="1" condim="6" friction="0.4 0.02 0.01"/>
    </default></default></default></default>
    <worldbody>{world}<body name="base_link" pos="0 0 0.4" childclass="dog">{inertia.format(6)}<freejoint/>
      <geom class="collision" type="box" size="0.2 0.05 0.05"/><site name="imu"/><camera name="front" pos="0.3 0 0"/>
      {legs}</body></worldbody>
    <actuator>{motors}</actuator>
    <sensor><gyro name="gyro" site="imu"/><jointpos name="FL_foot.force" joint="FL_joint"/></sensor>
    <keyframe><key name="home" qpos="0 0 0.3 1 0 0 0 0 0 0 0" ctrl="0 0 0 0"/></keyframe></mujoco>""")
    return path


def dog(model: Path, **base: Any) -> RobotSpec:
    joints = tuple(Joint(f"{leg}_joint", -1.0, 1.0, 20.0, 1e4, 24.0, stiffness=60.0, damping=2.0) for leg, *_ in LEGS)
    feet = tuple(f"{leg}_foot" for leg, *_ in LEGS)
    trunk = FloatingBase("base", 0.222, feet, 0.022, aliases=("trunk", "base_link"))
    return RobotSpec("dog", joints, (0.0,) * 4, str(model), base=replace(trunk, **base))


@pytest.mark.parametrize(("foot", "feet"), [
    (FOOT, "{}_foot"),
    (FOOT, "{}"),
    ('<geom class="foot"/><site name="{leg}_sole" pos="0 0 -0.2"/>', "{}_sole"),
    (FOOT.replace('pos="0 0 -0.2"', 'pos="0 0 -0.2" euler="0 0.5 1"'), "{}_foot"),
    ('<body name="{leg}_foot" pos="0 0 -0.2"><geom class="foot" pos="-0.002 0 0"/></body>', "{}_foot"),
])  # fmt: skip
def test_a_quadruped_stands_on_feet_of_any_form(tmp_path: Path, foot: str, feet: str) -> None:
    """Trunk with another name and a free joint; motors, sensors and a keyframe; feet as bodies, geoms or sites."""
    names = tuple(feet.format(leg) for leg, *_ in LEGS)
    robot = dog(quadruped(tmp_path / "dog.xml", foot), feet=names)
    engine = MujocoEngine(robot, SCENE, 1, threads=1)
    engine.reset(np.array([0]), np.zeros((1, 4)), {"cube": np.array([[0.6, 0.5, 0.02, 1, 0, 0, 0]])})
    assert engine.model.nu == 4 and engine.model.nkey == 0 and engine.model.nsensor == 12
    file = mujoco.MjModel.from_xml_path(str(tmp_path / "dog.xml"))
    assert engine.model.body_mass.sum() == pytest.approx(file.body_mass.sum() + 0.1), "the geom of a foot has no mass"
    position = engine.foot_state()["foot_position"].view(4, 3)
    assert torch.allclose(position[:, :2], torch.tensor([[x, y] for _, x, y in LEGS]), atol=3e-3)
    joints = torch.zeros(1, 300, 4)
    engine.step(joints, joints)
    weight = 9.81 * float(engine.model.body_mass.sum() - 0.1)
    assert float(engine.foot_state()["foot_force"].sum()) == pytest.approx(weight, rel=0.05)
    assert float(engine.base_state()["base_position"][0, 2]) == pytest.approx(0.222, abs=0.02)
    friction = np.full(1, 0.7)
    engine.parameters["ground.friction"](np.array([0]), friction)
    assert (engine.batch.expanded("geom_friction")[0, :, 0] == 0.7).sum() == 4
    found = check_robot(robot)
    assert not [f for f in found if f.severity == "error"], found
    assert any("base_link" in f.found for f in found if f.what == "bodies")


def test_the_ground_of_a_manufacturers_scene_is_removed(tmp_path: Path) -> None:
    """A `scene.xml` includes the robot's file and adds a floor."""
    quadruped(tmp_path / "dog.xml")
    (tmp_path / "scene.xml").write_text(
        '<mujoco><include file="dog.xml"/><worldbody><geom name="floor" type="plane" size="0 0 1"/></worldbody>'
        '<contact><pair geom1="floor" geom2="FL"/></contact></mujoco>'
    )
    bare, scene = (compile_model(dog(tmp_path / name), Scene()) for name in ("dog.xml", "scene.xml"))
    assert bare.ngeom == scene.ngeom and scene.npair == 0
    for name in ("panda_free_base.xml", "scene.xml"):
        ours = compile_model(PANDA, Scene(), str(robot_model(PANDA).parent / name))
        assert (ours.nq, ours.ngeom, ours.nkey) == (9, compile_model(PANDA, Scene()).ngeom, 0), name


def test_a_trunk_with_a_parent_is_refused(tmp_path: Path) -> None:
    file = quadruped(tmp_path / "dog.xml")
    text = file.read_text().replace("<freejoint/>", "")
    text = text.replace('<body name="base_link"', '<body name="root"><body name="base_link"')
    file.write_text(text.replace("</body></worldbody>", "</body></body></worldbody>"))
    with pytest.raises(ConfigError, match=r"dog\.xml: the trunk 'base' hangs on body 'root'"):
        compile_model(dog(file), Scene())


ARM = """<mujoco><compiler angle="radian" {compiler}/><option {option}/><default>{default}</default>
<asset><material name="table"/><texture name="table" type="2d" builtin="flat" width="8" height="8"/></asset>
<worldbody>{before}<body name="cube" {place}><geom name="table" size="0.03" mass="0.5"/>
<body name="arm" pos="0 0 0.1">
<inertial pos="0 0 0" mass="1" diaginertia="0.1 0.1 0.1"/><joint name="turn" axis="0 1 0" range="-1 1"/>
<light name="sun"/><camera name="front"/><geom name="cube" size="0.03" pos="0 0 0.1"/><site name="turn"/>{inside}
</body></body></worldbody>
<actuator><position name="turn" joint="turn" kp="50" kv="5"/></actuator></mujoco>"""


def arm(path: Path, text: str = ARM, **parts: str) -> RobotSpec:
    blank = dict.fromkeys(("compiler", "option", "default", "before", "place", "inside"), "")
    path.write_text(text.format(**blank | parts))
    return RobotSpec("arm", (Joint("turn", -1.0, 1.0, 3.0, 30.0, 5.0),), (0.0,), str(path))


def test_robot_and_scene_may_have_equal_names(tmp_path: Path) -> None:
    engine = MujocoEngine(arm(tmp_path / "arm.xml"), SCENE, 1, threads=1)
    pose = np.array([[0.4, 0.1, 0.02, 1, 0, 0, 0]])
    engine.reset(np.array([0]), np.zeros((1, 1)), {"cube": pose})
    engine.step(torch.full((1, 40, 1), 0.2), torch.zeros(1, 40, 1))
    assert engine.joint_state()[0].item() == pytest.approx(0.2, abs=0.05)
    assert torch.allclose(engine.object_pose("cube"), torch.from_numpy(pose).float(), atol=1e-3)
    engine.parameters["cube.mass"](np.array([0]), np.array([0.3]))
    masses = engine.batch.expanded("body_mass")[0].tolist()
    assert sorted(masses) == [0.0, 0.3, 0.5, 1.0], "the object has changed, not the body of this name"
    engine.close()


@pytest.mark.parametrize("parts", [
    {"default": '<geom contype="0" conaffinity="0" friction="0.01" group="4" condim="1"/>'},
    {"default": '<camera fovy="9"/><material rgba="1 0 0 1"/>'},
    {"default": '<joint armature="7" damping="9"/><light diffuse="0 0 0"/>'},
    {"compiler": 'inertiagrouprange="4 5" boundmass="0.4"'},
    {"option": 'gravity="0 0 -1" density="1000"'},
])  # fmt: skip
def test_defaults_and_options_of_a_robot_file_do_not_affect_the_scene(tmp_path: Path, parts: dict[str, str]) -> None:
    plain, other = (compile_model(arm(tmp_path / "arm.xml", **p), SCENE) for p in ({}, parts))
    for model in (plain, other):
        assert model.opt.gravity.tolist() == [0, 0, -9.81] and model.opt.density == 0
    for kind, name, fields in (
        ("geom", "scene/cube", ("contype", "conaffinity", "friction", "group", "condim")),
        ("geom", "scene/table", ("contype", "conaffinity", "friction", "group")),
        ("body", "scene/cube", ("mass", "inertia")),
        ("camera", "scene/front", ("fovy",)),
        ("light", "scene/sun", ("diffuse",)),
    ):
        ours, theirs = (getattr(model, kind)(name) for model in (plain, other))
        for field in fields:
            assert np.array_equal(getattr(ours, field), getattr(theirs, field)), (name, field)
    dofs = [int(model.joint("scene/cube").dofadr[0]) for model in (plain, other)]
    assert (plain.dof_armature[dofs[0] :] == other.dof_armature[dofs[1] :]).all()


def test_motors_of_a_spec_do_not_have_the_defaults_of_the_file(tmp_path: Path) -> None:
    head = '<default><motor ctrlrange="-0.1 0.1" ctrllimited="true" gear="30"/></default>'
    model = compile_model(dog(quadruped(tmp_path / "dog.xml", head=head)), Scene())
    assert not model.actuator_ctrllimited.any() and (model.actuator_gear[:, 0] == 1).all()


def test_a_file_that_scales_all_masses_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="settotalmass"):
        compile_model(arm(tmp_path / "arm.xml", compiler='settotalmass="5"'), SCENE)


@pytest.mark.parametrize("kind", ["body", "joint"])
def test_duplicate_names_in_a_file_are_refused(tmp_path: Path, kind: str) -> None:
    second = {"body": '<body name="arm"/>', "joint": '<body><joint name="pan"/><geom size="0.1"/></body>'}[kind]
    robot = arm(tmp_path / "arm.xml", inside=second)
    if kind == "joint":  # the file has both the driver's and the model's name of a joint
        robot = replace(robot, joints=(replace(robot.joints[0], model_name="pan"),))
    with pytest.raises(ConfigError, match=r"arm\.xml .*repeated name"):
        compile_model(robot, Scene())


TABLE = '<body name="bench" pos="0.2 0 0.15"><geom type="box" size="0.5 0.5 0.15"/></body>'


@pytest.mark.parametrize(("before", "place"), [
    ("", 'pos="0.1 0 0.3" euler="0 0 1"'),
    ("", 'pos="0.1 0 0.3" quat="0 0 0 1"'),
    (TABLE, 'pos="0.1 0 0.3" euler="0 0 1"'),
    ('<frame pos="0.1 0 0.3" euler="0 0 1">', 'pos="0 0 0.2"'),
    (f'<frame pos="0.1 0 0.3" euler="0 0 1"><site name="a"/>{TABLE}', 'pos="0 0 0"'),
    ("", 'pos="0 0 0.2"><freejoint/'),
])  # fmt: skip
def test_the_base_is_moved_to_the_origin(tmp_path: Path, before: str, place: str) -> None:
    """Its surroundings move as well, for example the bench on which it is mounted."""
    text = ARM.replace("</body></body></worldbody>", "</body></body></frame></worldbody>") if "frame" in before else ARM
    model = compile_model(arm(tmp_path / "arm.xml", text, before=before, place=place), Scene())
    base = model.body("cube")
    assert np.allclose(base.pos, 0, atol=1e-12) and np.allclose(base.quat, [1, 0, 0, 0]) and model.nq == 1
    if before == TABLE:
        assert model.body("bench").pos == pytest.approx([0.1 * np.cos(1), -0.1 * np.sin(1), -0.15])
        found = check_robot(arm(tmp_path / "arm.xml", before=TABLE, place='pos="0 0 0.3"'))
        assert any(f.what == "base" and "0 0 0.3" in f.found for f in found), "a moved base is reported"
    elif TABLE in before:
        assert model.body("bench").pos == pytest.approx([0.2, 0, 0.15])


def test_cameras_and_light_follow_the_robot_instead_of_the_first_body(tmp_path: Path) -> None:
    camera = Camera("side", (0.0, 1.0, 0.3), (0.0, 0.0, 0.2), follows=True)
    robot = dog(quadruped(tmp_path / "dog.xml", world='<body name="wall" pos="3 0 0"><geom size="0.1"/></body>'))
    model = compile_model(robot, Scene(cameras=(camera,)))
    trunk = model.body("base").id
    assert model.camera("scene/side").bodyid == trunk and model.light("scene/sun").bodyid == trunk


URDF = """<?xml version="1.0" encoding="{encoding}"?><robot name="Übung"><!-- für Prüfstände --><link name="base"/>
<joint name="turn" type="revolute"><parent link="base"/><child link="{link}"/><limit lower="-1" upper="1" effort="5"
velocity="3"/></joint><link name="{link}"><inertial><mass value="1"/>
<inertia ixx="0.1" iyy="0.1" izz="0.1" ixy="0" ixz="0" iyz="0"/></inertial></link></robot>"""


@pytest.mark.parametrize("encoding", ["utf-8", "iso-8859-1", "utf-8-sig", "utf-16", "windows-1252"])
@pytest.mark.parametrize("name", ["arm.urdf", "arm.URDF", "arm.xml"])
def test_a_urdf_may_have_any_encoding_and_name(tmp_path: Path, encoding: str, name: str) -> None:
    robot = arm(tmp_path / name)
    text = URDF.format(encoding=encoding.removesuffix("-sig"), link="hübsch")
    (tmp_path / name).write_bytes(text.encode(encoding))
    model = compile_model(robot, Scene())
    assert model.body("hübsch").mass == 1 and model.nu == 1


def test_a_urdf_with_an_umlaut_is_checked_in_the_c_locale(tmp_path: Path) -> None:
    (tmp_path / "arm.urdf").write_text(URDF.format(encoding="utf-8", link="hübsch"), encoding="utf-8")
    code = "import sys; from robot_rl.cli.main import main; sys.exit(main(['robots', 'check', *sys.argv[1:]]))"
    (tmp_path / "lab.py").write_text(
        "from robot_rl.interface.robot import Joint, RobotSpec\n"
        "ARM = RobotSpec('arm', (Joint('turn', -1.0, 1.0, 3.0, 30.0, 5.0),), (0.0,), 'arm.urdf')\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, "lab:ARM"], cwd=tmp_path, capture_output=True, check=False,
        env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize(
    ("name", "text"),
    [("arm.urdf", '<?xml version="1.0" encoding="no-such"?><robot/>'), ("arm.urdf", "<robot"), ("arm.urdf", "\0"),
     ("arm.xml", "<mujoco"), ("arm.xml", "no XML at all")],
)  # fmt: skip
def test_unreadable_files_are_refused(tmp_path: Path, name: str, text: str) -> None:
    robot = arm(tmp_path / name)
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=r"arm\.\w+ is not a readable MJCF or URDF file: [^\n]*; correct it$"):
        compile_model(robot, Scene())


def test_an_mjcf_with_names_that_are_not_utf_8_is_refused(tmp_path: Path) -> None:
    robot = arm(tmp_path / "arm.xml", inside='<body name="hübsch"/>')
    text = (tmp_path / "arm.xml").read_text(encoding="utf-8")
    (tmp_path / "arm.xml").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"arm\.xml .*UTF-8"):
        compile_model(robot, Scene())


HAND = """<body name="{name}" pos="0 {y} 0.2">
<joint name="{name}" type="slide" axis="0 {way} 0" range="0 0.03" armature="0.02"/>
<geom size="0.01" mass="0.05"/></body>"""
GRIP = '<position name="grip" tendon="both" kp="300" kv="20" ctrlrange="0 0.03" forcerange="-15 15"/></actuator>'


def hand(path: Path, actuator: str = GRIP, **facts: Any) -> RobotSpec:
    inside = "".join(HAND.format(name=n, y=0.02 * w, way=w) for n, w in (("left", 1), ("right", -1)))
    joints = "".join(f'<joint joint="{finger}" coef="0.5"/>' for finger in ("left", "right"))
    tendon = f'<tendon><fixed name="both">{joints}</fixed></tendon>'
    text = ARM.replace("</actuator>", actuator).replace("</mujoco>", f"{tendon}</mujoco>")
    gripper = Gripper(("left", "right"), 0.06, **{"force": 60.0} | facts)
    return replace(arm(path, text, inside=inside), gripper=gripper)


def test_values_of_a_grippers_spec_replace_those_of_its_file(tmp_path: Path) -> None:
    shipped = compile_model(hand(tmp_path / "arm.xml"), Scene())
    grip = shipped.actuator("grip")
    assert (grip.gainprm[0], *grip.biasprm[1:3]) == (300, -300, -20) and grip.forcerange.tolist() == [-15, 15]
    assert shipped.dof_armature[1:3].tolist() == [0.02, 0.02]
    assert any("gripper 15 of 60" in f.found for f in check_robot(hand(tmp_path / "arm.xml")) if f.what == "effort")
    own = compile_model(hand(tmp_path / "arm.xml", force=9.0, stiffness=600.0, damping=50.0, armature=0.4), Scene())
    grip = own.actuator("grip")
    assert (grip.gainprm[0], *grip.biasprm[1:3]) == (600, -600, -50) and grip.forcerange.tolist() == [-9, 9]
    assert own.dof_armature[1:3].tolist() == [0.4, 0.4]


@pytest.mark.parametrize(("actuator", "what"), [
    ('<motor name="grip" tendon="both" ctrlrange="0 1"/></actuator>', "take no position"),
    ('<position name="grip" tendon="both" kp="300"/></actuator>', "take no position"),
    (GRIP.replace('ctrlrange="0 0.03"', 'ctrlrange="0 0.01"'), "told to close and to open to 0.060 m"),
])  # fmt: skip
def test_a_gripper_that_does_not_follow_commands_is_reported(tmp_path: Path, actuator: str, what: str) -> None:
    errors = [f.found for f in check_robot(hand(tmp_path / "arm.xml", actuator)) if f.severity == "error"]
    assert len(errors) == 1 and what in errors[0], errors
