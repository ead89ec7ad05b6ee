"""Choice between DDS and rclpy: by what is sourced, installed and asked for."""

import importlib.util
import sys
from pathlib import Path

import pytest

from real.backends import BACKEND, choose, rclpy_problem
from real.bus import open_node
from robot_rl.util.errors import UserError

ARM, GO2 = 200.0, 500.0
SOURCED = {"AMENT_PREFIX_PATH": "/opt/ros/jazzy", "ROS_DISTRO": "jazzy"}
with_rclpy = pytest.mark.skipif(importlib.util.find_spec("rclpy") is None, reason="there are no wheels of rclpy here")


@pytest.fixture
def another_rclpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the folder of Humble's rclpy, which setup.bash has put on the path of a newer Python."""
    folder = tmp_path / "rclpy"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "_rclpy_pybind11.cpython-310-x86_64-linux-gnu.so").touch()
    (tmp_path / "rclpy-3.3.16.dist-info").mkdir()
    (tmp_path / "rclpy-3.3.16.dist-info" / "METADATA").write_text("Name: rclpy\nVersion: 3.3.16\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "rclpy", raising=False)
    return str(folder)


def test_nothing_sourced_means_dds() -> None:
    """Wheels of rclpy may be installed or not."""
    assert choose(env={}) == choose(rate=GO2, env={}) == choose("dds", env={}) == ("dds", "")


@with_rclpy
def test_auto_takes_a_sourced_rclpy_but_for_control() -> None:
    assert choose(env=SOURCED) == choose(rate=30.0, env=SOURCED) == ("rclpy", "")
    assert choose(rate=ARM, env=SOURCED) == choose(rate=GO2, env=SOURCED) == ("dds", "")
    assert choose(env=SOURCED | {BACKEND: "dds"}) == choose("dds", env=SOURCED | {BACKEND: "rclpy"}) == ("dds", "")


@with_rclpy
def test_wheels_are_used_when_asked_for_or_without_cyclonedds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(env={BACKEND: "rclpy"}) == choose("rclpy", env={}) == ("rclpy", "")
    monkeypatch.setitem(sys.modules, "cyclonedds", None)
    assert choose(env={}) == ("rclpy", "")


@with_rclpy
def test_rclpy_is_warned_of_at_200_hz_and_refused_at_500_hz() -> None:
    taken, why = choose("rclpy", ARM, {})
    assert taken == "rclpy" and "200 Hz" in why
    with pytest.raises(UserError, match="does not hold 500 Hz: use bus:=dds"):
        choose("rclpy", GO2, {})
    with pytest.raises(UserError, match="does not hold 500 Hz"):
        choose(rate=GO2, env=SOURCED | {"RMW_IMPLEMENTATION": "rmw_zenoh_cpp"})


@with_rclpy
def test_middleware_without_dds_needs_rclpy() -> None:
    zenoh = {"RMW_IMPLEMENTATION": "rmw_zenoh_cpp"}
    assert choose(rate=ARM, env=SOURCED | zenoh)[0] == "rclpy"
    assert "rmw_zenoh_cpp does not speak DDS" in choose("dds", env=zenoh)[1]
    assert choose(rate=ARM, env=SOURCED | {"RMW_IMPLEMENTATION": "rmw_fastrtps_cpp"}) == ("dds", "")


@with_rclpy
def test_wheels_lack_other_middlewares() -> None:
    """rclpy would end the process."""
    cyclone = {"RMW_IMPLEMENTATION": "rmw_cyclonedds_cpp"}
    with pytest.raises(UserError, match="RMW_IMPLEMENTATION is rmw_cyclonedds_cpp.*rmw_fastrtps_cpp only: unset it"):
        choose("rclpy", env=cyclone)
    assert choose(env=cyclone) == ("dds", "") and choose("rclpy", env=SOURCED | cyclone) == ("rclpy", "")


@with_rclpy
def test_another_distribution_is_refused() -> None:
    humble = {"ROS_DISTRO": "humble"}
    with pytest.raises(UserError, match=r"rclpy in .* is of ROS 2 jazzy, but ROS_DISTRO is humble: .*unset ROS_DISTRO"):
        choose("rclpy", env=humble)
    assert choose(env=humble) == ("dds", "")
    taken, warning = choose(env=SOURCED | humble)
    assert taken == "dds" and "ROS_DISTRO is humble" in warning
    assert choose("rclpy", env={"ROS_DISTRO": "jazzy"}) == ("rclpy", "")


def test_rclpy_of_another_python_is_refused(another_rclpy: str) -> None:
    """ROS 2 Humble has Python 3.10, and so does each of its modules."""
    env = {"AMENT_PREFIX_PATH": "/opt/ros/humble", "ROS_DISTRO": "humble"}
    problem = rclpy_problem({**env, "ROS_DISTRO": ""})
    assert another_rclpy in problem and "not compiled for this Python" in problem and "bus:=dds" in problem
    with pytest.raises(UserError, match=r"not compiled for this Python|wheel ros-rclpy is of ROS 2 jazzy"):
        choose("rclpy", env=env)
    taken, warning = choose(env=env)
    assert taken == "dds" and "bus:=dds" in warning


def test_unknown_and_missing_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="auto, dds, rclpy"):
        open_node("n", backend="zenoh")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "rclpy", None)
        with pytest.raises(UserError, match=r"source ROS 2, or pip install 'robot-rl\[ros2\]'.*bus:=dds"):
            open_node("n", backend="rclpy")
    monkeypatch.setenv(BACKEND, "zenoh")
    with pytest.raises(UserError, match="ROBOT_RL_BUS 'zenoh' is none of auto, dds, rclpy"):
        open_node("n")
