"""Unitree Go2 with a payload stands when pushed: the contract of `go2-flat`, whose commands are all zero here."""

from dataclasses import replace

from sim.commands import CommandSchedule
from sim.tasks.go2_flat import TASK as WALK

_RANGES = {"payload.mass": (0.0, 8.0), "base.mass_scale": (0.85, 1.2), "push.speed": (0.0, 1.5)}
_WALKING = ("feet_air_time", "feet_clearance", "progress")
"""Reward terms of a walk."""

TASK = replace(
    WALK,
    interface=replace(WALK.interface, task="go2-stand", instruction="stand"),
    randomization=tuple(
        replace(r, low=_RANGES[r.parameter][0], high=_RANGES[r.parameter][1]) if r.parameter in _RANGES else r
        for r in WALK.randomization
    ),
    rewards=tuple(term for term in WALK.rewards if term.name not in _WALKING),
    commands=CommandSchedule(standing=1.0),
)
