"""The arm's driver: joints by name, velocities, frames, readiness and other publishers."""

import threading
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
from real.drivers import open_driver
from real.drivers.driver import Driver
from real.drivers.names import frames
from real.drivers.state import NotReady
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


@pytest.fixture(scope="module")
def nodes_of_all(private_domain: int) -> Iterator[Node]:
    with open_node("policy", "/all") as node:
        yield node


class Wire:
    """A driver, and a robot that publishes messages of the test."""

    def __init__(self, nodes: Callable[[str], Node], eventually: Eventually, **options: Any):
        self.eventually = eventually
        self.robot = nodes("robot")
        self.driver = open_driver(nodes("policy"), PANDA, **options)
        self.states = self.robot.publisher(STATE, PANDA.driver.joint_states, profiles.SENSOR)
        self.commands: list[np.ndarray] = []
        array = "std_msgs/msg/Float64MultiArray"
        heard = lambda sample: self.commands.append(sample.msg.data)  # noqa: E731
        self.arm = self.robot.subscribe(array, PANDA.driver.command, profiles.COMMAND, heard)
        self.hand = self.robot.subscribe(array, PANDA.driver.gripper_command, profiles.COMMAND)
        assert self.robot.wait_for(lambda: self.states.matched == 1, 30)

    def say(self, names: list[str], position: Any, velocity: Any = None) -> None:
        """Publish a joint state, at rest by default, and wait for the driver's callback."""
        driver, before = self.driver, self.driver.state.joints.latest
        velocity = np.zeros(len(names)) if velocity is None else velocity
        handled, on_joints = threading.Event(), driver.state.joints._callback

        def observed(sample: Stamped) -> None:
            on_joints(sample)
            handled.set()

        driver.state.joints._callback = observed
        self.states.publish(make(STATE, name=names, position=np.asarray(position, float), velocity=velocity))
        assert handled.wait(30) and driver.state.joints.latest is not before
        driver.state.joints._callback = on_joints

    def say_pose(self, position: tuple[float, ...], quat: tuple[float, ...], frame: str = "", stamp: int = 0) -> None:
        pub = self.robot.publisher("geometry_msgs/msg/PoseStamped", "objects/cube/pose", profiles.SENSOR)
        assert self.robot.wait_for(lambda: pub.matched == 1, 30)
        w, x, y, z = quat
        where = dict(zip("xyz", position, strict=True))
        pose = {"position": where, "orientation": {"w": w, "x": x, "y": y, "z": z}}
        driver = self.driver

        def counted() -> int:
            return driver.scene.accepted["cube"] + driver.scene.rejected + driver.scene.repeated

        before, header = counted(), {"frame_id": frame, "stamp": {"sec": stamp}}
        pub.publish(make("geometry_msgs/msg/PoseStamped", header=header, pose=pose))
        self.eventually(lambda: counted() > before)
        pub.close()


@pytest.fixture
def wire(nodes: Callable[[str], Node], eventually: Eventually) -> Callable[..., Wire]:
    return lambda **options: Wire(nodes, eventually, **options)


@pytest.fixture
def w(wire: Callable[..., Wire]) -> Wire:
    return wire()


# ---- joint states ------------------------------------------------------------------------------------------------
def test_joints_are_matched_by_name(w: Wire) -> None:
    order, speeds = [4, 8, 0, 3, 7, 1, 2, 6, 5], np.arange(9) / 10
    names = ["wheel", *(NAMES[k] for k in order), "lamp"]
    w.say(names, [9.0, *VALUES[order], -9.0], [5.0, *speeds[order], 5.0])
    reading = w.driver.reading()
    assert np.array_equal(reading.position, VALUES[:7]) and np.array_equal(reading.velocity, speeds[:7])
    assert reading.gripper == pytest.approx(0.06)


