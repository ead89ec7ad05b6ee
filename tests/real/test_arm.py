"""The arm's driver on the bus: joints by name, nothing before all is known, one writer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from real.bus import Node, QoS, make, open_node
from real.bus import qos as profiles
from real.bus.messages import encode
from real.bus.node import Stamped
from real.control.loop import CommandLoop
from real.robots.arm import ArmDriver
from real.robots.base import NotReady
from real.robots.wiring import frames
from robot_rl.interface.pipeline import Pipeline
from robot_rl.robots.panda import PANDA
from robot_rl.robots.ur5e import UR5E
from robot_rl.util.errors import UserError
from sim.tasks import tasks

Eventually = Callable[..., Any]
STATE = "sensor_msgs/msg/JointState"
assert PANDA.gripper is not None
NAMES = [*PANDA.joint_names, *PANDA.gripper.joints]
VALUES = np.array([*PANDA.home, 0.03, 0.03])


@pytest.fixture
def nodes(private_domain: int) -> Iterator[Callable[[str], Node]]:
    opened = []

    def build(name: str, **options: Any) -> Node:
        opened.append(open_node(name, **options))
        return opened[-1]

    yield build
    for node in opened:
        node.close()


@pytest.fixture(scope="module")
def nodes_of_all(private_domain: int) -> Iterator[Node]:
    with open_node("policy", "/all") as node:
        yield node


class Wire:
    """A driver, and a robot that says what the test wants."""

    def __init__(self, nodes: Callable[[str], Node], eventually: Eventually, **options: Any):
        self.eventually = eventually
        self.robot = nodes("robot")
        self.driver = ArmDriver(nodes("policy"), PANDA, **options)
        self.states = self.robot.publisher("sensor_msgs/msg/JointState", PANDA.ros.joint_states, profiles.SENSOR)
        self.commands: list[np.ndarray] = []
        array = "std_msgs/msg/Float64MultiArray"
        self.arm = self.robot.subscribe(
            array, PANDA.ros.command, profiles.COMMAND, lambda s: self.commands.append(s.msg.data)
        )
        self.hand = self.robot.subscribe(array, PANDA.ros.gripper_command, profiles.COMMAND)
        assert self.robot.wait_for(lambda: self.states.matched == 1, 30)

    def say(self, names: list[str], position: Any, velocity: Any = None) -> None:
        """Publish a joint state, at rest by default, and wait until the driver's callback has had it."""
        driver, before = self.driver, self.driver.joints.latest
        done = driver.rejected, float(driver._stamp.max())
        velocity = np.zeros(len(names)) if velocity is None else velocity
        msg = make("sensor_msgs/msg/JointState", name=names, position=np.asarray(position, float), velocity=velocity)
        self.states.publish(msg)
        self.eventually(lambda: driver.joints.latest is not before)
        known = set(names) & set(driver._index)
        if known or driver.rejected != done[0]:
            self.eventually(lambda: (driver.rejected, float(driver._stamp.max())) != done)

    def say_pose(self, position: tuple[float, ...], quat: tuple[float, ...], frame: str = "", stamp: int = 0) -> None:
        pub = self.robot.publisher("geometry_msgs/msg/PoseStamped", "objects/cube/pose", profiles.SENSOR)
        assert self.robot.wait_for(lambda: pub.matched == 1, 30)
        w, x, y, z = quat
        where = dict(zip("xyz", position, strict=True))
        pose = {"position": where, "orientation": {"w": w, "x": x, "y": y, "z": z}}
        driver = self.driver

        def heard() -> int:
            return driver.accepted["cube"] + driver.rejected_poses + driver.repeated

        before, header = heard(), {"frame_id": frame, "stamp": {"sec": stamp}}
        pub.publish(make("geometry_msgs/msg/PoseStamped", header=header, pose=pose))
        self.eventually(lambda: heard() > before)
        pub.close()


@pytest.fixture
def wire(nodes: Callable[[str], Node], eventually: Eventually) -> Callable[..., Wire]:
    return lambda **options: Wire(nodes, eventually, **options)


