"""Logs in rosbag2 folders: MCAP and SQLite, prefixed and unordered joints, and what is refused."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from robot_rl.identification.log import read_log
from robot_rl.robots import robots
from robot_rl.util.errors import ConfigError, UserError

PANDA = robots.get("panda")
STORE = get_typestore(Stores.ROS2_JAZZY)
ARRAY, STATE = "std_msgs/msg/Float64MultiArray", "sensor_msgs/msg/JointState"
PATH = "trajectory_msgs/msg/JointTrajectory"
TIME = np.arange(0, 20, 0.004)
PLACE = np.stack([q + 0.1 * np.sin(TIME + k) for k, q in enumerate(PANDA.home)], 1)
GOAL = PLACE + 0.01
JOINTS = list(PANDA.joint_names)


def header() -> Any:
    time = STORE.types["builtin_interfaces/msg/Time"](sec=0, nanosec=0)
    return STORE.types["std_msgs/msg/Header"](stamp=time, frame_id="")


def array(values: np.ndarray) -> Any:
    layout = STORE.types["std_msgs/msg/MultiArrayLayout"](dim=[], data_offset=0)
    return STORE.types[ARRAY](layout=layout, data=values)


def state(values: np.ndarray, names: list[str] = JOINTS) -> Any:
    none = np.array([])
    return STORE.types[STATE](header=header(), name=names, position=values, velocity=none, effort=none)


def trajectory(values: np.ndarray, points: int = 1) -> Any:
    none, start = np.array([]), STORE.types["builtin_interfaces/msg/Duration"](sec=0, nanosec=0)
    point = STORE.types["trajectory_msgs/msg/JointTrajectoryPoint"](
        positions=values, velocities=none, accelerations=none, effort=none, time_from_start=start
    )
    return STORE.types[PATH](header=header(), joint_names=JOINTS, points=[point] * points)


def write(folder: Path, rows: dict[str, Iterable[tuple[float, Any]]], plugin: Any = StoragePlugin.MCAP) -> Path:
    with Writer(folder, version=9, storage_plugin=plugin) as bag:
        for topic, messages in rows.items():
            wire = None
            for time, message in messages:
                wire = wire or bag.add_connection(topic, message.__msgtype__, typestore=STORE)
                raw = STORE.serialize_cdr(message, message.__msgtype__)
                bag.write(wire, round(1e9 * (1000 + time)), raw)
    return folder


def states(time: np.ndarray = TIME) -> Iterable[tuple[float, Any]]:
    return ((t, state(q)) for t, q in zip(time, PLACE, strict=True))


def sent(make: Any = array, time: np.ndarray = TIME) -> Iterable[tuple[float, Any]]:
    return ((t, make(q)) for t, q in zip(time, GOAL, strict=True))


@pytest.mark.parametrize("plugin", [StoragePlugin.MCAP, StoragePlugin.SQLITE3])
@pytest.mark.parametrize("command", [array, trajectory, state])
def test_positions_and_commands_come_back(tmp_path: Path, plugin: Any, command: Any) -> None:
    """Of joints with a prefix, in another order, beside a gripper's; commands come 1 ms after the states."""
    names = ["robot/finger", *(f"robot/{joint}" for joint in reversed(JOINTS))]
    seen = ((t, state(np.array([0.04, *q[::-1]]), names)) for t, q in zip(TIME, PLACE, strict=True))
    bag = write(tmp_path / "bag", {"/joint_states": seen, "/commands": sent(command, TIME + 0.001)}, plugin)
    log = read_log(bag, "panda", "/joint_states")
    (piece,) = log.pieces
    assert log.seconds == pytest.approx(TIME[-1] - 0.001, abs=2 / PANDA.command_rate)
    exact = np.stack([np.interp(piece.time + 0.001, TIME, joint) for joint in PLACE.T], 1)
    assert np.abs(piece.position - exact)[:-2].max() < 1e-6, "but for the end, where no later state is"
    late = np.abs(piece.setpoint - 0.01 - exact).max()
    assert late < 0.1 * 1.1 / PANDA.command_rate, "a command holds until the next"


