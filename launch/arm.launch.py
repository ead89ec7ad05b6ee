"""Run a policy on an arm: ros2 launch robot_rl arm.launch.py policy:=runs/lift/bundle robot:=panda"""

from functools import partial

from real.launching.launch_actions import launch_description

generate_launch_description = partial(launch_description, "arm")
