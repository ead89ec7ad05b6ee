"""Record a person's demonstrations: ros2 launch robot_rl record.launch.py task:=panda-lift twin:=true"""

from __future__ import annotations

from launch import LaunchDescription

from real.launching.launch_actions import launch_actions


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(launch_actions("record"))
