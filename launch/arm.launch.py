"""Run a policy on an arm: ros2 launch robot_rl arm.launch.py policy:=runs/lift/bundle robot:=panda"""

from __future__ import annotations

from launch import LaunchDescription

from real.launching.launch_actions import launch_actions


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(launch_actions("arm"))
