"""Start a simulated robot behind the robot's own topics: ros2 launch robot_rl twin.launch.py robot:=panda"""

from __future__ import annotations

from launch import LaunchDescription

from real.launching.launch_actions import launch_actions


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(launch_actions("twin"))