# ---- joint states ------------------------------------------------------------------------------------------------
def test_joints_are_matched_by_name_in_any_order_among_others(wire: Callable[..., Wire]) -> None:
    w = wire()
    order = [4, 8, 0, 3, 7, 1, 2, 6, 5]
    names = ["wheel", *(NAMES[k] for k in order), "lamp"]
    speeds = np.arange(9) / 10
    w.say(names, [9.0, *VALUES[order], -9.0], [5.0, *speeds[order], 5.0])
    reading = w.driver.reading()
    assert reading is not None
    assert np.array_equal(reading.position, VALUES[:7]) and np.array_equal(reading.velocity, speeds[:7])
    assert reading.gripper == pytest.approx(0.06)


def test_two_messages_make_one_state_as_old_as_its_older_half(wire: Callable[..., Wire]) -> None:
    w = wire()
    w.say(NAMES[:7], VALUES[:7])
    assert w.driver.reading() is None, "the fingers are unknown"
    w.say(NAMES[7:], VALUES[7:])
    first = w.driver.reading()
    assert first is not None and np.array_equal(first.position, VALUES[:7])
    w.say(NAMES[7:], VALUES[7:] + 0.005)
    second = w.driver.reading()
    assert second is not None and second.gripper == pytest.approx(0.07)
    assert second.received == first.received, "fresh fingers do not make the arm's half fresh"
    w.say(NAMES[:7], VALUES[:7])
    third = w.driver.reading()
    assert third is not None and third.received > first.received


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_position_that_is_not_finite_is_rejected(wire: Callable[..., Wire], bad: float) -> None:
    w = wire()
    w.say(NAMES, [bad, *VALUES[1:]])
    assert w.driver.reading() is None and w.driver.rejected == 1
    w.say(NAMES, VALUES)
    good = w.driver.reading()
    w.say(NAMES, [*VALUES[:8], bad])
    after = w.driver.reading()
    assert good is not None and after is not None and w.driver.rejected == 2
    assert after.received == good.received and np.array_equal(after.position, good.position)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e39])
def test_a_pose_that_is_not_finite_is_rejected_and_ages(wire: Callable[..., Wire], bad: float) -> None:
    w = wire(objects=("cube",))
    w.say_pose((0.5, bad, 0.0), (1.0, 0.0, 0.0, 0.0))
    assert w.driver.object_poses() == ({}, -np.inf) and any("pose on" in what for what in w.driver._missing())
    w.say_pose((0.5, 0.1, 0.0), (1.0, 0.0, 0.0, 0.0))
    poses, received = w.driver.object_poses()
    w.say_pose((0.6, 0.1, 0.0), (1.0, bad, 0.0, 0.0))
    after, still = w.driver.object_poses()
    assert torch.equal(after["cube"], poses["cube"]) and still == received, "the last good one, as old as it is"
    assert w.driver.rejected_poses == 2 and w.driver.accepted == {"cube": 1}


def test_more_names_than_positions_is_rejected(wire: Callable[..., Wire]) -> None:
    w = wire()
    w.say(NAMES, VALUES[:8])
    assert w.driver.reading() is None and w.driver.rejected == 1


def test_a_foreign_joints_value_spoils_nothing(wire: Callable[..., Wire]) -> None:
    w = wire()
    w.say([*NAMES, "lamp"], [*VALUES, float("nan")])
    assert w.driver.reading() is not None and w.driver.rejected == 0


# ---- velocities --------------------------------------------------------------------------------------------------
class Said:
    """A driver that is told joint states at times of the test's; `speed` is that of its first joint."""

    def __init__(self, nodes: Callable[[str], Node]):
        self.driver = ArmDriver(nodes("policy"), PANDA, dry_run=True)

    def say(self, angle: float, stamp: float, received: float, velocity: Any = ()) -> float | None:
        sec, rest = divmod(round(1e9 * stamp), 10**9)
        position = np.array([PANDA.home[0] + angle, *VALUES[1:]])
        msg = make(
            "sensor_msgs/msg/JointState", header={"stamp": {"sec": sec, "nanosec": rest}},
            name=NAMES, position=position, velocity=velocity,
        )  # fmt: skip
        raw = bytes(encode(msg, "sensor_msgs/msg/JointState"))
        self.driver._on_joints(Stamped(raw, "sensor_msgs/msg/JointState", received, 0, 1))
        reading = self.driver.reading()
        if reading is None or reading.received != received:
            return None
        assert reading.position[0] == position[0] and np.isfinite(reading.velocity).all()
        return float(reading.velocity[0])


