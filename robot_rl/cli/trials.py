"""The checks of `robot-rl doctor` that try: rendering, the ROS transport, real-time priority, a timer."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import subprocess
import sys
from typing import Any

from real.clock import bare_loop
from robot_rl.cli.checks import GIB, INSTALL, Check


def rendering() -> Check:
    if importlib.util.find_spec("mujoco") is None:
        return Check("EGL rendering", "warn", "not tried, mujoco is missing", INSTALL)
    found = _probe("egl")
    if "error" in found:
        remedy = "run .ci/system-packages, or: apt-get install libegl1 libgl1 libopengl0 libgl1-mesa-dri"
        return Check("EGL rendering", "fail", found["error"], remedy)
    return Check("EGL rendering", "ok", f"{found['frames_per_s']} frames/s on {found['renderer']}", values=found)


def transport() -> Check:
    if importlib.util.find_spec("rclpy"):
        name = f"rclpy of ROS 2 {os.environ.get('ROS_DISTRO', '(ROS_DISTRO is not set)')}"
    elif importlib.util.find_spec("cyclonedds"):
        name = f"CycloneDDS {importlib.metadata.version('cyclonedds')}; ROS 2 is not sourced"
    else:
        remedy = "source /opt/ros/<distro>/setup.bash, or: pip install 'robot-rl[real]'"
        return Check("ROS transport", "warn", "neither rclpy nor cyclonedds", remedy)
    found = _probe("bus")
    domain = os.environ.get("ROS_DOMAIN_ID") or "0"
    if "error" in found:
        remedy = "check ROS_DOMAIN_ID (0-101), CYCLONEDDS_URI and that the interface lo is up"
        return Check("ROS transport", "fail", f"{name}: {found['error']}", remedy)
    detail = f"{name}; domain {domain} opened, a message took {found['round_trip_ms']} ms over loopback"
    return Check("ROS transport", "ok", detail, values=found)


def _probe(name: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "robot_rl.cli.probes", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=4, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return {"error": "no answer within 4 s"}
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = done.stderr.strip().splitlines()[-1:] or [f"it ended with code {done.returncode}"]
        return {"error": last[0]}


def realtime() -> Check:
    """Try real-time priority, and look at how much memory may be locked."""
    try:
        before = os.sched_getscheduler(0), os.sched_getparam(0)
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        os.sched_setscheduler(0, *before)
        fifo = True
    except OSError:
        fifo = False
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    unlimited = locked == resource.RLIM_INFINITY or os.geteuid() == 0
    enough = unlimited or locked >= GIB
    kernel = "PREEMPT_RT kernel" if "PREEMPT_RT" in platform.version() else "ordinary kernel"
    memory = "all memory" if unlimited else f"{locked // 1024} KiB"
    detail = f"SCHED_FIFO {'allowed' if fifo else 'refused'}, {memory} may be locked, {kernel}"
    values = {"fifo": fifo, "memlock": None if unlimited else locked, "kernel": platform.release()}
    if fifo and enough:
        return Check("real time", "ok", detail, values=values)
    remedy = (
        "only for a real robot: in /etc/security/limits.d/robot.conf write `@realtime - rtprio 98` and "
        "`@realtime - memlock unlimited`, add yourself to the group realtime, log in again"
    )
    return Check("real time", "warn", detail, remedy, values)


def lateness(rate: float = 200.0, seconds: float = 1.0) -> Check:
    """Keep absolute deadlines at `rate` Hz for `seconds` as the command loop does, and measure the delay."""
    timing = bare_loop(rate, seconds).summary()
    p50, p99, worst = (timing["lateness_us"][name] / 1000 for name in ("p50", "p99", "max"))
    values = {"p50_ms": p50, "p99_ms": p99, "max_ms": worst, "over_1ms": timing["late_share"]}
    values = {key: round(value, 4) for key, value in values.items()}
    detail = f"late by {p50:.2f} ms (p50), {p99:.2f} (p99), {worst:.2f} (most); {timing['late_share']:.1%} by over 1 ms"
    name = f"{rate:g} Hz timer"
    if timing["late_share"] <= 0.01:
        return Check(name, "ok", detail, values=values)
    remedy = "stop what else is running; for a real robot use a PREEMPT_RT kernel and the limits above"
    return Check(name, "warn", detail, remedy, values)
