"""Topics of episodes and twins besides the robot's own interface, and the ROS parameter of joint names."""

from __future__ import annotations

RESET_TOPIC = "twin/reset"
"""std_msgs/String, JSON: `seed` of the episode for which a twin resets its objects or a fallen robot."""
TRUTH_TOPIC = "twin/odom"
"""nav_msgs/Odometry: true motion of a twin's trunk, for tracking errors and falls."""
STALL_TOPIC = "twin/stall"
"""std_msgs/String, JSON: `seconds` for which a twin's process stalled, published when it resumes."""
EPISODE_TOPIC = "episode"
"""std_msgs/String, JSON: phase, number and instruction of the running episode, for operators, recorders and viewers."""
INSTRUCTION_TOPIC = "instruction"
"""std_msgs/String: the robot's new language instruction."""
JOINT_PREFIX = "joint_prefix"
"""ROS parameter: prefix of the driver's joint and frame names, such as fr3_, or Universal Robots' tf_prefix."""
