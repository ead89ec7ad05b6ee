"""Topics of episodes and of a twin, which are not part of a robot's own interface."""

from __future__ import annotations

RESET_TOPIC = "twin/reset"
"""std_msgs/String, JSON: `seed` of the episode before which a twin puts things, or a robot that fell, back."""
TRUTH_TOPIC = "twin/odom"
"""nav_msgs/Odometry: how a twin's trunk really moves, to measure how it follows commands and whether it fell."""
EPISODE_TOPIC = "episode"
"""std_msgs/String, JSON: phase and number of the running episode, for operators and recorders."""
