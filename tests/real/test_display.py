"""`robot_description`, `/tf` and `/tf_static`: against the kinematics, and against MuJoCo's reading of the URDF."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import mujoco
import numpy as np
import pytest
import torch

from real import clock
from real.bus import make, qos
from real.description import Link, description, links, product, rotate, tool_link
from real.episode.display import Display
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.rotation import matrix_to_quat
from robot_rl.robots.go2 import GO2
from robot_rl.robots.panda import PANDA
from robot_rl.robots.ur5e import UR5E
from sim.tasks import tasks

Build = Callable[..., Any]
LIFT = tasks.get("panda-lift").interface
ARMS = pytest.mark.parametrize("robot", [PANDA, UR5E], ids=lambda robot: robot.name)


def random_joints(robot: RobotSpec, count: int = 20) -> np.ndarray:
    low, high = robot.limit("low").numpy(), robot.limit("high").numpy()
    return np.random.default_rng(0).uniform(low, high, (count, len(low)))


def kinematic(robot: RobotSpec, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the tool's position and quaternion, w x y z, by the kinematics of control."""
    position, rotation = Kinematics(robot, torch.float64).forward(torch.from_numpy(q)[None])
    return position[0].numpy(), matrix_to_quat(rotation)[0].numpy()


def composed(frame: str, transforms: dict[str, tuple[str, Any, Any]]) -> tuple[str, np.ndarray, np.ndarray]:
    """Return the root of a frame, and the frame's place in it, from (parent, position, quaternion) by child."""
    position, quat = np.zeros(3), (1.0, 0.0, 0.0, 0.0)
    while frame in transforms:
        frame, step, turn = transforms[frame]
        position, quat = step + rotate(turn, position), product(turn, quat)
    return frame, position, np.array(quat)


def by_links(chain: list[Link], robot: RobotSpec, q: np.ndarray) -> dict[str, tuple[str, Any, Any]]:
    values = {j.name: value for j, value in zip(robot.joints, q, strict=True)}
    values |= {j.model_name: value for j, value in zip(robot.joints, q, strict=True) if j.model_name}
    return {link.child: (link.parent, *link.at(values.get(link.joint, 0.0))) for link in chain}


def same(quat: np.ndarray, other: np.ndarray) -> bool:
    return bool(min(np.abs(quat - other).max(), np.abs(quat + other).max()) < 1e-6)


@ARMS
def test_links_of_the_urdf_end_at_the_tool_of_the_kinematics(robot: RobotSpec) -> None:
    chain = links(description(robot))
    for q in random_joints(robot):
        root, position, quat = composed(robot.tool.name, by_links(chain, robot, q))  # type: ignore[union-attr]
        expected, turn = kinematic(robot, q)
        assert root == "base" and np.abs(position - expected).max() < 1e-6 and same(quat, turn)


@ARMS
def test_mujoco_reads_the_same_tool_limits_and_something_to_see(robot: RobotSpec) -> None:
    root = ET.fromstring(description(robot))
    extension = ET.SubElement(root, "mujoco")
    unweighed = {"boundmass": "0.1", "boundinertia": "0.001"}  # the spec has no weights
    ET.SubElement(extension, "compiler", fusestatic="false", discardvisual="false", **unweighed)
    model = mujoco.MjModel.from_xml_string(ET.tostring(root, encoding="unicode"))
    data = mujoco.MjData(model)
    joints = [model.joint(name) for name in robot.joint_names]
    assert model.njnt == len(robot.joints) + len(robot.fingers) and model.ngeom >= len(robot.joints)
    for joint, spec in zip(joints, robot.joints, strict=True):
        assert joint.range == pytest.approx([spec.low, spec.high]) and joint.type == mujoco.mjtJoint.mjJNT_HINGE
    for q in random_joints(robot):
        for joint, value in zip(joints, q, strict=True):
            data.qpos[joint.qposadr[0]] = value
        mujoco.mj_kinematics(model, data)
        tool, (expected, turn) = data.body(robot.tool.name), kinematic(robot, q)  # type: ignore[union-attr]
        assert np.abs(tool.xpos - expected).max() < 1e-6 and same(tool.xquat, turn)


@ARMS
def test_model_file_that_is_a_urdf_is_published_as_it_is(robot: RobotSpec, tmp_path: Path) -> None:
    file = tmp_path / "arm.urdf"
    tree = ET.fromstring(description(replace(robot, tool=replace(robot.tool, name="flange"))))  # type: ignore[type-var]
    ET.SubElement(ET.SubElement(tree.findall("link")[0].find("visual"), "geometry"), "mesh", filename="package://x.stl")
    file.write_bytes(ET.tostring(tree, encoding="utf-16"))
    own = replace(robot, model=str(file))
    assert 'filename="package://x.stl"' in description(own, "ignored", "ignored_")
    chain = links(description(own))
    tool = tool_link(own, chain)
    assert tool is not None and tool_link(robot, links(description(robot))) is None
    q = random_joints(robot, 1)[0]
    _, position, quat = composed(robot.tool.name, by_links([*chain, tool], own, q))  # type: ignore[union-attr]
    expected, turn = kinematic(robot, q)
    assert np.abs(position - expected).max() < 1e-6 and same(quat, turn)


