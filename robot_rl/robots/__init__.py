"""Robots by name."""

from __future__ import annotations

from robot_rl.util.registry import Registry

robots = Registry(
    "robot",
    {
        "go2": ("robot_rl.robots.go2:GO2", "Unitree Go2, a quadruped with 12 joints"),
        "panda": ("robot_rl.robots.panda:PANDA", "Franka Emika Panda, 7 joints and a parallel gripper"),
        "ur5e": ("robot_rl.robots.ur5e:UR5E", "Universal Robots UR5e, 6 joints and a bare flange"),
    },
)