@pytest.fixture
def said(nodes: Callable[[str], Node]) -> Said:
    return Said(nodes)


@pytest.mark.parametrize("start", [0.0, 1.7e9], ids=["without stamps", "with stamps"])
@pytest.mark.parametrize("velocity", [(), [np.nan] * 9], ids=["empty", "nan"])
def test_velocity_that_is_not_reported_is_that_of_the_positions(said: Said, start: float, velocity: Any) -> None:
    def at(k: int) -> float | None:
        return said.say(0.005 * 0.5 * k, start and start + 0.005 * k, 100 + 0.005 * k, velocity)

    assert at(0) is None, "unknown is not zero"
    assert [at(k) for k in (1, 2, 3)] == pytest.approx([0.5] * 3, rel=1e-4)
    assert said.say(0.0075, start and start + 0.02, 100.02, velocity) == pytest.approx(0.0, abs=1e-6)


def test_stamps_count_more_than_the_time_of_arrival(said: Said) -> None:
    for k, late in enumerate((0.0, 0.004, 0.0, 0.003)):
        speed = said.say(0.0025 * k, 1.7e9 + 0.005 * k, 100 + 0.005 * k + late)
    assert speed == pytest.approx(0.5, rel=1e-4)


def test_a_velocity_that_is_reported_is_taken_and_a_nan_among_them_is_not_the_old_one(said: Said) -> None:
    assert said.say(0.0, 1.7e9, 100.0, [0.5] * 9) == 0.5
    assert said.say(0.0, 1.7e9 + 0.005, 100.005, [np.nan, *[0.0] * 8]) == 0.0
    assert said.driver.reading().velocity.tolist() == [0.0] * 7  # type: ignore[union-attr]


@pytest.mark.parametrize("jump", [-5.0, 5.0])
def test_a_clock_that_jumps_leaves_the_velocity_unknown_once(said: Said, jump: float) -> None:
    said.say(0.0, 1.7e9, 100.0)
    assert said.say(0.0025, 1.7e9 + 0.005, 100.005) == pytest.approx(0.5, rel=1e-4)
    assert said.say(0.005, 1.7e9 + 0.01 + jump, 100.01) is None
    assert said.say(0.0075, 1.7e9 + 0.015 + jump, 100.015) == pytest.approx(0.5, rel=1e-4)


def test_a_repeated_stamp_is_silence(said: Said) -> None:
    """A driver that hangs may repeat its last state; a stamp of 0 is none."""
    said.say(0.0, 1.7e9, 100.0, [0.0] * 9)
    assert said.say(0.0, 1.7e9, 100.005, [0.0] * 9) is None and said.driver.repeated == 1
    assert said.say(0.0, 1.7e9 + 0.001, 100.01, [0.0] * 9) == 0.0
    assert said.say(0.0, 1.7e9 + 0.001, 100.015, [0.0] * 9) is None, "sooner than velocities are compared"
    assert said.say(0.0, 0.0, 100.02, [0.0] * 9) == said.say(0.0, 0.0, 100.025, [0.0] * 9) == 0.0


def test_states_at_almost_the_same_time_give_no_wild_velocity(said: Said) -> None:
    speeds = [said.say(0.0025 * k, 0.0, 100 + 0.005 * k + (0.0049 if k % 2 else 0.0)) for k in range(9)]
    assert all(speed is not None and abs(speed) < 2.0 for speed in speeds[1:])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(), st.integers(0, 2**31 - 1), st.lists(st.floats(), max_size=10)), max_size=6))
def test_any_joint_state_leaves_a_finite_reading_or_none(
    nodes_of_all: Node, states: list[tuple[float, int, list[float]]]
) -> None:
    driver = ArmDriver(nodes_of_all, PANDA, dry_run=True)
    kind = "sensor_msgs/msg/JointState"
    for k, (angle, nanosec, velocity) in enumerate(states):
        header = {"stamp": {"sec": k, "nanosec": nanosec % 10**9}}
        msg = make(kind, header=header, name=NAMES, position=[angle, *VALUES[1:]], velocity=velocity)
        driver._on_joints(Stamped(bytes(encode(msg, kind)), kind, 100.0 + k, 0, k + 1))
        reading = driver.reading()
        assert reading is None or np.isfinite([*reading.position, *reading.velocity, reading.gripper]).all()


