"""Choice between the bus's backends: DDS and rclpy."""

import importlib.util
import os
import sys
from collections.abc import Mapping

from robot_rl.util.errors import UserError

BACKENDS = ("auto", "dds", "rclpy")
BACKEND = "ROBOT_RL_BUS"
"""Environment variable with one of BACKENDS."""
FAST, TOO_FAST = 100.0, 250.0
"""Control rates, Hz: from `FAST`, DDS is preferred; above `TOO_FAST`, rclpy is refused. A 500 Hz loop on rclpy was
stopped in two of two runs, with 10 % of its ticks late."""


def choose(backend: str = "", rate: float = 0.0, env: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Return the backend, "dds" or "rclpy", and a warning about this choice, empty if there is none.

    "auto" chooses rclpy if it is installed, but DDS for control at `FAST` Hz or more, unless ROS's middleware does not
    speak DDS. Raises UserError for rclpy above `TOO_FAST` Hz.
    """
    wanted = backend or env.get(BACKEND) or "auto"
    if wanted not in BACKENDS:
        source = "backend" if backend else BACKEND
        raise UserError(f"{source} {wanted!r} is none of {', '.join(BACKENDS)}")
    middleware = env.get("RMW_IMPLEMENTATION", "")
    foreign = bool(middleware) and not any(name in middleware for name in ("cyclonedds", "fastrtps", "connext"))
    if wanted == "auto":
        rclpy, dds = _installed("rclpy"), _installed("cyclonedds")
        wanted = "rclpy" if rclpy and (foreign or not dds or rate < FAST) else "dds"
    if wanted == "dds":
        return "dds", f"ROS's {middleware} does not speak DDS: the two do not hear each other" if foreign else ""
    if rate > TOO_FAST:
        raise UserError(
            f"rclpy does not hold {rate:g} Hz: use bus:=dds ({BACKEND}=dds), with pip install 'robot-rl[real]' and a "
            "DDS middleware such as RMW_IMPLEMENTATION=rmw_cyclonedds_cpp"
        )
    return "rclpy", f"it may be late at {rate:g} Hz; bus:=dds is steadier" if rate >= FAST else ""


def _installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    return module in sys.modules or importlib.util.find_spec(module) is not None
