"""Name what a robot's model file has beyond its spec, and what simulation does with it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from robot_rl.interface.robot import RobotSpec
from sim.engines.feet import collides
from sim.engines.read_robot import driven_joints
from sim.engines.robot_file import Finding, RobotFile, counted, moments, weighs
from sim.rendering.gl import mujoco

_IGNORED = ("gravity", "wind", "density", "viscosity", "disableflags", "enableflags")
"""Physics options that change how a robot moves; those of the solver are left out."""


def extras(file: RobotFile, robot: RobotSpec) -> Iterator[Finding]:
    """Yield what the file has that the spec does not mention."""
    yield from file.changes
    spec, bodies = file.spec, file.spec.bodies[1:]
    driven = driven_joints(spec, robot)
    if idle := [joint.name or f"of body {joint.parent.name}" for joint in spec.joints if joint.name not in driven]:
        found = f"{counted(idle, 'joint')} nobody drives: {', '.join(idle)}"
        remedy = "they swing freely: make them fixed in the file, or list fingers in gripper.joints"
        yield Finding("warning", "joints", found, remedy)
    if through := [b.name for b in bodies if collides(b) and b.name not in (robot.collision_bodies or [b.name])]:
        found = f"{counted(through, 'body')} not in collision_bodies, which pass through everything: "
        yield Finding("ok", "collisions", found + ", ".join(through))
    if hollow := [b.name for b in bodies if b.name in robot.collision_bodies and not collides(b)]:
        found = f"{', '.join(hollow)} of collision_bodies have no shape that collides"
        yield Finding("warning", "collisions", found, "give them one in the file, or take them out of collision_bodies")
    if light := [b.name for b in bodies if not weighs(b, file.urdf)]:
        yield Finding("ok", "masses", f"{counted(light, 'body')} without a mass: {', '.join(light)}")
    carried = [b.name for b in bodies if b.gravcomp]
    if wrong := [b.name for b in bodies if b.explicitinertial and moments(b)[:2].sum() < moments(b)[2]]:
        found = f"no body can have the inertia of {', '.join(wrong)}: two moments are less than the third"
        yield Finding("warning", "masses", found, "correct them in the file; simulation uses the mean of the three")
    if robot.base and carried:
        found = f"the file compensates the weight of {', '.join(carried)}; simulation compensates none"
        yield Finding("warning", "weight", found, "nothing, if the robot has no such compensation")
    elif not robot.base:
        found = f"simulation compensates that of all {len(bodies)} bodies, the file of {len(carried)}"
        yield Finding("ok", "weight", found)
    if spec.cameras:
        found = f"a scene brings its own; of the file: {', '.join(c.name for c in spec.cameras)}"
        yield Finding("ok", "cameras", found)
    default = mujoco.MjSpec().option
    if own := [o for o in _IGNORED if not np.array_equal(getattr(spec.option, o), getattr(default, o))]:
        found = f"the file's options are not used, and it sets {', '.join(own)}"
        yield Finding("warning", "physics", found, "nothing, if the robot lives on earth, in air")
