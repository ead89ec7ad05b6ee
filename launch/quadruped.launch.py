"""Run a policy on a robot that walks: ros2 launch robot_rl quadruped.launch.py policy:=runs/walk/bundle robot:=go2"""

from __future__ import annotations

from launch import LaunchDescription

from real.launching.launch_actions import launch_actions


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(launch_actions("quadruped"))
