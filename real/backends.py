"""Choice between the bus's backends: DDS and rclpy."""

import importlib.util
import os
import sys
from collections.abc import Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from robot_rl.util.errors import UserError

BACKENDS = ("auto", "dds", "rclpy")
BACKEND = "ROBOT_RL_BUS"
"""Environment variable with one of BACKENDS."""
FAST, TOO_FAST = 100.0, 250.0
"""Control rates, Hz: from `FAST`, DDS is preferred; above `TOO_FAST`, rclpy is refused. A 500 Hz loop on rclpy was
stopped in two of two runs, with 10 % of its ticks late."""
WHEEL, WHEEL_RMW = "ros-rclpy", "rmw_fastrtps_cpp"
"""Name of rclpy's wheel (`pip install 'robot-rl[ros2]'`), and the only middleware that comes with it."""
_DISTROS = {"3": "humble", "4": "iron", "7": "jazzy", "9": "kilted"}  # by the major version of rclpy


def choose(backend: str = "", rate: float = 0.0, env: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Return the backend, "dds" or "rclpy", and a warning about this choice, empty if there is none.

    "auto" chooses the rclpy of a sourced ROS 2, but DDS for control at `FAST` Hz or more, unless ROS's middleware does
    not speak DDS. Raises UserError for an rclpy that cannot be used (`rclpy_problem`), or above `TOO_FAST` Hz.
    """
    wanted = backend or env.get(BACKEND) or "auto"
    if wanted not in BACKENDS:
        source = "backend" if backend else BACKEND
        raise UserError(f"{source} {wanted!r} is none of {', '.join(BACKENDS)}")
    middleware = env.get("RMW_IMPLEMENTATION", "")
    foreign = bool(middleware) and not any(name in middleware for name in ("cyclonedds", "fastrtps", "connext"))
    problem = "" if wanted == "dds" else rclpy_problem(env)
    if wanted == "auto":
        preferred = not installed("cyclonedds") or (sourced(env) and (foreign or rate < FAST))
        if preferred and problem and sourced(env) and installed("rclpy"):
            return "dds", problem
        wanted = "rclpy" if preferred and not problem else "dds"
    if wanted == "dds":
        deaf = f"ROS's {middleware} does not speak DDS, so it does not hear this: use {WHEEL_RMW} there, or bus:=rclpy"
        return "dds", deaf if foreign else ""
    if problem:
        raise UserError(problem)
    if rate > TOO_FAST:
        raise UserError(
            f"rclpy does not hold {rate:g} Hz: use bus:=dds ({BACKEND}=dds), with pip install 'robot-rl[real]' and a "
            "DDS middleware such as RMW_IMPLEMENTATION=rmw_cyclonedds_cpp"
        )
    return "rclpy", f"it may be late at {rate:g} Hz; bus:=dds is steadier" if rate >= FAST else ""


def sourced(env: Mapping[str, str] = os.environ) -> bool:
    """Return whether a ROS 2 installation is sourced: its setup files set AMENT_PREFIX_PATH, wheels do not."""
    return bool(env.get("AMENT_PREFIX_PATH"))


def rclpy_problem(env: Mapping[str, str] = os.environ) -> str:
    """Return why this Python cannot use rclpy, where that is, and the remedy; empty if rclpy can be used.

    Some of these faults end the process in C code, and others mix two distributions' libraries or messages.
    """
    other = f"or use bus:=dds ({BACKEND}=dds)"
    if not installed("rclpy"):
        return f"no rclpy: source ROS 2, or pip install 'robot-rl[ros2]' (x86-64 Linux), {other}"
    folder, distro, middleware = rclpy_folder(), env.get("ROS_DISTRO", ""), env.get("RMW_IMPLEMENTATION", "")
    # The wheels' libraries are on the library path even where the rclpy of a sourced ROS 2 is imported.
    for package, what in (("rclpy", f"rclpy in {folder}"), (WHEEL, "the installed wheel ros-rclpy")):
        if distro and (found := distribution(package)) not in ("", distro):
            return (
                f"{what} is of ROS 2 {found}, but ROS_DISTRO is {distro}: source {distro} in an environment without "
                f"robot-rl[ros2], unset ROS_DISTRO if the robot runs {found}, {other}"
            )
    if folder and not any(Path(folder, f"_rclpy_pybind11{suffix}").exists() for suffix in EXTENSION_SUFFIXES):
        python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
        return f"rclpy in {folder} is not compiled for this {python}: use ROS 2's own Python, {other}"
    if middleware not in ("", WHEEL_RMW) and distribution(WHEEL) and not sourced(env):
        return (
            f"RMW_IMPLEMENTATION is {middleware}, but the wheels of ROS 2 in {folder} have {WHEEL_RMW} only: unset it "
            f"(the two exchange topics), source ROS 2, {other}"
        )
    return ""


def installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    return importlib.util.find_spec(module) is not None


def rclpy_folder() -> str:
    """Return the folder of the rclpy that would be imported; empty if there is none."""
    spec = importlib.util.find_spec("rclpy")
    return str(Path(spec.origin).parent) if spec is not None and spec.origin else ""


def distribution(package: str = "rclpy") -> str:
    """Return the ROS 2 distribution of the installed rclpy, or of its wheel (`WHEEL`); empty if unknown."""
    try:
        return _DISTROS.get(version(package).partition(".")[0], "")
    except PackageNotFoundError:  # not installed, or built without metadata
        return ""
