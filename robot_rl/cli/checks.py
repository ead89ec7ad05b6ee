"""The checks of `robot-rl doctor` that only look: each at one thing, saying how to mend it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

GIB = 1024**3
INSTALL = "run `make`, or: pip install -c constraints.txt -e '.[all]'"
_PANDA = "assets/xml/franka_emika_panda/panda.xml"


@dataclass
class Check:
    """What was found; `remedy` is empty when all is well, `values` holds the figures for `--json`."""

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    remedy: str = ""
    values: dict[str, Any] = field(default_factory=dict)


def python() -> Check:
    detail = f"{platform.python_version()} at {sys.executable}"
    if (3, 11) <= sys.version_info[:2] < (3, 14):
        return Check("Python", "ok", detail)
    return Check("Python", "fail", detail, "use Python 3.11, 3.12 or 3.13: make clean; make PYTHON=python3.12")


def packages() -> Iterator[Check]:
    """Compare what is installed with what pyproject.toml asks for, one check for each group of packages."""
    try:
        requires = importlib.metadata.requires("robot-rl") or []
    except importlib.metadata.PackageNotFoundError:
        yield Check("packages", "fail", "robot-rl itself is not installed", INSTALL)
        return
    groups: dict[str, list[str]] = {"core": [], "sim": [], "real": [], "onnx": []}
    for line in requires:
        extra = re.search(r"extra == ['\"](\w+)['\"]", line)
        groups.setdefault(extra[1] if extra else "core", []).append(line.partition(";")[0].strip())
    for group in ("core", "sim", "real", "onnx"):
        found, wrong = {}, []
        for requirement in groups[group]:
            name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                wrong.append(f"{requirement} is missing")
                continue
            if not _satisfied(requirement, found[name]):
                wrong.append(f"{name} is {found[name]}, {requirement} is needed")
        detail = "; ".join(wrong) or ", ".join(f"{name} {version}" for name, version in found.items())
        status: Literal["ok", "warn", "fail"] = "ok"
        if wrong:
            status = "fail" if group == "core" else "warn"
        yield Check(f"packages: {group}", status, detail, INSTALL if wrong else "", found)


def _satisfied(requirement: str, version: str) -> bool:
    try:
        from packaging.requirements import Requirement
    except ImportError:  # comes along with others, but is none of ours
        return True
    return Requirement(requirement).specifier.contains(version, prereleases=True)


def processor() -> Check:
    cores = len(os.sched_getaffinity(0))
    values = {"usable": cores, "present": os.cpu_count()}
    detail = f"{cores} of {os.cpu_count()} usable"
    if cores >= 2:
        return Check("CPU cores", "ok", detail, values=values)
    remedy = "give this machine or container 2 cores: control loop and learner share one now, and run late"
    return Check("CPU cores", "warn", detail, remedy, values)


def memory() -> Check:
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(lines[key].split()[0]) * 1024 / GIB for key in ("MemTotal", "MemAvailable"))
    values = {"total_gib": round(total, 1), "available_gib": round(free, 1)}
    detail = f"{free:.1f} of {total:.1f} GiB available"
    if free >= 6:
        return Check("memory", "ok", detail, values=values)
    return Check("memory", "warn", detail, "close something: actor and learner take up to 4 GiB each", values)


def disk() -> Check:
    free = shutil.disk_usage(".").free / GIB
    values = {"free_gib": round(free, 1)}
    detail = f"{free:.1f} GiB free in {Path.cwd()}"
    if free >= 5:
        return Check("disk", "ok", detail, values=values)
    remedy = "make room or work elsewhere: runs and datasets take a few GiB"
    return Check("disk", "fail" if free < 0.5 else "warn", detail, remedy, values)


def assets() -> Check:
    spec = importlib.util.find_spec("genesis")  # found, not imported: that takes 5 s
    folder = Path(spec.origin).parent if spec and spec.origin else None
    if folder and (folder / _PANDA).exists():
        return Check("robot files", "ok", f"in {folder / 'assets'}")
    remedy = "pip install genesis-world, which ships them, or name an MJCF file of your own"
    return Check("robot files", "warn", "none found", remedy)


def gpu() -> Check:
    if not Path("/dev/nvidiactl").exists():
        return Check("GPU", "ok", "none; the CPU is used")
    named = [
        line.split(":", 1)[1].strip()
        for file in Path("/proc/driver/nvidia/gpus").glob("*/information")
        for line in file.read_text().splitlines()
        if line.startswith("Model")
    ]
    detail = ", ".join(named) or "NVIDIA driver is loaded"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version("torch")
        if version.endswith("+cpu"):
            remedy = "to use it, install a CUDA build of the same torch version"
            return Check("GPU", "warn", f"{detail}, but torch {version} is for the CPU", remedy)
    return Check("GPU", "ok", detail)


def gamepad() -> Check:
    pads = sorted(Path("/dev/input").glob("js*"))
    if not pads:
        remedy = "plug one in, or correct by keyboard: teleop:=keyboard"
        return Check("gamepad", "warn", "none at /dev/input/js*", remedy)
    if not any(os.access(pad, os.R_OK) for pad in pads):
        remedy = "sudo usermod -aG input $USER, then log in again"
        return Check("gamepad", "warn", f"{pads[0]} is there, but may not be read", remedy)
    return Check("gamepad", "ok", ", ".join(map(str, pads)))


def display() -> Check:
    for variable in ("WAYLAND_DISPLAY", "DISPLAY"):
        if os.environ.get(variable):
            return Check("display", "ok", f"{variable}={os.environ[variable]}")
    return Check("display", "warn", "none", "only windows need one: videos and reports are written to files")