def test_go2_has_its_makers_urdf_and_without_the_file_none() -> None:
    chain = links(description(GO2))
    assert {link.joint for link in chain if not link.fixed} == set(GO2.joint_names)
    roots = {link.parent for link in chain} - {link.child for link in chain}
    assert roots == {GO2.base.body}, "no odom: the position is not known"  # type: ignore[union-attr]
    assert description(replace(GO2, model="nowhere.urdf")) == ""


@pytest.mark.parametrize("text", ["<robot", "<robot><joint type='fixed'/></robot>"])
def test_damaged_model_file_does_not_keep_a_robot_from_its_task(lockstep_arm: Build, tmp_path: Path, text: str) -> None:
    file = tmp_path / "arm.urdf"
    file.write_text(text)
    _, env, *_ = lockstep_arm(LIFT)
    env.pipeline.robot = replace(PANDA, model=str(file))
    count = len(env.each_period)
    Display(env)
    assert len(env.each_period) == count


def test_mimic_and_prismatic_joints() -> None:
    urdf = """<robot name="hand"><link name="palm"/><link name="a"/><link name="b"/>
    <joint name="finger" type="prismatic"><parent link="palm"/><child link="a"/><axis xyz="0 2 0"/></joint>
    <joint name="other" type="prismatic"><parent link="palm"/><child link="b"/><origin rpy="0 0 1.5707963267948966"/>
    <axis xyz="1 0 0"/><mimic joint="finger" multiplier="-1" offset="0.01"/></joint></robot>"""
    a, b = links(urdf)
    assert a.at(0.03)[0] == pytest.approx([0, 0.03, 0])
    assert b.joint == "finger" and b.at(0.03)[0] == pytest.approx([0, -0.02, 0])


class Viewer:
    """What RViz receives: the URDF, and the newest transform of each frame."""

    def __init__(self, node: Any):
        self.urdf, self.frames, self.stamps = "", {}, []
        self.counts = {"/tf": 0, "/tf_static": 0}
        node.subscribe("std_msgs/msg/String", "robot_description", qos.LATCHED, self._describe)
        for topic, profile in (("/tf", qos.QoS(depth=100)), ("/tf_static", qos.LATCHED)):
            node.subscribe("tf2_msgs/msg/TFMessage", topic, profile, lambda s, t=topic: self._take(t, s))

    def _describe(self, sample: Any) -> None:
        self.urdf = sample.msg.data

    def _take(self, topic: str, sample: Any) -> None:
        self.counts[topic] += 1
        for part in sample.msg.transforms:
            to, turn = part.transform.translation, part.transform.rotation
            place = np.array([to.x, to.y, to.z]), (turn.w, turn.x, turn.y, turn.z)
            self.frames[part.child_frame_id] = part.header.frame_id, *place
        stamp = sample.msg.transforms[0].header.stamp
        self.stamps.append(stamp.sec + 1e-9 * stamp.nanosec)


def test_viewer_sees_the_measured_robot_once_per_control_period(lockstep_arm: Build, simulated: Any) -> None:
    arm, env, *_ = lockstep_arm(LIFT)
    display = Display(env)
    viewer = Viewer(simulated.node("rviz"))
    assert env.node.wait_for(lambda: display._tf.matched, 10)
    simulated.until(lambda: viewer.urdf and viewer.counts["/tf_static"])
    assert viewer.urdf == display.urdf and set(viewer.frames) == {"panda_tool"}
    before = viewer.counts["/tf"]
    for _ in range(20):
        env.step(torch.tensor([[0.4, 0.2, 0.1, -1.0]]))
    clock.sleep(0.02)
    assert viewer.counts["/tf"] - before == 20
    assert 0 <= clock.now() - viewer.stamps[-1] < 0.1, "stamps are times of the measurement, in simulated time"
    measured = env.state.joint_position[0].double().numpy()
    root, position, quat = composed("panda_tool", viewer.frames)
    expected, turn = kinematic(PANDA, measured)
    assert root == "base" and np.abs(position - expected).max() < 1e-6 and same(quat, turn)
    assert viewer.frames["finger_joint1_link"][1] == pytest.approx([0, float(env.state.gripper_width) / 2, 0])


def test_a_robot_state_publisher_is_left_alone(lockstep_arm: Build, simulated: Any) -> None:
    other = simulated.node("robot_state_publisher").publisher("std_msgs/msg/String", "robot_description", qos.LATCHED)
    other.publish(make("std_msgs/msg/String", data="<robot name='maker'/>"))
    _, env, *_ = lockstep_arm(LIFT)
    count = len(env.each_period)
    Display(env)
    assert len(env.each_period) == count and not other.other_writers()
