"""Franka Research 3 lifts a cube from the table: the task `panda-lift` on its successor."""

from dataclasses import replace

from sim.tasks.panda_lift import TASK as PANDA_LIFT

TASK = replace(PANDA_LIFT, interface=replace(PANDA_LIFT.interface, task="fr3-lift", robot="fr3"))
