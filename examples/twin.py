"""Run a bundle on the simulated twin, over ROS 2 topics."""

import subprocess

from policies.bundle import load_bundle
from real.bus import open_node
from real.episode.env import RobotEnv
from robot_rl.evaluation import evaluate

twin = subprocess.Popen(["robot-rl", "twin", "panda", "--no-camera"])
bundle = load_bundle("runs/clone")
try:
    with open_node("example") as node:
        env = RobotEnv(node, bundle.interface)
        env.activate()  # from now on the robot gets commands
        print(evaluate(bundle.policy, env, episodes=2, seed=0).summary())
        env.close()
finally:
    twin.terminate()
