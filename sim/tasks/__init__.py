"""Tasks by name."""

from __future__ import annotations

from robot_rl.registry import Registry

tasks = Registry(
    "task",
    {
        "go2-velocity": ("sim.tasks.go2_velocity:TASK", "a Unitree Go2 walks on flat ground as it is told"),
        "panda-lift": ("sim.tasks.panda_lift:TASK", "a Franka Panda lifts a cube from the table"),
        "ur5e-reach": ("sim.tasks.ur5e_reach:TASK", "a Universal Robots UR5e brings its flange to a target"),
    },
)
