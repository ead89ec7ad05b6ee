"""robot-rl: train in simulation, deploy over ROS 2, intervene while it learns."""

__version__ = "0.1.0"
