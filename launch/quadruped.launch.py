"""Run a policy on a legged robot: ros2 launch robot_rl quadruped.launch.py policy:=runs/walk/bundle robot:=go2"""

from functools import partial

from real.launching.launch_actions import launch_description

generate_launch_description = partial(launch_description, "quadruped")
