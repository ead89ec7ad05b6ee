"""Settings for ROS 2's build (colcon, ament_python) that pyproject.toml cannot provide.

The licence is here because Jazzy's setuptools takes no plain string for it in pyproject.toml, the version of
Python because colcon cannot read it there. pyproject.toml is among the data because `colcon build
--symlink-install` builds in a folder that holds nothing but what is named here.
"""

from glob import glob

from setuptools import setup

setup(
    license="Apache-2.0",
    python_requires=">=3.11,<3.14",
    data_files=[
        ("share/ament_index/resource_index/packages", ["resource/robot_rl"]),
        ("share/robot_rl", ["package.xml", "pyproject.toml"]),
        ("share/robot_rl/launch", sorted(glob("launch/*.launch.py"))),
    ],
)
