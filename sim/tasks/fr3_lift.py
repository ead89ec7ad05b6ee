"""Franka Research 3 lifts a cube from the table: the task `panda-lift` on its successor."""

from dataclasses import replace

from robot_rl.interface.shield import ShieldConfig
from sim.tasks.panda_lift import TASK as PANDA_LIFT

SHIELD = ShieldConfig(acceleration=0.5)
"""Limits below those of the process that moves the arm; see `FrankaControl.acceleration`."""
TASK = replace(PANDA_LIFT, interface=replace(PANDA_LIFT.interface, task="fr3-lift", robot="fr3", shield=SHIELD))
