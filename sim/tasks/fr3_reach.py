"""Franka Research 3 moves its tool to a target in the air: the task `ur5e-reach` within this arm's workspace."""

from dataclasses import replace

from robot_rl.interface.shield import ShieldConfig
from sim.randomization import Randomize
from sim.tasks.ur5e_reach import TASK as UR5E_REACH

_PLACES = (
    Randomize("target.x", 0.36, 0.62),
    Randomize("target.y", -0.25, 0.25),
    Randomize("target.z", 0.08, 0.40),
)
TASK = replace(
    UR5E_REACH,
    interface=replace(UR5E_REACH.interface, task="fr3-reach", robot="fr3", shield=ShieldConfig(acceleration=0.3)),
    scene=replace(UR5E_REACH.scene, timestep=0.005),
    randomization=(*_PLACES, *(r for r in UR5E_REACH.randomization if not r.parameter.startswith("target."))),
)