def test_state_from_two_messages_is_as_old_as_the_older_one(w: Wire) -> None:
    w.say(NAMES[:7], VALUES[:7])
    assert w.driver.reading() is None, "the fingers are unknown"
    w.say(NAMES[7:], VALUES[7:])
    first = w.driver.reading()
    assert first is not None and np.array_equal(first.position, VALUES[:7])
    w.say(NAMES[7:], VALUES[7:] + 0.005)
    second = w.driver.reading()
    assert second is not None and second.gripper == pytest.approx(0.07)
    assert second.received == first.received, "new finger positions do not renew the arm's"
    w.say(NAMES[:7], VALUES[:7])
    third = w.driver.reading()
    assert third is not None and third.received > first.received


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nonfinite_position_is_rejected(w: Wire, bad: float) -> None:
    w.say(NAMES, [bad, *VALUES[1:]])
    assert w.driver.reading() is None and w.driver.state.rejected == 1
    w.say(NAMES, VALUES)
    good = w.driver.reading()
    w.say(NAMES, [*VALUES[:8], bad])
    after = w.driver.reading()
    assert good is not None and after is not None and w.driver.state.rejected == 2
    assert after.received == good.received and np.array_equal(after.position, good.position)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e39])
def test_nonfinite_pose_is_rejected_and_the_last_pose_ages(wire: Callable[..., Wire], bad: float) -> None:
    w = wire(objects=("cube",))
    w.say_pose((0.5, bad, 0.0), (1.0, 0.0, 0.0, 0.0))
    assert w.driver.scene.object_poses() == ({}, -np.inf)
    assert any("pose on" in what for what in w.driver.scene.missing())
    w.say_pose((0.5, 0.1, 0.0), (1.0, 0.0, 0.0, 0.0))
    poses, received = w.driver.scene.object_poses()
    w.say_pose((0.6, 0.1, 0.0), (1.0, bad, 0.0, 0.0))
    after, received_after = w.driver.scene.object_poses()
    assert torch.equal(after["cube"], poses["cube"]) and received_after == received
    assert w.driver.scene.rejected == 2 and w.driver.scene.accepted == {"cube": 1}


def test_missing_position_is_rejected_but_a_foreign_joints_nan_is_not(w: Wire) -> None:
    w.say(NAMES, VALUES[:8])
    assert w.driver.reading() is None and w.driver.state.rejected == 1
    w.say([*NAMES, "lamp"], [*VALUES, float("nan")])
    assert w.driver.reading() is not None and w.driver.state.rejected == 1


# ---- velocities --------------------------------------------------------------------------------------------------
def deliver(driver: Driver, received: float, **fields: Any) -> None:
    """Pass a joint state to the driver's callback."""
    driver.state._on_joints(Stamped(bytes(encode(make(STATE, **fields), STATE)), STATE, received, 0, 1))


class Timed:
    """A driver that receives joint states at times of the test's; `say` returns the velocity of its first joint."""

    def __init__(self, nodes: Callable[[str], Node]):
        self.driver, self.time = open_driver(nodes("policy"), PANDA, dry_run=True), 0.0
        """`time`: of the newest reading, s."""

    def say(self, angle: float, stamp: float, received: float, velocity: Any = ()) -> float | None:
        sec, rest = divmod(round(1e9 * stamp), 10**9)
        position, header = np.array([PANDA.home[0] + angle, *VALUES[1:]]), {"stamp": {"sec": sec, "nanosec": rest}}
        deliver(self.driver, received, header=header, name=NAMES, position=position, velocity=velocity)
        reading = self.driver.reading()
        if reading is None or reading.received == self.time:
            return None
        self.time = reading.received
        assert reading.position[0] == position[0] and np.isfinite(reading.velocity).all()
        return float(reading.velocity[0])


@pytest.fixture
def timed(nodes: Callable[[str], Node]) -> Timed:
    return Timed(nodes)


@pytest.mark.parametrize("start", [0.0, 1.7e9], ids=["without stamps", "with stamps"])
@pytest.mark.parametrize("velocity", [(), [np.nan] * 9], ids=["empty", "nan"])
def test_missing_velocity_is_estimated_from_positions(timed: Timed, start: float, velocity: Any) -> None:
    def at(k: int) -> float | None:
        return timed.say(0.005 * 0.5 * k, start and start + 0.005 * k, 100 + 0.005 * k, velocity)

    assert at(0) is None, "unknown"
    assert [at(k) for k in (1, 2, 3)] == pytest.approx([0.5] * 3, rel=1e-4)
    assert timed.say(0.0075, start and start + 0.02, 100.02, velocity) == pytest.approx(0.0, abs=1e-6)


def test_driver_that_repeats_its_stamp_hangs_whatever_else_its_messages_have(timed: Timed) -> None:
    for k in range(12):
        header = {"stamp": {"sec": 7, "nanosec": 0}, "frame_id": f"frame{k}"}
        deliver(timed.driver, 100 + 0.005 * k, header=header, name=NAMES, position=VALUES, velocity=[0.0] * 9)
    reading = timed.driver.reading()
    assert reading is not None and reading.received == 100 and timed.driver.state.repeated == 11


