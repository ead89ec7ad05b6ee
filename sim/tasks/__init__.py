"""Tasks by name."""

from __future__ import annotations

from robot_rl.registry import Registry

tasks = Registry("task", {"panda-lift": ("sim.tasks.panda_lift:TASK", "a Franka Panda lifts a cube from the table")})
