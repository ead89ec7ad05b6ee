"""The doctor: what it finds here, and what it says of a machine that is not well."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from pathlib import Path

import pytest

from real.clock import Timing
from robot_rl.cli import checks, doctor, probes, trials
from robot_rl.cli.checks import Check
from robot_rl.cli.doctor import Doctor


@pytest.fixture(autouse=True)
def _private_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", str(100 + time.time_ns() % 100))


def test_json_is_one_object_and_quick(capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    code = Doctor(json=True).run()
    assert time.monotonic() - started < 20  # promised: 10, on a machine that does nothing else
    (line,) = capsys.readouterr().out.splitlines()
    report = json.loads(line)
    assert report["ok"] == (code == 0) == all(check["status"] != "fail" for check in report["checks"])
    names = [check["name"] for check in report["checks"]]
    assert len(names) == len(set(names)) >= 15
    for check in report["checks"]:
        assert check["detail"]
        assert bool(check["remedy"]) == (check["status"] != "ok"), check


def test_table_shows_remedies_and_a_failure_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [
        Check("a", "ok", "fine"),
        Check("b", "warn", "[so] so", "mend b"),
        Check("c", "fail", "bad", "mend c"),
    ]
    monkeypatch.setattr(doctor, "run_all", lambda progress: found)
    assert Doctor().run() == 1
    out = capsys.readouterr().out
    assert "[so] so" in out and "mend b" in out and "mend c" in out
    assert "1 ok, 1 warn, 1 fail" in out
    found.pop()
    assert Doctor().run() == 0


def test_a_missing_or_old_package(monkeypatch: pytest.MonkeyPatch) -> None:
    requires = ["numpy>=999", "no-such-thing>=1", 'mujoco>=4.0; extra == "sim"', 'ruff; extra == "dev"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requires)
    core, sim, real, onnx = checks.packages()
    assert (core.status, sim.status, real.status, onnx.status) == ("fail", "ok", "ok", "ok")
    assert "numpy>=999 is needed" in core.detail and "no-such-thing>=1 is missing" in core.detail
    assert "constraints.txt" in core.remedy
    requires.append('no-such-thing>=1; extra == "real"')
    assert list(checks.packages())[2].status == "warn"  # training needs no robot
    requires.append('onnxruntime>=999; extra == "onnx"')
    (check,) = [check for check in checks.packages() if check.name == "packages: onnx"]
    assert check.status == "warn" and "onnxruntime>=999" in check.detail and check.remedy


def test_python_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 0))
    assert checks.python().status == "fail"


def test_rendering_that_fails_names_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_probe", lambda name: {"error": "ImportError: Unable to load EGL library"})
    check = trials.rendering()
    assert check.status == "fail" and "EGL library" in check.detail and "libegl1" in check.remedy


def test_transport_on_an_impossible_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", "9999")
    check = trials.transport()
    assert check.status == "fail" and "9999" in check.detail and "ROS_DOMAIN_ID" in check.remedy


def test_no_transport_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert trials.transport().status == "warn"
    assert trials.rendering().status == "warn"
    assert checks.assets().status == "warn"


def test_a_probe_that_crashes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert trials._probe("egl") == {"error": "it ended with code 1"}


def test_probe_reports_its_own_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> dict[str, object]:
        raise OSError("no device")

    monkeypatch.setitem(probes.PROBES, "egl", broken)
    assert probes.main(["egl"]) == 1
    assert json.loads(capsys.readouterr().out) == {"error": "OSError: no device"}


@pytest.mark.parametrize(("late", "status"), [(0.0002, "ok"), (0.002, "warn")])
def test_timer_reports_its_figures(monkeypatch: pytest.MonkeyPatch, late: float, status: str) -> None:
    timing = Timing(1 / 500)
    for k in range(100):
        timing.add(late if k % 20 == 0 else 0.0001, 0, k / 500)
    monkeypatch.setattr(trials, "bare_loop", lambda rate, seconds: timing)
    check = trials.lateness(rate=500, seconds=0.2)
    assert check.name == "500 Hz timer" and check.status == status
    assert check.values["p50_ms"] == pytest.approx(0.1, rel=0.02) and check.values["max_ms"] == pytest.approx(
        1000 * late
    )
    assert check.values["over_1ms"] == (0.05 if status == "warn" else 0.0)


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 0.1 * checks.GIB

    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage)
    assert checks.disk().status == "fail"


def test_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    assert checks.display().status == "ok"
    monkeypatch.delenv("DISPLAY")
    assert checks.display().status == "warn"


def test_a_gamepad_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "glob", lambda path, pattern: [path / "js0"])
    monkeypatch.setattr("os.access", lambda path, mode: False)
    check = checks.gamepad()
    assert check.status == "warn" and "usermod" in check.remedy