def test_velocity_is_estimated_by_stamps_not_arrivals(timed: Timed) -> None:
    for k, late in enumerate((0.0, 0.004, 0.0, 0.003)):
        speed = timed.say(0.0025 * k, 1.7e9 + 0.005 * k, 100 + 0.005 * k + late)
    assert speed == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("ahead", [-3.0, 0.0, 1.7e9], ids=["behind", "same", "other epoch"])
def test_delayed_state_is_old_whatever_the_drivers_clock(timed: Timed, ahead: float) -> None:
    def at(k: int, late: float = 0.0) -> float:
        timed.say(0.0, ahead + 100 + 0.005 * k, 100.001 + 0.005 * k + late, [0.0] * 9)
        return timed.time

    for k in range(3):
        assert at(k) == pytest.approx(100.001 + 0.005 * k)
    assert at(3, late=0.2) == pytest.approx(100.016), "measured then, not 0.2 s later"
    assert at(44) == pytest.approx(100.221), "in time again"
    for k in range(45, 4000, 5):  # 20 s in which the clock runs fast by 50 ppm
        drifted = at(k, late=-5e-5 * 0.005 * (k - 45))
    assert drifted == pytest.approx(100.001 + 0.005 * k, abs=0.0015)


def test_reported_velocity_is_used_and_nan_is_replaced(timed: Timed) -> None:
    assert timed.say(0.0, 1.7e9, 100.0, [0.5] * 9) == 0.5
    assert timed.say(0.0, 1.7e9 + 0.005, 100.005, [np.nan, *[0.0] * 8]) == 0.0
    assert timed.driver.reading().velocity.tolist() == [0.0] * 7  # type: ignore[union-attr]


@pytest.mark.parametrize("jump", [-5.0, 5.0])
def test_jump_of_the_drivers_clock_makes_one_velocity_unknown(timed: Timed, jump: float) -> None:
    timed.say(0.0, 1.7e9, 100.0)
    assert timed.say(0.0025, 1.7e9 + 0.005, 100.005) == pytest.approx(0.5, rel=1e-4)
    assert timed.say(0.005, 1.7e9 + 0.01 + jump, 100.01) is None
    assert timed.say(0.0075, 1.7e9 + 0.015 + jump, 100.015) == pytest.approx(0.5, rel=1e-4)


def test_repeated_stamp_counts_as_silence(timed: Timed) -> None:
    """A driver that hangs may repeat its last state; a stamp of 0 is not set."""
    timed.say(0.0, 1.7e9, 100.0, [0.0] * 9)
    assert timed.say(0.0, 1.7e9, 100.005, [0.0] * 9) is None and timed.driver.state.repeated == 1
    assert timed.say(0.0, 1.7e9 + 0.001, 100.01, [0.0] * 9) == 0.0
    assert timed.say(0.0, 1.7e9 + 0.001, 100.015, [0.0] * 9) is None
    assert timed.say(0.0, 0.0, 100.02, [0.0] * 9) == timed.say(0.0, 0.0, 100.025, [0.0] * 9) == 0.0


def test_states_in_quick_succession_give_a_bounded_velocity(timed: Timed) -> None:
    speeds = [timed.say(0.0025 * k, 0.0, 100 + 0.005 * k + (0.0049 if k % 2 else 0.0)) for k in range(9)]
    assert all(speed is not None and abs(speed) < 2.0 for speed in speeds[1:])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(), st.integers(0, 2**31 - 1), st.lists(st.floats(), max_size=10)), max_size=6))
def test_any_joint_state_leaves_a_finite_reading_or_none(nodes_of_all: Node, states: Any) -> None:
    driver = open_driver(nodes_of_all, PANDA, dry_run=True)
    for k, (angle, nanosec, velocity) in enumerate(states):
        header = {"stamp": {"sec": k, "nanosec": nanosec % 10**9}}
        deliver(driver, 100.0 + k, header=header, name=NAMES, position=[angle, *VALUES[1:]], velocity=velocity)
        reading = driver.reading()
        assert reading is None or np.isfinite([*reading.position, *reading.velocity, reading.gripper]).all()


