"""Simulation: engines, scenes, tasks, randomization, experts and the vectorized environment."""

import os
import sys

# MuJoCo picks its GL backend at import; without a display only EGL works. A user's own choice wins.
if sys.platform == "linux":
    os.environ.setdefault("MUJOCO_GL", "egl")

_ON_OR_OFF = ("0", "1", "off", "on", "false", "true", "disable", "disabled", "enable", "enabled")
_KNOWN = ("egl", "osmesa", "glfw", "glx", "cgl", "wgl", *_ON_OR_OFF)
if (_backend := os.environ.get("MUJOCO_GL", "").strip().lower()) and _backend not in _KNOWN:
    from robot_rl.util.errors import UserError

    raise UserError(f"MUJOCO_GL is {_backend!r}; unset it, or set it to egl or osmesa")
