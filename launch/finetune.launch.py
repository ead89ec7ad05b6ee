"""Improve a policy on the robot: ros2 launch robot_rl finetune.launch.py policy:=runs/lift/bundle"""

from functools import partial

from real.launching.launch_actions import launch_description

generate_launch_description = partial(launch_description, "finetune")