def test_positions_are_unknown_in_gaps_and_driver_names_fit(tmp_path: Path) -> None:
    gone = (TIME < 5) | (TIME > 7)
    seen = ((t, state(q)) for t, q in zip(TIME[gone], PLACE[gone], strict=True))
    log = read_log(write(tmp_path / "gap", {"/a": seen, "/b": sent()}), "panda")
    (piece,) = log.pieces
    inside = (piece.time > 5.1) & (piece.time < 6.9)
    assert not piece.known[inside].any() and piece.known[(piece.time > 1) & (piece.time < 4.8)].all()
    ours = robots.get("ur5e")
    mapped = replace(ours, driver=replace(ours.driver, joint_names=(("elbow_joint", "their_elbow"),)))
    assert "their_elbow" in mapped.driver_names()


@pytest.mark.parametrize(("rows", "message"), [
    ({"/a": states(), "/b": ((t, array(np.zeros(7))) for t in TIME)}, "commands are far from where the joints are"),
    ({"/a": ((t, state(np.degrees(q))) for t, q in zip(TIME, PLACE, strict=True)), "/b": sent()}, "must be in rad"),
    ({"/a": ((t, state(q * np.nan)) for t, q in zip(TIME, PLACE, strict=True)), "/b": sent()}, "/a .* is not finite"),
    ({"/a": ((t, state(q)) for t, q in zip(TIME[::50], PLACE[::50], strict=True)), "/b": sent()}, "at 5 Hz; 20 Hz"),
    ({"/a": ((0.0, state(PLACE[0])),), "/b": sent()}, "1 joint states at 0 Hz"),
])  # fmt: skip
def test_bags_whose_numbers_cannot_be_right_are_refused(tmp_path: Path, rows: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_log(write(tmp_path / "bag", rows), "panda")


def test_a_damaged_bag_is_refused_with_a_remedy(tmp_path: Path) -> None:
    bag = write(tmp_path / "bag", {"/a": states(), "/b": sent()})
    file = next(bag.glob("*.mcap"))
    whole = file.read_bytes()
    middle = len(whole) // 2
    for broken in (whole[:middle], whole[:middle] + bytes(range(200)) * 2 + whole[middle + 400 :], b""):
        file.write_bytes(broken)
        with pytest.raises((UserError, ConfigError)):
            read_log(bag, "panda")
    with pytest.raises(UserError, match="mcap recover"):
        read_log(bag, "panda")


def test_a_bag_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    two = write(tmp_path / "two", {"/a": states(), "/b": states(), "/c": sent()})
    with pytest.raises(ConfigError, match="2 topics that may be the states .*: /a, /b; name one with --states"):
        read_log(two, "panda")
    assert read_log(two, "panda", "/a", "/c").seconds > 19
    with pytest.raises(ConfigError, match="no states of the joints on /c; topics that fit: /b"):
        read_log(two, "panda", "/c", "/a")
    with pytest.raises(ConfigError, match="0 topics that may be the commands of the joints: none$"):
        read_log(write(tmp_path / "mute", {"/a": states()}), "panda")
    planned = {"/a": states(), "/b": sent(lambda q: trajectory(q, 2))}
    with pytest.raises(ConfigError, match="0 topics that may be the commands"):
        read_log(write(tmp_path / "planned", planned), "panda")
    other = write(tmp_path / "other", {"/a": states(), "/b": sent()})
    with pytest.raises(ConfigError, match="no states of the joints shoulder_pan_joint.*its joints are joint1"):
        read_log(other, "ur5e")
    with pytest.raises(ConfigError, match="are both /a"):
        read_log(other, "panda", "/a", "/a")
    with pytest.raises(ConfigError, match="name it with --robot"):
        read_log(other)
    apart = write(tmp_path / "apart", {"/a": states(), "/b": sent(time=TIME + 30)})
    with pytest.raises(ConfigError, match="both are needed at the same time"):
        read_log(apart, "panda")
    alone = next(other.glob("*.mcap"))
    assert read_log(alone, "panda").seconds > 19, "without its folder's metadata"
    alone.write_bytes(b"broken")
    with pytest.raises(UserError, match="cannot be read as a rosbag2 folder"):
        read_log(other, "panda")
