"""Which backend carries the messages; rclpy itself is an empty module that can be imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from real.backends import BACKEND, choose
from real.bus import BusError, open_node
from robot_rl.util.errors import UserError

ARM, GO2 = 200.0, 500.0


@pytest.fixture
def sourced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ROS 2 is sourced: rclpy can be found."""
    (tmp_path / "rclpy").mkdir()
    (tmp_path / "rclpy" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))


def test_without_rclpy_it_is_dds_and_nothing_speaks_against_it() -> None:
    assert choose(env={}) == choose(rate=GO2, env={}) == ("dds", "")


@pytest.mark.usefixtures("sourced")
def test_with_rclpy_only_control_takes_dds() -> None:
    assert choose(env={}) == choose(rate=30.0, env={}) == ("rclpy", "")
    assert choose(rate=ARM, env={}) == choose(rate=GO2, env={}) == ("dds", "")
    assert choose(env={BACKEND: "dds"}) == choose("dds", env={BACKEND: "rclpy"}) == ("dds", "")


@pytest.mark.usefixtures("sourced")
def test_rclpy_is_warned_of_where_it_may_be_late_and_refused_where_it_is() -> None:
    taken, why = choose("rclpy", ARM, {})
    assert taken == "rclpy" and "200 Hz" in why
    with pytest.raises(UserError, match="does not hold 500 Hz: use bus:=dds"):
        choose("rclpy", GO2, {})
    with pytest.raises(UserError, match="does not hold 500 Hz"):
        choose(rate=GO2, env={"RMW_IMPLEMENTATION": "rmw_zenoh_cpp"})


@pytest.mark.usefixtures("sourced")
def test_a_middleware_that_speaks_no_dds_is_heard_by_rclpy_alone() -> None:
    zenoh = {"RMW_IMPLEMENTATION": "rmw_zenoh_cpp"}
    assert choose(rate=ARM, env=zenoh)[0] == "rclpy"
    assert "rmw_zenoh_cpp does not speak DDS" in choose("dds", env=zenoh)[1]
    assert choose(rate=ARM, env={"RMW_IMPLEMENTATION": "rmw_fastrtps_cpp"}) == ("dds", "")


def test_other_names_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BACKEND, "zenoh")
    with pytest.raises(UserError, match="ROBOT_RL_BUS 'zenoh' is none of auto, dds, rclpy"):
        open_node("n")


def test_simulated_time_is_refused_with_a_reason() -> None:
    with pytest.raises(BusError, match="this machine's clock"):
        open_node("n", ros_args=["--ros-args", "-p", "use_sim_time:=true"])