# ---- names and frames --------------------------------------------------------------------------------------------
FR3 = ["--ros-args", "-p", "joint_prefix:=fr3_"]


def test_a_prefix_and_other_names_are_those_of_the_driver(nodes: Callable[..., Node]) -> None:
    renamed = tuple((name, f"j{k}") for k, name in enumerate(PANDA.joint_names))
    for robot, prefix, own in (
        (PANDA, "fr3_", [f"fr3_{name}" for name in NAMES]),
        (replace(PANDA, ros=replace(PANDA.ros, joint_names=renamed)), "", [*(f"j{k}" for k in range(7)), *NAMES[7:]]),
    ):
        driver = ArmDriver(nodes("policy", ros_args=["--ros-args", "-p", f"joint_prefix:={prefix}"]), robot)
        raw = encode(make(STATE, name=own, position=VALUES, velocity=0 * VALUES), STATE)
        driver._on_joints(Stamped(bytes(raw), STATE, 100.0, 0, 1))
        reading = driver.reading()
        assert reading is not None and np.array_equal(reading.position, VALUES[:7])
        assert reading.gripper == pytest.approx(0.06)


@pytest.mark.parametrize("names", [(("joint9", "j9"),), (("joint1", "joint2"),)], ids=["unknown", "twice"])
def test_names_that_fit_no_joint_are_refused(names: Any) -> None:
    with pytest.raises(ValueError, match="joint"):
        replace(PANDA, ros=replace(PANDA.ros, joint_names=names))


def test_a_prefix_that_is_no_text_is_refused(nodes: Callable[..., Node]) -> None:
    with pytest.raises(UserError, match="joint_prefix is 7"):
        ArmDriver(nodes("policy", ros_args=["--ros-args", "-p", "joint_prefix:=7"]), PANDA)


@pytest.mark.parametrize("prefix", ["fer_", "gen3/"])
def test_a_driver_with_a_prefix_is_recognized(wire: Callable[..., Wire], prefix: str) -> None:
    w = wire()
    w.say([prefix + name for name in NAMES[:7]], VALUES[:7])
    with pytest.raises(NotReady, match=f"joint_prefix:={prefix}[ )]"):
        w.driver.wait_ready(0.05)


def test_a_driver_with_other_names_is_told_where_to_put_them(wire: Callable[..., Wire]) -> None:
    w = wire()
    w.say(["shoulder", "elbow"], [0.0, 0.0])
    with pytest.raises(NotReady, match=r"shoulder, elbow; .*ros\.joint_names"):
        w.driver.wait_ready(0.05)
    w.say(NAMES[7:], VALUES[7:])
    with pytest.raises(NotReady) as refused:
        w.driver.wait_ready(0.05)
    assert "joint_names" not in str(refused.value), "its names are right"


@pytest.mark.parametrize(
    ("frame", "accepted"),
    [("", True), ("base", True), ("/link0", True), ("camera_color_optical_frame", False), ("world", False)],
)
def test_a_pose_counts_in_the_base_frame(wire: Callable[..., Wire], frame: str, accepted: bool) -> None:
    w = wire(objects=("cube",))
    w.say(NAMES, VALUES)
    w.say_pose((0.5, 0.1, 0.0), (1.0, 0.0, 0.0, 0.0), frame)
    assert w.driver.accepted["cube"] == accepted and w.driver.rejected_poses == (not accepted)
    if not accepted:
        with pytest.raises(NotReady, match=f"(?s)pose on /objects/cube/pose.*{frame!r}.*'base'.*transform"):
            w.driver.wait_ready(0.05)


