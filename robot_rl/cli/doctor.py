"""`robot-rl doctor`: check that this machine can simulate, learn and drive a robot."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from robot_rl.cli.console import printer, show
from robot_rl.util.errors import INSTALL, UserError

_MARKS = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}
_GIB = 1024**3


@dataclass(frozen=True)
class Diagnosis:
    """One finding; `remedy` says how to fix it and is empty when all is well."""

    name: str
    status: str
    """ok, warn or fail."""
    detail: str
    remedy: str = ""


@dataclass
class Doctor:
    """Check this machine and say how to install what is missing; takes under 10 s."""

    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Print the findings; return 1 if something needed is missing or broken, else 0."""
        found = list(run_all())
        failed = any(check.status == "fail" for check in found)
        if self.json:
            show({"ok": not failed, "checks": [asdict(check) for check in found]}, True)
            return int(failed)
        table = Table("", "check", box=None)
        table.add_column("found", overflow="fold")
        for check in found:
            remedy = f"\n[bold]-> {escape(check.remedy)}[/]" if check.remedy else ""
            table.add_row(_MARKS[check.status], check.name, escape(check.detail) + remedy)
        printer().print(table)
        return int(failed)


def run_all() -> Iterator[Diagnosis]:
    """Run the checks one after the other, so that none affects another's timing."""
    yield from packages()
    yield resources()
    yield rendering()
    yield transport()
    yield realtime()
    yield timer()
    yield gpu()
    yield gamepad()


def packages() -> Iterator[Diagnosis]:
    """Compare the installed packages with pyproject.toml, one check for each group of them."""
    from packaging.requirements import Requirement

    try:
        requirements = [Requirement(line) for line in importlib.metadata.requires("robot-rl") or []]
    except importlib.metadata.PackageNotFoundError:
        yield Diagnosis("packages", "fail", "robot-rl itself is not installed", INSTALL)
        return
    for group in ("core", "sim", "real", "onnx", "view", "vla"):
        wrong = []
        for requirement in requirements:
            extra = requirement.marker.evaluate({"extra": group}) if requirement.marker else group == "core"
            if extra and (problem := _problem(requirement.name, requirement.specifier)):
                wrong.append(problem)
        status = "ok" if not wrong else "fail" if group == "core" else "warn"  # training needs no robot
        yield Diagnosis(f"packages: {group}", status, "; ".join(wrong) or "installed", INSTALL if wrong else "")


def _problem(name: str, specifier: Any) -> str:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return f"{name}{specifier} is missing"
    return "" if specifier.contains(version, prereleases=True) else f"{name} is {version}, {specifier} is needed"


