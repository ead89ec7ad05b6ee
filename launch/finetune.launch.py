"""Improve a policy on the robot: ros2 launch robot_rl finetune.launch.py policy:=runs/lift/bundle"""

from __future__ import annotations

from launch import LaunchDescription

from real.launching.launch_actions import launch_actions


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(launch_actions("finetune"))