def test_a_pose_with_the_stamp_of_the_one_before_ages(wire: Callable[..., Wire]) -> None:
    """A tracker that lost its object may repeat the last pose; a stamp of 0 is none."""
    w = wire(objects=("cube",))
    w.say_pose((0.5, 0.1, 0.0), (1.0, 0.0, 0.0, 0.0), stamp=7)
    _, received = w.driver.object_poses()
    w.say_pose((0.5, 0.1, 0.0), (1.0, 0.0, 0.0, 0.0), stamp=7)
    assert w.driver.object_poses()[1] == received and w.driver.repeated == 1
    for stamp in (8, 0, 0):
        w.say_pose((0.5, 0.1, 0.0), (1.0, 0.0, 0.0, 0.0), stamp=stamp)
    assert w.driver.object_poses()[1] > received and w.driver.accepted["cube"] == 4


def test_a_frame_that_changes_is_warned_of_once(wire: Callable[..., Wire], caplog: pytest.LogCaptureFixture) -> None:
    w = wire(objects=("cube",))
    for frame in ("base", "world", "world"):
        w.say_pose((0.5, 0.1, 0.0), (1.0, 0.0, 0.0, 0.0), frame)
    assert w.driver.accepted["cube"] == 1
    assert len([r for r in caplog.records if "'world'" in r.getMessage()]) == 1


def test_the_frame_of_another_robot_has_its_prefix(nodes: Callable[..., Node]) -> None:
    assert frames(nodes("policy", ros_args=FR3), PANDA)[:2] == ("fr3_base", "fr3_link0")
    assert "base" not in frames(nodes("other"), UR5E), "it is turned by half a turn there"


@pytest.mark.parametrize(("norm", "accepted"), [(0.0, False), (0.5, False), (1.05, True), (3.0, False)])
def test_an_orientation_is_made_a_unit_or_refused(wire: Callable[..., Wire], norm: float, accepted: bool) -> None:
    w = wire(objects=("cube",))
    w.say_pose((0.5, 0.1, 0.0), (0.6 * norm, 0.0, 0.0, 0.8 * norm))
    assert w.driver.accepted["cube"] == accepted
    if accepted:
        assert w.driver.object_poses()[0]["cube"][0, 3:].tolist() == pytest.approx([0.6, 0.0, 0.0, 0.8])


