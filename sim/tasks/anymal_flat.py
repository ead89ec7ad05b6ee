"""ANYmal C tracks velocity commands on flat ground without a scripted gait: the task `go2-flat` on a heavier robot."""

from dataclasses import replace

from sim.tasks.go2_flat import TASK as GO2_FLAT

_WEIGHTS = {"joint_torque": -1e-5, "joint_power": -2e-4}
"""Weights of reward terms that grow with the robot's mass, 3.3 times that of a Go2."""
_RANGES = {"base.mass_scale": (0.9, 1.5), "payload.mass": (0.0, 5.0), "robot.joint_friction": (0.0, 1.0)}

TASK = replace(
    GO2_FLAT,
    expert="",  # its trot is made for the legs of a Go2
    interface=replace(GO2_FLAT.interface, task="anymal-flat", robot="anymal_c", failure="fallen:60:0.3"),
    randomization=tuple(
        replace(r, low=_RANGES[r.parameter][0], high=_RANGES[r.parameter][1]) if r.parameter in _RANGES else r
        for r in GO2_FLAT.randomization
    ),
    rewards=tuple(replace(term, weight=_WEIGHTS.get(term.name, term.weight)) for term in GO2_FLAT.rewards),
)