# ---- names and frames --------------------------------------------------------------------------------------------
FR3 = ["--ros-args", "-p", "joint_prefix:=fr3_"]


def test_joint_prefix_and_joint_names_are_those_of_the_driver(nodes: Callable[..., Node]) -> None:
    renamed = tuple((name, f"j{k}") for k, name in enumerate(PANDA.joint_names))
    other = replace(PANDA, driver=replace(PANDA.driver, joint_names=renamed))
    for robot, prefix, own in (
        (PANDA, "fr3_", [f"fr3_{name}" for name in NAMES]),
        (other, "", [*(f"j{k}" for k in range(7)), *NAMES[7:]]),
    ):
        driver = open_driver(nodes("policy", ros_args=["--ros-args", "-p", f"joint_prefix:={prefix}"]), robot)
        deliver(driver, 100.0, name=own, position=VALUES, velocity=0 * VALUES)
        reading = driver.reading()
        assert reading is not None and np.array_equal(reading.position, VALUES[:7])
        assert reading.gripper == pytest.approx(0.06)


@pytest.mark.parametrize("names", [(("joint9", "j9"),), (("joint1", "joint2"),)], ids=["unknown", "twice"])
def test_joint_names_must_match_the_robot(names: Any) -> None:
    with pytest.raises(ValueError, match="joint"):
        replace(PANDA, driver=replace(PANDA.driver, joint_names=names))


def test_prefix_must_be_text(nodes: Callable[..., Node]) -> None:
    with pytest.raises(UserError, match="joint_prefix is 7"):
        open_driver(nodes("policy", ros_args=["--ros-args", "-p", "joint_prefix:=7"]), PANDA)


@pytest.mark.parametrize("prefix", ["fer_", "gen3/"])
def test_missing_prefix_is_suggested(w: Wire, prefix: str) -> None:
    w.say([prefix + name for name in NAMES[:7]], VALUES[:7])
    with pytest.raises(NotReady, match=f"joint_prefix:={prefix}[ )]"):
        w.driver.preflight.wait_ready(0.05)


def test_unknown_names_are_reported_with_the_spec_field(w: Wire) -> None:
    w.say(["shoulder", "elbow"], [0.0, 0.0])
    with pytest.raises(NotReady, match=r'shoulder, elbow; .*driver\.joint_names, pairs \(\("joint1", "NAME IN'):
        w.driver.preflight.wait_ready(0.05)
    w.say(NAMES[7:], VALUES[7:])
    with pytest.raises(NotReady) as refused:
        w.driver.preflight.wait_ready(0.05)
    assert "joint_names" not in str(refused.value), "its names are known"


@pytest.mark.parametrize(
    ("frame", "accepted"),
    [("", True), ("base", True), ("/link0", True), ("camera_color_optical_frame", False), ("world", False)],
)
def test_pose_must_be_in_the_base_frame(wire: Callable[..., Wire], frame: str, accepted: bool) -> None:
    w = wire(objects=("cube",))
    w.say(NAMES, VALUES)
    w.say_pose((0.5, 0.1, 0.0), (1.0, 0.0, 0.0, 0.0), frame)
    assert w.driver.scene.accepted["cube"] == accepted and w.driver.scene.rejected == (not accepted)
    if not accepted:
        with pytest.raises(NotReady, match=f"(?s)pose on /objects/cube/pose.*{frame!r}.*'base'.*transform"):
            w.driver.preflight.wait_ready(0.05)


def test_pose_with_a_repeated_stamp_ages(wire: Callable[..., Wire]) -> None:
    """A tracker that lost its object may repeat the last pose; a stamp of 0 is not set."""
    w = wire(objects=("cube",))
    w.say_pose((0.5, 0.1, 0.0), (1.0, 0.0, 0.0, 0.0), stamp=7)
    _, received = w.driver.scene.object_poses()
    w.say_pose((0.5, 0.1, 0.0), (1.0, 0.0, 0.0, 0.0), stamp=7)
    assert w.driver.scene.object_poses()[1] == received and w.driver.scene.repeated == 1
    for stamp in (8, 0, 0):
        w.say_pose((0.5, 0.1, 0.0), (1.0, 0.0, 0.0, 0.0), stamp=stamp)
    assert w.driver.scene.object_poses()[1] > received and w.driver.scene.accepted["cube"] == 4


