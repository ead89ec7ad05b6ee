"""Start a simulated robot on the real robot's topics: ros2 launch robot_rl twin.launch.py robot:=panda"""

from functools import partial

from real.launching.launch_actions import launch_description

generate_launch_description = partial(launch_description, "twin")
