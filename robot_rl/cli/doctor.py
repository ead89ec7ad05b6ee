"""`robot-rl doctor` and `robots check`: check this machine, a run's log, and a robot's spec against its model file."""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.markup import escape
from rich.table import Table

from robot_rl.cli.console import print_table, printer, show
from robot_rl.cli.options import Json, Mjcf
from robot_rl.util.errors import INSTALL, UserError

_MARKS = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}
_GIB = 1024**3
_SCENE = "<mujoco><worldbody><light pos='0 0 3'/><geom type='plane' size='1 1 .1'/></worldbody></mujoco>"


@dataclass(frozen=True)
class Diagnosis:
    """Result of one check; `remedy` is empty if the status is ok."""

    name: str
    status: str
    """One of ok, warn and fail."""
    detail: str
    remedy: str = ""


@dataclass
class Doctor:
    """Check this machine and print remedies for missing or broken parts; takes under 10 s. With --log, find out why a
    robot shakes although its policy works in simulation."""

    log: Path | None = None
    """Run folder of `robot-rl deploy`: its commands are replayed in simulation and compared with what was measured."""
    mjcf: Mjcf = ""
    json: Json = False

    def run(self) -> int:
        if self.log is not None:
            from robot_rl.cli.shaking import diagnose

            return diagnose(self.log, self.json, self.mjcf)
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
    """Run the checks in sequence, because parallel checks would affect each other's timing."""
    yield from packages()
    yield resources()
    yield rendering()
    yield transport()
    yield realtime()
    yield timer()
    yield gpu()
    yield gamepad()


def packages() -> Iterator[Diagnosis]:
    """Compare the installed packages with pyproject.toml, one check per dependency group."""
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
        status = "ok" if not wrong else "fail" if group == "core" else "warn"  # other groups are optional
        yield Diagnosis(f"packages: {group}", status, "; ".join(wrong) or "installed", INSTALL if wrong else "")


def _problem(name: str, specifier: Any) -> str:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return f"{name}{specifier} is missing"
    return "" if specifier.contains(version, prereleases=True) else f"{name} is {version}, {specifier} is needed"


def resources() -> Diagnosis:
    """Check the machine's cores, memory and disk."""
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
    """Check that a frame can be rendered without a display."""
    if importlib.util.find_spec("mujoco") is None:
        return Diagnosis("EGL rendering", "warn", "not tried, mujoco is missing", INSTALL)
    ok, said = _probe("egl")
    said, _, remedy = said.partition("; ")
    remedy = remedy or "run .ci/system-packages, or: apt-get install libegl1 libgl1 libopengl0 libgl1-mesa-dri"
    return Diagnosis("EGL rendering", "ok" if ok else "fail", said, "" if ok else remedy)


def transport() -> Diagnosis:
    """Check that a ROS message can be sent over the loopback interface with the backend that nodes would choose."""
    from real.backends import BACKEND, choose, distribution, installed, rclpy_problem, sourced

    if not installed("rclpy") and not installed("cyclonedds"):
        remedy = "source /opt/ros/<distro>/setup.bash, or: pip install 'robot-rl[real]'"
        return Diagnosis("ROS transport", "warn", "neither rclpy nor cyclonedds", remedy)
    origin = "sourced" if sourced() else "not sourced"
    rclpy = f"rclpy of ROS 2 {distribution() or os.environ.get('ROS_DISTRO', '')}".rstrip()
    try:
        chosen, warning = choose()
    except UserError as error:
        detail, _, remedy = str(error).partition(": ")
        return Diagnosis("ROS transport", "fail", detail, remedy or f"unset {BACKEND}")
    if chosen == "rclpy":
        name = f"{rclpy}, {origin if sourced() else 'from wheels'}"
    else:
        name = f"CycloneDDS {importlib.metadata.version('cyclonedds')}; ROS 2 is {origin}"
        name += f"; {rclpy} with bus:=rclpy" if not rclpy_problem() else ""
    ok, said = _probe("bus")
    if not ok:
        remedy = "check ROS_DOMAIN_ID (0-101), CYCLONEDDS_URI and that the interface lo is up"
        return Diagnosis("ROS transport", "fail", f"{name}: {said}", remedy)
    if warning:
        detail, _, remedy = warning.partition(": ")
        return Diagnosis("ROS transport", "warn", f"{name}: {said}; {detail}", remedy)
    return Diagnosis("ROS transport", "ok", f"{name}: {said}")


