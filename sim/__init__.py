"""Simulation: engines, scenes, tasks, randomization, experts and the vectorized environment."""

import os
import sys

# MuJoCo picks its GL backend at import; without a display only EGL works. A user's own choice wins.
if sys.platform == "linux":
    os.environ.setdefault("MUJOCO_GL", "egl")
