"""What ROS 2's build (colcon, ament_python) needs beside pyproject.toml, which describes everything else."""

from __future__ import annotations

from glob import glob

from setuptools import setup

setup(
    data_files=[
        ("share/ament_index/resource_index/packages", ["resource/robot_rl"]),
        ("share/robot_rl", ["package.xml"]),
        ("share/robot_rl/launch", sorted(glob("launch/*.launch.py"))),
    ],
)
