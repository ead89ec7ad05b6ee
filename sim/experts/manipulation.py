"""Demonstrators of the manipulation tasks: place, stack, insert and open."""

from dataclasses import replace

from robot_rl.interface.control import Controller
from robot_rl.interface.spec import VectorSpec
from sim.experts.lift import STEADY, Skill
from sim.experts.turn import CLUMSY
from sim.experts.waypoints import OPEN, SHUT, Waypoint, WaypointExpert

__all__ = ["CLUMSY", "STEADY", "insert", "open_drawer", "place", "stack"]
ABOVE = 0.12
"""Height of the tool above an object's centre for travelling, m."""


def _grasp(height: float) -> list[Waypoint]:
    """Return waypoints that grasp object 0 at `height`, m, above its centre."""
    at = (0.0, 0.0, height)
    return [
        Waypoint(0, (0.0, 0.0, ABOVE), OPEN), Waypoint(0, at, OPEN), Waypoint(0, at, SHUT, 5, fixed=True),
        Waypoint(0, (0.0, 0.0, ABOVE), SHUT, fixed=True, carries=True),
    ]  # fmt: skip


def _release(height: float, precise: float = 0.008) -> list[Waypoint]:
    """Return waypoints that put object 0 down with its centre at `height`, m, above the centre of object 1."""
    down = (0.0, 0.0, height)
    return [
        Waypoint(1, (0.0, 0.0, ABOVE), SHUT, carries=True, moves=True),
        Waypoint(1, down, SHUT, 2, carries=True, moves=True, near_by=precise),
        Waypoint(0, (0.0, 0.0, 0.0), OPEN, 4, fixed=True),
        Waypoint(1, (0.0, 0.0, ABOVE + 0.05), OPEN, 100, fixed=True),
    ]


def place(observations: VectorSpec, controller: Controller, num_envs: int, skill: Skill, seed: int) -> WaypointExpert:
    """Put the cube into the tray."""
    path = [*_grasp(0.005), *_release(0.03)]
    return WaypointExpert(observations, controller, num_envs, skill, seed, ("cube", "tray"), [path])


def stack(observations: VectorSpec, controller: Controller, num_envs: int, skill: Skill, seed: int) -> WaypointExpert:
    """Stack one cube on the other."""
    path = [*_grasp(0.005), *_release(0.043)]
    return WaypointExpert(observations, controller, num_envs, skill, seed, ("cube", "base"), [path])


def insert(observations: VectorSpec, controller: Controller, num_envs: int, skill: Skill, seed: int) -> WaypointExpert:
    """Insert the peg into the socket. The peg, not the tool, is steered, with a tenth of the skill's aiming error."""
    path = [
        *_grasp(0.015),
        Waypoint(1, (0.0, 0.0, 0.08), SHUT, carries=True, moves=True),
        Waypoint(1, (0.0, 0.0, 0.068), SHUT, 3, carries=True, moves=True, near_by=0.002, speed=0.4),
        Waypoint(1, (0.0, 0.0, 0.02), SHUT, 100, carries=True, moves=True, speed=0.15),
    ]
    skill = replace(skill, aim=skill.aim / 10)
    return WaypointExpert(observations, controller, num_envs, skill, seed, ("peg", "socket"), [path])


def open_drawer(
    observations: VectorSpec, controller: Controller, num_envs: int, skill: Skill, seed: int
) -> WaypointExpert:
    """Pull the drawer open by its handle; the goal stays ahead of the handle, which its slide guides."""
    path = [*_grasp(0.0)[:3], Waypoint(0, (-0.06, 0.0, 0.0), SHUT, 100, carries=True)]
    return WaypointExpert(observations, controller, num_envs, skill, seed, ("drawer_handle",), [path])
