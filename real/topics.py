"""Topics of episodes and of a twin, besides the robot's own interface; and the one ROS parameter."""

from __future__ import annotations

RESET_TOPIC = "twin/reset"
"""std_msgs/String, JSON: `seed` of the episode for which a twin resets its objects, or a fallen robot."""
TRUTH_TOPIC = "twin/odom"
"""nav_msgs/Odometry: true motion of a twin's trunk, for tracking errors and falls."""
STALL_TOPIC = "twin/stall"
"""std_msgs/String, JSON: `seconds` for which a twin's process stood still, published when it goes on."""
EPISODE_TOPIC = "episode"
"""std_msgs/String, JSON: phase, number and instruction of the running episode, for operators, recorders and views."""
INSTRUCTION_TOPIC = "instruction"
"""std_msgs/String: what the robot is asked to do from now on, in words."""
JOINT_PREFIX = "joint_prefix"
"""ROS parameter: what the robot's driver puts before the names of joints and frames, such as fr3_ of Franka's, or the
tf_prefix of Universal Robots'."""
