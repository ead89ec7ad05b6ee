"""Every robot file in genesis-world either works or is refused with a remedy."""

import math
import re
from importlib.util import find_spec
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from robot_rl.interface.robot import Joint, RobotSpec
from robot_rl.util.errors import ConfigError
from sim.engines.mujoco import MujocoEngine
from sim.scenes import Scene

PACKAGE = find_spec("genesis")
ASSETS = Path((PACKAGE.submodule_search_locations or [""])[0] if PACKAGE else "") / "assets"
FILES = sorted(str(p.relative_to(ASSETS)) for p in ASSETS.rglob("*") if p.suffix in (".urdf", ".xml"))
WORKS = (
    "xml/franka_emika_panda/panda_nohand.xml", "xml/universal_robots_ur5e/scene.xml", "urdf/kuka_iiwa/model.urdf",
    "urdf/panda_bullet/panda.urdf", "xml/franka_sim/franka_panda_0.xml", "urdf/wheel/wheel.urdf",
    "urdf/simple/two_link_arm.urdf", "urdf/anymal_c/urdf/anymal_c.urdf",
)  # fmt: skip
REFUSED = {
    "urdf/3763/mobility.urdf": "'link_0_helper' moves and has no mass; give its link an <inertial>",
    "urdf/shadow_hand/shadow_hand.urdf": "body 'wrist' moves and has no mass; give its link an <inertial>",
    "urdf/kuka_iiwa/model_for_sdf.urdf": "'meshes/coarse/link_0.stl' of link 'lbr_iiwa_link_0' is not there; put it",
    "urdf/drones/racer.urdf": "lacks the joints",
    "tower/ball.urdf": "joint 'world_to_ball' is floating, which is not supported; make it fixed",
    "xml/ant.xml": "no position actuator for the joints .*; add <position>s",
    "xml/franka_emika_panda/panda.xml": r"the actuators \['actuator8'\] are nothing of robot 'some'; take them out",
    "xml/franka_sim/assets/assets.xml": "is not a readable MJCF or URDF file: .*mujocoinclude.*; correct it",
}


def spec_of(path: Path) -> RobotSpec:
    """Return a spec of all hinge joints of a file, with its limits."""
    joints = []
    try:
        model = mujoco.MjModel.from_xml_path(str(path)) if path.suffix == ".xml" else None
        spec = mujoco.MjSpec.from_file(str(path))
        for joint in spec.joints:
            if joint.type == mujoco.mjtJoint.mjJNT_HINGE and joint.name:
                low, high = model.joint(joint.name).range if model else joint.range
                limits = (float(low), float(high)) if low < high else (-math.pi, math.pi)
                joints.append(Joint(joint.name, *limits, 10.0, 100.0, 10.0))
    except ValueError:
        pass  # the loader reports the reason
    joints = joints or [Joint("none", -1.0, 1.0, 1.0, 1.0, 1.0)]
    return RobotSpec("some", tuple(joints), tuple(min(max(0.0, j.low), j.high) for j in joints), str(path))


@pytest.mark.skipif(not PACKAGE, reason="genesis-world is not installed")
@pytest.mark.parametrize("name", FILES)
def test_a_file_works_or_is_refused_with_a_remedy(name: str) -> None:
    robot = spec_of(ASSETS / name)
    try:
        engine = MujocoEngine(robot, Scene(), 1, threads=1)
    except ConfigError as error:
        assert name in str(error) and ";" in str(error) and "\n" not in str(error)
        assert name not in WORKS and re.search(REFUSED.get(name, ""), str(error)), error
        return
    assert name not in REFUSED
    engine.reset(np.array([0]), np.array([robot.home]), {})
    home = torch.tensor([[robot.home]])
    engine.step(home.expand(1, 5, -1), torch.zeros(1, 5, 1))
    assert engine.joint_state()[0].isfinite().all()
    assert engine.model.body(1).name and engine.model.nkey == 0
    engine.close()
