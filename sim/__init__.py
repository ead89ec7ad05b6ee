"""Simulation: engines, scenes, tasks, randomization, experts and the vectorized environment."""

import os
import sys

# MuJoCo chooses its GL backend at import; only EGL works without a display. A user's own setting has priority.
if sys.platform == "linux":
    os.environ.setdefault("MUJOCO_GL", "egl")

_SWITCHES = ("0", "1", "off", "on", "false", "true", "disable", "disabled", "enable", "enabled")
_LIBRARIES = {"linux": ("egl", "osmesa", "glfw", "glx"), "darwin": ("cgl", "glfw"), "win32": ("wgl", "glfw")}
_available = _LIBRARIES.get(sys.platform, ("glfw",))
if (_chosen := os.environ.get("MUJOCO_GL", "").strip().lower()) and _chosen not in (*_available, *_SWITCHES):
    from robot_rl.util.errors import ConfigError

    raise ConfigError(f"MUJOCO_GL is {_chosen!r}; unset it, or set it to one of {', '.join(_available)}, or to off")
