"""Demonstrator that executes language instructions, from the true poses of all objects.

Each instruction is a sequence of waypoints, which restarts when the instruction changes.
"""

from robot_rl.interface.control import Controller
from robot_rl.interface.spec import VectorSpec
from sim.experts.lift import Skill
from sim.experts.turn import CLUMSY, STEADY
from sim.experts.waypoints import OPEN, SHUT, Waypoint, WaypointExpert
from sim.tasks.tabletop import TASK

__all__ = ["CLUMSY", "STEADY", "TabletopExpert"]
SAFE, DEEP = 0.12, 0.005
"""Heights of the tool above an object's centre for travelling and for grasping, m."""


def waypoints(success: str) -> list[Waypoint]:
    """Return waypoints that satisfy a success test of the task."""
    names = [o.name for o in TASK.scene.objects]
    verb, name, *rest = success.split(":")
    k = names.index(name)
    above, at = Waypoint(k, (0, 0, SAFE), OPEN), Waypoint(k, (0, 0, DEEP), OPEN)
    shut = Waypoint(k, (0, 0, DEEP), SHUT, 5, fixed=True)
    grasp = [above, at, shut, Waypoint(k, (0, 0, SAFE), SHUT, fixed=True, carries=True)]
    if verb == "reached":
        return [Waypoint(k, (0, 0, SAFE), SHUT), Waypoint(k, (0, 0, 0.02), SHUT, 100)]
    if verb == "lifted":
        return [*grasp[:3], Waypoint(k, (0, 0, 0.14), SHUT, 100, fixed=True, carries=True)]
    if verb == "beyond":
        side = 1 if float(rest[0]) > 0 else -1
        push = Waypoint(k, (0, side * 0.5, 0.012), SHUT, 100, carries=True)
        return [above, at, Waypoint(k, (0, 0, DEEP), SHUT, 4, fixed=True), push]
    other = names.index(rest[0])
    away = (0.0, 0.0) if verb == "inside" else (0.062, 0.0)
    low = 0.035 if verb == "inside" else 0.012
    carried = [Waypoint(other, (*away, z), SHUT, fixed=True, carries=True) for z in (SAFE + 0.02, low)]
    freed = [Waypoint(other, (*away, z), OPEN, hold, fixed=True) for z, hold in ((0.035, 4), (SAFE, 100))]
    return [*grasp, *carried, *freed]


class TabletopExpert(WaypointExpert):
    """Follow the waypoints of each environment's instruction."""

    def __init__(self, observations: VectorSpec, controller: Controller, num_envs: int, skill: Skill, seed: int = 0):
        names = [o.name for o in TASK.scene.objects]
        paths = [waypoints(each.success) for each in TASK.interface.instructions]
        super().__init__(observations, controller, num_envs, skill, seed, names, paths)
