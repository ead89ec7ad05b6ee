"""Record demonstrations, clone them, and measure the clone. Every command is a dataclass: its flags are the fields."""

from pathlib import Path

from robot_rl.cli.collect import Collect
from robot_rl.cli.evaluate import Evaluate
from robot_rl.cli.train import Train
from robot_rl.recipes.bc import BC
from robot_rl.training.supervised import SupervisedConfig

Collect("panda-lift", episodes=10, image_size=0).run()
recipe = BC(training=SupervisedConfig(updates=200))
Train(recipe, "panda-lift", recipe="bc", out=Path("runs/clone")).run()
Evaluate((Path("runs/clone"),), episodes=20, num_envs=20).run()
