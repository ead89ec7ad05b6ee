"""Franka Research 3: the manipulation tasks of the Panda on its successor."""

from dataclasses import replace

from robot_rl.interface.shield import ShieldConfig
from sim.tasks.base import Task
from sim.tasks.panda_lift import TASK as PANDA_LIFT
from sim.tasks.panda_place import STACK as PANDA_STACK
from sim.tasks.panda_place import TASK as PANDA_PLACE
from sim.tasks.panda_push import TASK as PANDA_PUSH

SHIELD = ShieldConfig(acceleration=0.5)
"""Limits below those of the process that moves the arm; see `FrankaControl.acceleration`."""


def _on_fr3(task: Task) -> Task:
    name = task.name.replace("panda", "fr3")
    return replace(task, interface=replace(task.interface, task=name, robot="fr3", shield=SHIELD))


TASK, PLACE, STACK, PUSH = map(_on_fr3, (PANDA_LIFT, PANDA_PLACE, PANDA_STACK, PANDA_PUSH))