def test_base_frame_has_the_robots_prefix(nodes: Callable[..., Node]) -> None:
    assert frames(nodes("policy", ros_args=FR3), PANDA)[:2] == ("fr3_base", "fr3_link0")
    assert "base" not in frames(nodes("other"), UR5E), "a UR's base is turned by half a turn"


@pytest.mark.parametrize(("norm", "accepted"), [(0.0, False), (0.5, False), (1.05, True), (3.0, False)])
def test_orientation_is_normalized_or_refused(wire: Callable[..., Wire], norm: float, accepted: bool) -> None:
    w = wire(objects=("cube",))
    w.say_pose((0.5, 0.1, 0.0), (0.6 * norm, 0.0, 0.0, 0.8 * norm))
    assert w.driver.scene.accepted["cube"] == accepted
    if accepted:
        assert w.driver.scene.object_poses()[0]["cube"][0, 3:].tolist() == pytest.approx([0.6, 0.0, 0.0, 0.8])


def test_later_peer_with_another_type_is_warned_of_once(wire: Any, nodes: Callable[..., Node], caplog: Any) -> None:
    w = wire(objects=("cube",))
    w.driver.preflight.warn_of_mismatches()
    nodes("tracker").publisher("geometry_msgs/msg/PoseWithCovarianceStamped", "objects/cube/pose")
    w.eventually(lambda: w.driver.node.incompatible())
    for _ in range(2):
        w.driver.preflight.warn_of_mismatches()
    assert len([r for r in caplog.records if "PoseWithCovarianceStamped" in r.getMessage()]) == 1


# ---- before a complete state -------------------------------------------------------------------------------------
def test_nothing_is_sent_before_the_first_complete_state(wire: Callable[..., Wire]) -> None:
    w = wire(objects=("cube",))
    pipeline = Pipeline(tasks.get("panda-lift").interface)
    loop = CommandLoop(w.driver, pipeline)
    with pytest.raises(NotReady, match="joint1.*robot-rl twin panda"):
        w.driver.preflight.wait_ready(0.1)
    w.say(NAMES[:7], VALUES[:7])
    with pytest.raises(NotReady, match=r"finger_joint1, finger_joint2 on /joint_states .* and no pose on /objects"):
        w.driver.preflight.wait_ready(0.2)
    w.say(NAMES[7:], VALUES[7:])
    with pytest.raises(NotReady, match=r"no pose on /objects/cube/pose within 0.2 s.*robot-rl twin panda"):
        w.driver.preflight.wait_ready(0.2)
    assert not loop.armed and not w.commands
    w.say_pose((0.5, 0.0, 0.02), (1.0, 0.0, 0.0, 0.0))
    loop.arm()
    w.eventually(lambda: len(w.commands) > 5)
    loop.close()
    assert np.allclose(w.commands[0], PANDA.home, atol=1e-6), "starts at the measured position"


def test_incompatible_peers_are_named(nodes: Callable[[str], Node]) -> None:
    robot, policy = nodes("robot"), nodes("policy")
    # A subscription that requires more than the driver offers: its commands are not transient local.
    stubborn = QoS(depth=1, reliable=True, transient_local=True)
    robot.subscribe("std_msgs/msg/Float64MultiArray", PANDA.driver.command, stubborn)
    driver = open_driver(policy, PANDA)
    assert policy.wait_for(lambda: bool(policy.incompatible()), 30)
    with pytest.raises(NotReady, match="forward_position_controller/commands"):
        driver.preflight.wait_ready(0.1)


# ---- the state views ---------------------------------------------------------------------------------------------
def test_state_views_are_complete_or_none(wire: Callable[..., Wire]) -> None:
    w = wire(objects=("cube",))
    action = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    w.say(NAMES, VALUES)
    assert w.driver.observe(action) is None, "no pose yet"
    quat = tuple(np.array([0.5, -0.1, 0.7, 0.3]) / np.linalg.norm([0.5, -0.1, 0.7, 0.3]))
    w.say_pose((0.4, -0.1, 0.02), quat)
    state = w.driver.observe(action)
    assert state is not None and all(view.isfinite().all() for view in state.views.values())
    assert torch.allclose(state.objects["cube"], torch.tensor([[0.4, -0.1, 0.02, *quat]], dtype=torch.float32))
    assert torch.equal(state.last_action, action) and state.gripper_width.item() == pytest.approx(0.06)
    assert state.tool_position[0].tolist() == pytest.approx([0.45, 0.0, 0.25], abs=0.01), "see PANDA.home"


