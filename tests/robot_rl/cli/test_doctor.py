"""`robot-rl doctor`: results on this machine, and remedies for simulated defects."""

import importlib.metadata
import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from real.control.timing import Timing
from robot_rl.cli import doctor
from robot_rl.cli.doctor import Diagnosis, Doctor


@pytest.fixture(autouse=True)
def _private_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", str(100 + time.time_ns() % 100))


def test_json_is_one_object_and_every_problem_has_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    code = Doctor(json=True).run()
    (line,) = capsys.readouterr().out.splitlines()
    report = json.loads(line)
    assert report["ok"] == (code == 0) == all(check["status"] != "fail" for check in report["checks"])
    for check in report["checks"]:
        assert check["detail"]
        assert bool(check["remedy"]) == (check["status"] != "ok"), check


def test_table_shows_remedies_and_failure_sets_the_status(monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found = [Diagnosis("a", "ok", "fine"), Diagnosis("b", "warn", "[so] so", "fix b")]
    found.append(Diagnosis("c", "fail", "bad", "fix c"))
    monkeypatch.setattr(doctor, "run_all", lambda: found)
    assert Doctor().run() == 1
    out = capsys.readouterr().out
    assert "[so] so" in out and "fix b" in out and "fix c" in out
    found.pop()
    assert Doctor().run() == 0


def test_missing_or_old_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    requires = ["numpy>=999", "no-such-thing>=1", 'mujoco>=4.0; extra == "sim"', 'ruff; extra == "dev"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requires)
    core, *others = doctor.packages()
    assert core.status == "fail" and [check.status for check in others] == ["ok"] * 5
    assert ">=999 is needed" in core.detail and "no-such-thing>=1 is missing" in core.detail
    assert "constraints.txt" in core.remedy
    requires.append('no-such-thing>=1; extra == "real"')
    assert list(doctor.packages())[2].status == "warn"


def test_failing_or_absent_rendering_and_transport_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(doctor, "_probe", lambda name: (False, "ImportError: Unable to load EGL library"))
        check = doctor.rendering()
    assert check.status == "fail" and "EGL library" in check.detail and "libegl1" in check.remedy
    monkeypatch.setenv("ROS_DOMAIN_ID", "9999")
    check = doctor.transport()
    assert check.status == "fail" and "9999" in check.detail and "ROS_DOMAIN_ID" in check.remedy
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert doctor.transport().status == doctor.rendering().status == "warn"
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert doctor._probe("egl") == (False, "the test ended with code 1")


def test_transport_is_that_of_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROS_DISTRO", "AMENT_PREFIX_PATH", "RMW_IMPLEMENTATION", "ROBOT_RL_BUS"):
        monkeypatch.delenv(name, raising=False)
    assert "CycloneDDS" in doctor.transport().detail
    pytest.importorskip("rclpy")
    monkeypatch.setenv("ROBOT_RL_BUS", "rclpy")
    check = doctor.transport()
    assert check.status == "ok" and "rclpy of ROS 2 jazzy, from wheels" in check.detail
    monkeypatch.setenv("ROS_DISTRO", "humble")
    check = doctor.transport()
    assert check.status == "fail" and "ROS_DISTRO is humble" in check.detail and "bus:=dds" in check.remedy
    monkeypatch.delenv("ROBOT_RL_BUS")
    monkeypatch.setenv("AMENT_PREFIX_PATH", "/opt/ros/humble")
    check = doctor.transport()
    assert check.status == "warn" and "CycloneDDS" in check.detail and "ROS_DISTRO is humble" in check.detail


@pytest.mark.parametrize(("late", "status"), [(0.0002, "ok"), (0.002, "warn")])
def test_timer_judges_lateness(monkeypatch: pytest.MonkeyPatch, late: float, status: str) -> None:
    timing = Timing(1 / 500)
    for k in range(100):
        timing.add(late if k % 20 == 0 else 0.0001, 0, k / 500)
    monkeypatch.setattr("real.control.timing.bare_loop", lambda rate, seconds: timing)
    check = doctor.timer(rate=500, seconds=0.2)
    assert check.status == status and f"{1000 * late:.2f} (largest)" in check.detail


def test_full_disk_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=0.1 * 1024**3))
    check = doctor.resources()
    assert check.status == "fail" and "free disk space" in check.remedy


def test_unknown_gamepad_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "js0")
    monkeypatch.setattr(Path, "glob", lambda path, pattern: [tmp_path / "js0"])
    monkeypatch.setattr("real.teleop.joystick.glob", lambda pattern: [str(tmp_path / "js0")])
    check = doctor.gamepad()
    assert check.status == "warn" and "no known kind" in check.detail and "--check" in check.remedy
