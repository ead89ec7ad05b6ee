"""Record a person's demonstrations on an arm: ros2 launch robot_rl record.launch.py task:=panda-lift twin:=true"""

from functools import partial

from real.launching.launch_actions import launch_description

generate_launch_description = partial(launch_description, "record")