def test_silent_camera_is_named(wire: Callable[..., Wire]) -> None:
    w = wire(cameras=("front", "wrist"))
    w.say(NAMES, VALUES)
    picture = make("sensor_msgs/msg/Image", height=1, width=1, encoding="rgb8", step=3, data=np.zeros(3, np.uint8))

    def show(camera: str) -> None:
        publisher = w.robot.publisher("sensor_msgs/msg/Image", f"{camera}/image_raw", profiles.SENSOR)
        assert w.robot.wait_for(lambda: publisher.matched == 1, 30)
        publisher.publish(picture)
        w.eventually(lambda: w.driver.scene.image(camera) is not None)

    show("wrist")
    with pytest.raises(NotReady, match=r"^no picture on /front/image_raw within 0.1 s; start the camera, or"):
        w.driver.preflight.wait_ready(0.1)
    show("front")
    w.driver.preflight.wait_ready(0.1)


@pytest.mark.parametrize("encoding", ["rgb8", "bgr8"])
def test_pictures_may_have_padded_rows_and_two_encodings(wire: Callable[..., Wire], encoding: str) -> None:
    w = wire(cameras=("front",))
    assert w.driver.scene.image("front") is None
    picture = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    rows = np.pad(picture.reshape(2, 9), ((0, 0), (0, 3)), constant_values=255)
    publisher = w.robot.publisher("sensor_msgs/msg/Image", "front/image_raw", profiles.SENSOR)
    assert w.robot.wait_for(lambda: publisher.matched == 1, 30)
    publisher.publish(make("sensor_msgs/msg/Image", height=2, width=3, encoding=encoding, step=12, data=rows.ravel()))
    got = w.eventually(lambda: w.driver.scene.image("front") is not None) and w.driver.scene.image("front")
    assert np.array_equal(got, picture if encoding == "rgb8" else picture[..., ::-1])
    grey = rows[:, :3].ravel()
    publisher.publish(make("sensor_msgs/msg/Image", height=2, width=3, encoding="mono8", step=3, data=grey))
    w.eventually(lambda: w.driver.scene.images["front"].latest.msg.encoding == "mono8")
    with pytest.raises(UserError, match="'front' sends 'mono8'; rgb8 or bgr8"):
        w.driver.scene.image("front")


# ---- one robot ---------------------------------------------------------------------------------------------------
def test_two_robots_on_one_domain_are_refused(w: Wire, nodes: Callable[[str], Node], eventually: Eventually) -> None:
    second = nodes("second").publisher(STATE, PANDA.driver.joint_states, profiles.SENSOR)
    eventually(lambda: w.driver.state.joints.matched == 2)
    w.say(NAMES, VALUES)
    w.say(NAMES, VALUES)
    with pytest.raises(NotReady, match=r"/robot and /second send on /joint_states: two robots .* ROS_DOMAIN_ID"):
        w.driver.preflight.wait_ready(0.3)
    second.close()
    w.driver.preflight.wait_ready(30)


def test_two_publishers_that_share_the_joints_are_one_robot(w: Wire, nodes: Any, eventually: Eventually) -> None:
    nodes("hand").publisher(STATE, PANDA.driver.joint_states, profiles.SENSOR)
    eventually(lambda: w.driver.state.joints.matched == 2)
    w.say(NAMES[:7], VALUES[:7])
    w.say(NAMES[7:], VALUES[7:])
    w.driver.preflight.wait_ready(0.3)


def test_message_during_the_constructor_is_processed(nodes: Callable[[str], Node], monkeypatch: Any) -> None:
    """Callbacks run in another thread as soon as a subscription exists."""
    node = nodes("policy")
    subscribe = node.subscribe

    def eager(type_name: str, topic: str, profile: QoS, callback: Any = None) -> Any:
        if callback is not None:
            raw = bytes(encode(make(type_name), type_name))
            callback(Stamped(raw, type_name, time.monotonic(), 0, 1))
        return subscribe(type_name, topic, profile, callback)

    monkeypatch.setattr(node, "subscribe", eager)
    driver = open_driver(node, PANDA, ("cube",))
    assert driver.scene.accepted == {"cube": 1} and driver.scene.object_poses()[0]["cube"].shape == (1, 7)
