"""Choice of the bus's backend; rclpy is an empty module that can be imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from real.backends import BACKEND, choose
from real.bus import BusError, open_node
from robot_rl.util.errors import UserError

ARM, GO2 = 200.0, 500.0


@pytest.fixture
def sourced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make rclpy importable, as after sourcing ROS 2."""
    (tmp_path / "rclpy").mkdir()
    (tmp_path / "rclpy" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))


def test_dds_without_rclpy() -> None:
    assert choose(env={}) == choose(rate=GO2, env={}) == ("dds", "")


@pytest.mark.usefixtures("sourced")
def test_with_rclpy_only_control_uses_dds() -> None:
    assert choose(env={}) == choose(rate=30.0, env={}) == ("rclpy", "")
    assert choose(rate=ARM, env={}) == choose(rate=GO2, env={}) == ("dds", "")
    assert choose(env={BACKEND: "dds"}) == choose("dds", env={BACKEND: "rclpy"}) == ("dds", "")


@pytest.mark.usefixtures("sourced")
def test_rclpy_is_warned_of_at_200_hz_and_refused_at_500_hz() -> None:
    taken, why = choose("rclpy", ARM, {})
    assert taken == "rclpy" and "200 Hz" in why
    with pytest.raises(UserError, match="does not hold 500 Hz: use bus:=dds"):
        choose("rclpy", GO2, {})
    with pytest.raises(UserError, match="does not hold 500 Hz"):
        choose(rate=GO2, env={"RMW_IMPLEMENTATION": "rmw_zenoh_cpp"})


@pytest.mark.usefixtures("sourced")
def test_middleware_without_dds_needs_rclpy() -> None:
    zenoh = {"RMW_IMPLEMENTATION": "rmw_zenoh_cpp"}
    assert choose(rate=ARM, env=zenoh)[0] == "rclpy"
    assert "rmw_zenoh_cpp does not speak DDS" in choose("dds", env=zenoh)[1]
    assert choose(rate=ARM, env={"RMW_IMPLEMENTATION": "rmw_fastrtps_cpp"}) == ("dds", "")


def test_unknown_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BACKEND, "zenoh")
    with pytest.raises(UserError, match="ROBOT_RL_BUS 'zenoh' is none of auto, dds, rclpy"):
        open_node("n")


def test_simulated_time_is_refused() -> None:
    with pytest.raises(BusError, match="this machine's clock"):
        open_node("n", ros_args=["--ros-args", "-p", "use_sim_time:=true"])