def resources() -> Diagnosis:
    """Check cores, memory and disk."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    memory, disk = int(lines["MemAvailable"].split()[0]) * 1024 / _GIB, shutil.disk_usage(".").free / _GIB
    cores = len(os.sched_getaffinity(0))
    detail = f"Python {platform.python_version()}; {cores} CPU cores; {memory:.1f} GiB memory available; "
    detail += f"{disk:.1f} GiB disk free in {Path.cwd()}"
    remedies = [
        "use 2 cores: control loop and learner share one now, and run late" * (cores < 2),
        "close other programs: actor and learner take up to 4 GiB each" * (memory < 6),
        "free disk space or work elsewhere: runs and datasets take a few GiB" * (disk < 5),
    ]
    remedy = "; ".join(filter(None, remedies))
    return Diagnosis("machine", "fail" if disk < 0.5 else "warn" if remedy else "ok", detail, remedy)


def rendering() -> Diagnosis:
    """Render a frame without a screen."""
    if importlib.util.find_spec("mujoco") is None:
        return Diagnosis("EGL rendering", "warn", "not tried, mujoco is missing", INSTALL)
    ok, said = _probe("egl")
    said, _, remedy = said.partition("; ")
    remedy = remedy or "run .ci/system-packages, or: apt-get install libegl1 libgl1 libopengl0 libgl1-mesa-dri"
    return Diagnosis("EGL rendering", "ok" if ok else "fail", said, "" if ok else remedy)


def transport() -> Diagnosis:
    """Send a ROS message over the loopback interface."""
    if importlib.util.find_spec("rclpy"):
        name = f"rclpy of ROS 2 {os.environ.get('ROS_DISTRO', '(ROS_DISTRO is not set)')}"
    elif importlib.util.find_spec("cyclonedds"):
        name = f"CycloneDDS {importlib.metadata.version('cyclonedds')}; ROS 2 is not sourced"
    else:
        remedy = "source /opt/ros/<distro>/setup.bash, or: pip install 'robot-rl[real]'"
        return Diagnosis("ROS transport", "warn", "neither rclpy nor cyclonedds", remedy)
    ok, said = _probe("bus")
    remedy = "check ROS_DOMAIN_ID (0-101), CYCLONEDDS_URI and that the interface lo is up"
    return Diagnosis("ROS transport", "ok" if ok else "fail", f"{name}: {said}", "" if ok else remedy)


def _probe(name: str) -> tuple[bool, str]:
    """Run a probe in its own process, since a broken GL or DDS may hang or crash; return success and its text."""
    command = [sys.executable, "-m", "robot_rl.cli.demo.probes", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=8, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return False, "no answer within 8 s"
    said = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return done.returncode == 0, said[-1] if said else f"the test ended with code {done.returncode}"


def realtime() -> Diagnosis:
    """Try real-time priority, and check the limit of locked memory."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        os.sched_setscheduler(0, *before)
        fifo = True
    except OSError:
        fifo = False
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    enough = locked == resource.RLIM_INFINITY or os.geteuid() == 0 or locked >= _GIB
    kernel = "PREEMPT_RT kernel" if "PREEMPT_RT" in platform.version() else "ordinary kernel"
    detail = (
        f"SCHED_FIFO {'allowed' if fifo else 'refused'}, memory {'may' if enough else 'may not'} be locked, {kernel}"
    )
    remedy = (
        "only for a real robot: in /etc/security/limits.d/robot.conf write `@realtime - rtprio 98` and "
        "`@realtime - memlock unlimited`, add yourself to the group realtime, log in again"
    )
    return Diagnosis("real time", "ok", detail) if fifo and enough else Diagnosis("real time", "warn", detail, remedy)


def timer(rate: float = 200.0, seconds: float = 1.0) -> Diagnosis:
    """Keep deadlines at `rate` Hz for `seconds` as the command loop does, and measure the lateness."""
    from real.control.clock import bare_loop

    timing = bare_loop(rate, seconds).summary()
    p50, p99, worst = (timing["lateness_us"][name] / 1000 for name in ("p50", "p99", "max"))
    share = timing["late_share"]
    detail = f"late by {p50:.2f} ms (p50), {p99:.2f} (p99), {worst:.2f} (largest); {share:.1%} by over 1 ms"
    remedy = "stop other programs; for a real robot use a PREEMPT_RT kernel and the limits above"
    return Diagnosis(f"{rate:g} Hz timer", "warn" if share > 0.01 else "ok", detail, remedy if share > 0.01 else "")


def gpu() -> Diagnosis:
    """Look for an NVIDIA GPU that torch cannot use."""
    if not Path("/dev/nvidiactl").exists():
        return Diagnosis("GPU", "ok", "none; the CPU is used")
    version = importlib.metadata.version("torch")
    if version.endswith("+cpu"):
        remedy = "to use it, install a CUDA build of the same torch version"
        return Diagnosis("GPU", "warn", f"NVIDIA driver found, but torch {version} is for the CPU", remedy)
    return Diagnosis("GPU", "ok", f"NVIDIA driver and torch {version}")


def gamepad() -> Diagnosis:
    """Open the gamepad as `teleop` does."""
    if not list(Path("/dev/input").glob("js*")):
        remedy = "plug one in, or use the keyboard: teleop:=keyboard"
        return Diagnosis("gamepad", "warn", "none at /dev/input/js*", remedy)
    try:
        from real.teleop import Gamepad

        with contextlib.closing(Gamepad(settle=0.5)) as pad:
            return Diagnosis("gamepad", "ok", f"{pad.device.path}, {pad.device.identity}")
    except ImportError as error:
        return Diagnosis("gamepad", "warn", f"not looked at: {error}", INSTALL)
    except UserError as error:
        return Diagnosis("gamepad", "warn", str(error), "see what it sends: robot-rl teleop gamepad --check")