def _probe(name: str) -> tuple[bool, str]:
    """Run a probe in its own process, as broken GL or DDS may hang or crash; return success and last output line."""
    command = [sys.executable, "-m", "robot_rl.cli.doctor", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=8, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return False, "no answer within 8 s"
    said = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return done.returncode == 0, said[-1] if said else f"the test ended with code {done.returncode}"


def realtime() -> Diagnosis:
    """Check that this user can get real-time priority, and lock memory."""
    from real.control.memory import may_lock

    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        os.sched_setscheduler(0, *before)
        fifo = True
    except OSError:
        fifo = False
    able = may_lock()
    kernel = "PREEMPT_RT kernel" if "PREEMPT_RT" in platform.version() else "ordinary kernel"
    detail = f"SCHED_FIFO {'allowed' if fifo else 'refused'}, memory {'may' if able else 'may not'} be locked, {kernel}"
    remedy = (
        "only for a real robot: in /etc/security/limits.d/robot.conf write `@realtime - rtprio 98` and "
        "`@realtime - memlock unlimited`, add yourself to the group realtime, log in again"
    )
    return Diagnosis("real time", "ok", detail) if fifo and able else Diagnosis("real time", "warn", detail, remedy)


def timer(rate: float = 200.0, seconds: float = 1.0) -> Diagnosis:
    """Measure the lateness of a loop at `rate` Hz that runs for `seconds` like the command loop."""
    from real.control.timing import bare_loop

    timing = bare_loop(rate, seconds).summary()
    p50, p99, worst = (timing["lateness_us"][name] / 1000 for name in ("p50", "p99", "max"))
    share = timing["late_share"]
    detail = f"late by {p50:.2f} ms (p50), {p99:.2f} (p99), {worst:.2f} (largest); {share:.1%} by over 1 ms"
    remedy = "stop other programs; for a real robot use a PREEMPT_RT kernel and the limits above"
    return Diagnosis(f"{rate:g} Hz timer", "warn" if share > 0.01 else "ok", detail, remedy if share > 0.01 else "")


def gpu() -> Diagnosis:
    """Check that torch can use the NVIDIA GPU, if any."""
    if not Path("/dev/nvidiactl").exists():
        return Diagnosis("GPU", "ok", "none; the CPU is used")
    version = importlib.metadata.version("torch")
    if version.endswith("+cpu"):
        remedy = "to use it, install a CUDA build of the same torch version"
        return Diagnosis("GPU", "warn", f"NVIDIA driver found, but torch {version} is for the CPU", remedy)
    return Diagnosis("GPU", "ok", f"NVIDIA driver and torch {version}")


def gamepad() -> Diagnosis:
    """Check that the gamepad can be opened, as `robot-rl teleop` opens it."""
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


# ---- probes, each in a process of its own: `python -m robot_rl.cli.doctor egl` ---------------------------------------
def egl() -> str:
    """Render 96 x 96 pixels without a display; return the frame rate as text."""
    os.environ["MUJOCO_GL"] = "egl"  # read when mujoco is imported
    from sim.rendering.gl import mujoco, open_renderer

    model = mujoco.MjModel.from_xml_string(_SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    with open_renderer(model, 96, 96) as renderer:
        renderer.update_scene(data)
        if not renderer.render().max():  # the first frame also compiles
            raise RuntimeError("the rendered frame is black")
        started = time.perf_counter()
        for _ in range(5):
            renderer.render()
        return f"{5 / (time.perf_counter() - started):.0f} frames/s of 96 x 96 pixels"


def bus() -> str:
    """Send one message to this process over the loopback interface; return its latency as text."""
    os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"  # keep robots on the network out
    from real.bus import make, open_node, qos

    with open_node("doctor") as node:
        received = node.subscribe("std_msgs/msg/String", "~/echo", qos.COMMAND)
        publisher = node.publisher("std_msgs/msg/String", "~/echo", qos.COMMAND)
        if not node.wait_for(lambda: publisher.matched > 0, 3.0):
            raise RuntimeError("a publisher and a subscription in one process do not find each other")
        started = time.perf_counter()
        publisher.publish(make("std_msgs/msg/String", data="hello"))
        if not received.wait(timeout=2.0):
            raise RuntimeError("a message sent over the loopback interface does not arrive")
        return f"a message over loopback took {1000 * (time.perf_counter() - started):.2f} ms"


if __name__ == "__main__":
    try:
        sys.stdout.write({"egl": egl, "bus": bus}[sys.argv[1]]() + "\n")
    except UserError as error:
        sys.exit(str(error))


@dataclass
class RobotsCheck:
    """Compare a robot's spec with its model file and list corrections; exit status 2 if there are errors."""

    robot: tyro.conf.Positional[str]
    """Robot name, see `robot-rl robots`, or import path, my_lab.arm:ARM."""
    mjcf: str = ""
    """Model file (MJCF or URDF) instead of the spec's model file."""
    json: Json = False

    def run(self) -> int:
        from real.drivers import parts_of
        from robot_rl.robots import robots
        from sim.engines.robot_check import check_robot

        robot = robots.get(self.robot)
        if importlib.util.find_spec("cyclonedds"):  # the extra `real`
            parts_of(robot)  # raises what is wrong with the driver
        found = check_robot(robot, self.mjcf)
        wrong = any(finding.severity == "error" for finding in found)
        if self.json:
            sys.stdout.write(json.dumps({"ok": not wrong, "findings": [f._asdict() for f in found]}) + "\n")
        else:
            head = ("", "what", "found", "remedy")
            print_table(self.robot, head, [(f.severity, f.what, f.found, f.remedy) for f in found], left=head)
        return 2 if wrong else 0