def test_a_peer_that_joins_later_with_another_type_is_named_once(
    wire: Callable[..., Wire], nodes: Callable[..., Node], eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    w = wire(objects=("cube",))
    w.driver.warn_of_mismatches()
    nodes("tracker").publisher("geometry_msgs/msg/PoseWithCovarianceStamped", "objects/cube/pose")
    eventually(lambda: w.driver.node.incompatible())
    for _ in range(2):
        w.driver.warn_of_mismatches()
    assert len([r for r in caplog.records if "PoseWithCovarianceStamped" in r.getMessage()]) == 1


# ---- before a complete state -------------------------------------------------------------------------------------
def test_nothing_is_sent_before_a_complete_state_was_seen(wire: Callable[..., Wire]) -> None:
    w = wire(objects=("cube",))
    pipeline = Pipeline(tasks.get("panda-lift").interface)
    loop = CommandLoop(w.driver, pipeline)
    w.say(NAMES[:7], VALUES[:7])
    with pytest.raises(
        NotReady,
        match=r"finger_joint1, finger_joint2 on /joint_states \(heard of joint1, .*joint7\) and no pose on /objects",
    ):
        w.driver.wait_ready(0.2)
    w.say(NAMES[7:], VALUES[7:])
    with pytest.raises(NotReady, match=r"no pose on /objects/cube/pose within 0.2 s.*robot-rl twin panda"):
        w.driver.wait_ready(0.2)
    assert not loop.is_alive() and not w.commands
    w.say_pose((0.5, 0.0, 0.02), (1.0, 0.0, 0.0, 0.0))
    loop.arm()
    w.eventually(lambda: len(w.commands) > 5)
    loop.close()
    assert np.allclose(w.commands[0], PANDA.home, atol=1e-6), "seeded with what was measured"


def test_a_second_writer_is_refused_by_name(wire: Callable[..., Wire], nodes: Callable[[str], Node]) -> None:
    w = wire()
    w.say(NAMES, VALUES)
    w.driver.wait_ready(5)
    other = nodes("somebody_else")
    rival = other.publisher("std_msgs/msg/Float64MultiArray", PANDA.ros.command, profiles.COMMAND)
    w.eventually(w.driver.command.other_writers)
    with pytest.raises(NotReady, match=r"/somebody_else already sends commands on /forward_position.*stop it first"):
        w.driver.wait_ready(5)
    loop = CommandLoop(w.driver, Pipeline(tasks.get("panda-lift").interface))
    with pytest.raises(NotReady, match="/somebody_else"):
        loop.arm()
    assert not loop.is_alive() and not w.commands
    rival.close()
    w.eventually(lambda: not w.driver.command.other_writers())
    w.driver.wait_ready(5)


def test_peers_that_cannot_talk_are_named(nodes: Callable[[str], Node]) -> None:
    robot, policy = nodes("robot"), nodes("policy")
    # A robot that offers less than the driver asks for: best effort cannot serve a reliable command topic.
    stubborn = QoS(depth=1, reliable=True, transient_local=True)
    robot.subscribe("std_msgs/msg/Float64MultiArray", PANDA.ros.command, stubborn)
    driver = ArmDriver(policy, PANDA)
    assert policy.wait_for(lambda: bool(policy.incompatible()), 30)
    with pytest.raises(NotReady, match="forward_position_controller/commands"):
        driver.wait_ready(0.1)


# ---- commands ----------------------------------------------------------------------------------------------------
def test_commands_arrive_as_they_were_sent(wire: Callable[..., Wire]) -> None:
    w = wire()
    assert w.robot.wait_for(lambda: w.driver.command.matched == 1 == w.driver.gripper.matched, 30)
    w.driver.send(VALUES[:7], 0.04)
    w.eventually(lambda: w.commands and w.hand.latest)
    assert np.array_equal(w.commands[0], VALUES[:7])
    assert w.hand.latest is not None and w.hand.latest.msg.data.tolist() == [0.04]


def test_a_dry_run_has_no_way_to_send(wire: Callable[..., Wire]) -> None:
    w = wire(dry_run=True)
    w.say(NAMES, VALUES)
    w.driver.wait_ready(5)
    w.driver.send(VALUES[:7], 0.04)
    assert w.arm.matched == w.hand.matched == 0


# ---- the state views ---------------------------------------------------------------------------------------------
def test_the_views_are_complete_or_none(wire: Callable[..., Wire]) -> None:
    w = wire(objects=("cube",))
    action = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    w.say(NAMES, VALUES)
    assert w.driver.state(action) is None, "where is the cube?"
    quat = tuple(np.array([0.5, -0.1, 0.7, 0.3]) / np.linalg.norm([0.5, -0.1, 0.7, 0.3]))
    w.say_pose((0.4, -0.1, 0.02), quat)
    state = w.driver.state(action)
    assert state is not None and all(view.isfinite().all() for view in state.views.values())
    assert torch.allclose(state.objects["cube"], torch.tensor([[0.4, -0.1, 0.02, *quat]], dtype=torch.float32))
    assert torch.equal(state.last_action, action) and state.gripper_width.item() == pytest.approx(0.06)
    assert state.tool_position[0].tolist() == pytest.approx([0.45, 0.0, 0.25], abs=0.01), "see PANDA.home"


def test_a_camera_that_sends_nothing_is_named(wire: Callable[..., Wire]) -> None:
    w = wire(cameras=("front", "wrist"))
    w.say(NAMES, VALUES)
    picture = make("sensor_msgs/msg/Image", height=1, width=1, encoding="rgb8", step=3, data=np.zeros(3, np.uint8))

    def show(camera: str) -> None:
        publisher = w.robot.publisher("sensor_msgs/msg/Image", f"{camera}/image_raw", profiles.SENSOR)
        assert w.robot.wait_for(lambda: publisher.matched == 1, 30)
        publisher.publish(picture)
        w.eventually(lambda: w.driver.image(camera) is not None)

    show("wrist")
    with pytest.raises(
        NotReady, match=r"^no picture on /front/image_raw within 0.1 s; start the camera, or.*--no-camera"
    ):
        w.driver.wait_ready(0.1)
    show("front")
    w.driver.wait_ready(0.1)


@pytest.mark.parametrize("encoding", ["rgb8", "bgr8"])
def test_pictures_with_padded_rows(wire: Callable[..., Wire], encoding: str) -> None:
    w = wire(cameras=("front",))
    assert w.driver.image("front") is None
    picture = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    rows = np.pad(picture.reshape(2, 9), ((0, 0), (0, 3)), constant_values=255)
    publisher = w.robot.publisher("sensor_msgs/msg/Image", "front/image_raw", profiles.SENSOR)
    assert w.robot.wait_for(lambda: publisher.matched == 1, 30)
    publisher.publish(make("sensor_msgs/msg/Image", height=2, width=3, encoding=encoding, step=12, data=rows.ravel()))
    got = w.eventually(lambda: w.driver.image("front") is not None) and w.driver.image("front")
    assert np.array_equal(got, picture if encoding == "rgb8" else picture[..., ::-1])
    publisher.publish(
        make("sensor_msgs/msg/Image", height=2, width=3, encoding="mono8", step=3, data=rows[:, :3].ravel())
    )
    w.eventually(lambda: w.driver.images["front"].latest.msg.encoding == "mono8")
    with pytest.raises(UserError, match="'front' sends 'mono8'; rgb8 or bgr8"):
        w.driver.image("front")


# ---- one robot ---------------------------------------------------------------------------------------------------
def test_two_robots_on_one_domain_are_refused(
    wire: Callable[..., Wire], nodes: Callable[[str], Node], eventually: Eventually
) -> None:
    """Their states would take turns, and one command would drive both."""
    w = wire()
    second = nodes("second").publisher("sensor_msgs/msg/JointState", PANDA.ros.joint_states, profiles.SENSOR)
    eventually(lambda: w.driver.joints.matched == 2)
    w.say(NAMES, VALUES)
    w.say(NAMES, VALUES)
    with pytest.raises(NotReady, match=r"/robot and /second send on /joint_states: two robots .* ROS_DOMAIN_ID"):
        w.driver.wait_ready(0.3)
    second.close()
    w.driver.wait_ready(30)


def test_two_publishers_that_share_the_joints_are_one_robot(
    wire: Callable[..., Wire], nodes: Callable[[str], Node], eventually: Eventually
) -> None:
    w = wire()
    nodes("hand").publisher("sensor_msgs/msg/JointState", PANDA.ros.joint_states, profiles.SENSOR)
    eventually(lambda: w.driver.joints.matched == 2)
    w.say(NAMES[:7], VALUES[:7])
    w.say(NAMES[7:], VALUES[7:])
    w.driver.wait_ready(0.3)


def test_two_trackers_of_one_object_are_refused(wire: Callable[..., Wire], eventually: Eventually) -> None:
    w = wire(objects=("cube",))
    for _ in range(2):
        w.robot.publisher("geometry_msgs/msg/PoseStamped", "objects/cube/pose", profiles.SENSOR)
    eventually(lambda: w.driver.poses["cube"].matched == 2)
    w.say(NAMES, VALUES)
    w.say_pose((0.5, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0))
    with pytest.raises(NotReady, match="send on /objects/cube/pose"):
        w.driver.wait_ready(0.3)


def test_a_second_robot_that_comes_later_is_refused_at_the_next_episode(
    wire: Callable[..., Wire], nodes: Callable[[str], Node], eventually: Eventually
) -> None:
    w = wire()
    w.say(NAMES, VALUES)
    w.driver.wait_ready(30)
    nodes("second").publisher("sensor_msgs/msg/JointState", PANDA.ros.joint_states, profiles.SENSOR)
    eventually(lambda: len(w.driver.joints.writers()) == 2)
    with pytest.raises(NotReady, match="/robot and /second"):
        w.driver.check_single_publisher()


def test_what_arrives_while_the_driver_begins_is_taken_in(
    nodes: Callable[[str], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread calls back as soon as there is a subscription; here its first message is there at once."""
    node = nodes("policy")
    subscribe = node.subscribe

    def eager(type_name: str, topic: str, profile: QoS, callback: Any = None) -> Any:
        if callback is not None:
            raw = bytes(encode(make(type_name), type_name))
            callback(Stamped(raw, type_name, time.monotonic(), 0, 1))
        return subscribe(type_name, topic, profile, callback)

    monkeypatch.setattr(node, "subscribe", eager)
    driver = ArmDriver(node, PANDA, ("cube",))
    assert driver.accepted == {"cube": 1} and driver.object_poses()[0]["cube"].shape == (1, 7)
