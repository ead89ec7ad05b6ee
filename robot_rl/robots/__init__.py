"""Robots by name."""

from __future__ import annotations

from robot_rl.registry import Registry

robots = Registry(
    "robot", {"panda": ("robot_rl.robots.panda:PANDA", "Franka Emika Panda, 7 joints and a parallel gripper")}
)
