"""Find errors in a robot's model file that engines ignore, such as negative masses and crossed limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from robot_rl.interface.spec import RobotSpec
from robot_rl.util.errors import ConfigError, nearest
from sim.gl import mujoco

TOLERANCE = 1e-3
"""Tolerance between limits of file and spec, rad: files round pi."""


class Finding(NamedTuple):
    """Result of one check of a robot."""

    severity: Literal["ok", "warning", "error"]
    what: str
    """What was checked, for example "limits"."""
    found: str
    remedy: str = ""


def check_robot_file(spec: mujoco.MjSpec, robot: RobotSpec, path: Path) -> None:
    """Raise ConfigError for a file that lacks the robot's joints or bodies, or contradicts itself or the spec."""
    for fault in faults(spec, robot, path):
        raise ConfigError(f"{path}: {fault.found}; {fault.remedy}")


def faults(spec: mujoco.MjSpec, robot: RobotSpec, path: Path) -> Iterator[Finding]:
    """Yield the errors in a file whose joints have the driver's names."""
    fingers = robot.gripper.joints if robot.gripper else ()
    joints, wanted = {j.name for j in spec.joints}, {*robot.joint_names, *fingers}
    if missing := wanted - joints:
        others = joints - wanted - {""}
        # MuJoCo drops fixed joints, and renames the second joint of a name.
        hint = nearest(min(missing), others) if others else "fixed joints, and second joints of a name, do not count"
        yield Finding("error", "joints", f"it lacks the joints {sorted(missing)} of robot {robot.name!r}", hint)
    bodies = {b.name for b in spec.bodies[1:]}
    own = (robot.base.body, *robot.base.feet) if robot.base else ()
    if missing := {*own, *robot.collision_bodies} - bodies:
        found = f"it lacks the bodies {sorted(missing)} of robot {robot.name!r}"
        yield Finding("error", "bodies", found, nearest(min(missing), bodies))
    for body in spec.bodies[1:]:
        yield from _mass_faults(body, robot, path)
        yield from _place_faults(body)
    for joint in spec.joints:
        yield from _limit_faults(joint, robot, spec.compiler.degree)
    if not robot.compliant and path.suffix != ".urdf":  # or the file's actuators are not used
        yield from _actuator_faults(spec, robot)


def _actuator_faults(spec: mujoco.MjSpec, robot: RobotSpec) -> Iterator[Finding]:
    """Yield errors of the actuators: each joint needs a position actuator without a gear, the gripper any."""
    own = [a for a in spec.actuators if a.trntype == mujoco.mjtTrn.mjTRN_JOINT and a.target in robot.joint_names]
    servos, of = [a for a in own if _servo(a)], f"of robot {robot.name!r}"
    if missing := [name for name in robot.joint_names if name not in [a.target for a in servos]]:
        yield Finding("error", "motors", f"no position actuator for the joints {missing} {of}", "add <position>s")
    doubled = sorted({a.target for a in own if [b.target for b in own].count(a.target) > 1})
    if doubled:
        yield Finding("error", "motors", f"several actuators for the joints {doubled} {of}", "leave one of each")
    if geared := [a.target for a in servos if a.gear[0] != 1]:
        found = f"the actuators of the joints {geared} {of} have a gear, and would take angles times that"
        yield Finding("error", "motors", found, "leave out gear, and scale kp, kv and forcerange")
    others = [a.name or a.target for a in spec.actuators if a not in own]
    if robot.gripper and not others:
        found = f"no actuator for the gripper {of}, {list(robot.gripper.joints)}"
        yield Finding("error", "gripper", found, "add one")
    if others and not robot.gripper:
        yield Finding("error", "motors", f"the actuators {others} are nothing {of}", "take them out")


def _servo(actuator: mujoco.MjsActuator) -> bool:
    """torque = kp (command - position) - kd speed"""
    affine = actuator.biastype == mujoco.mjtBias.mjBIAS_AFFINE and actuator.gaintype == mujoco.mjtGain.mjGAIN_FIXED
    return bool(affine and actuator.gainprm[0] > 0 and actuator.biasprm[1] == -actuator.gainprm[0])


def _mass_faults(body: mujoco.MjsBody, robot: RobotSpec, path: Path) -> Iterator[Finding]:
    said = [body.mass] * bool(body.explicitinertial) + [g.mass for g in body.geoms if not math.isnan(g.mass)]
    if wrong := [mass for mass in said if not 0 <= mass < math.inf]:
        yield Finding("error", "masses", f"body {body.name!r} has a mass of {wrong[0]:g} kg", "give it a positive one")
    trunk = bool(robot.base) and body.name == robot.base.body  # type: ignore[union-attr]
    # Fixed bodies add to their link's mass; randomization scales the trunk's own mass.
    if not (_weighs(body, path) or (not trunk and _fixed_weight(body, path))) and (trunk or len(body.joints)):
        yield Finding("error", "masses", f"body {body.name!r} moves and has no mass", "give it a positive one")


def _place_faults(body: mujoco.MjsBody) -> Iterator[Finding]:
    places = {"position": body.pos, "orientation": body.quat}
    if body.explicitinertial:  # otherwise unset values are NaN
        places |= {"centre of mass": body.ipos, "frame of inertia": body.iquat, "inertia": body.inertia}
    for name, numbers in places.items():
        if not np.isfinite(numbers).all():
            found = f"the {name} of body {body.name!r} is {_listed(numbers)}"
            yield Finding("error", "frames", found, "give it finite numbers")


def _listed(numbers: Sequence[float]) -> str:
    return " ".join(f"{x:g}" for x in numbers)


def _weighs(body: mujoco.MjsBody, path: Path) -> bool:
    if body.explicitinertial:
        return bool(body.mass > 0)
    from_shapes = path.suffix != ".urdf"
    return from_shapes and any(g.density > 0 if math.isnan(g.mass) else g.mass > 0 for g in body.geoms)


def _fixed_weight(body: mujoco.MjsBody, path: Path) -> bool:
    return any(not len(b.joints) and (_weighs(b, path) or _fixed_weight(b, path)) for b in body.bodies)


def _limit_faults(joint: mujoco.MjsJoint, robot: RobotSpec, degree: bool) -> Iterator[Finding]:
    if joint.name in robot.joint_names and joint.type != mujoco.mjtJoint.mjJNT_HINGE:
        found = f"joint {joint.name!r} does not turn, but robot {robot.name!r} gives it angles"
        yield Finding("error", "joints", found, "make it revolute (URDF) or a hinge (MJCF)")
    low, high = (float(x) for x in joint.range)
    if low > high:
        found = f"joint {joint.name!r} has its lower limit {low:g} above the upper {high:g}"
        yield Finding("error", "limits", found, "swap them")
    if joint.limited == mujoco.mjtLimited.mjLIMITED_FALSE or low >= high or joint.name not in robot.joint_names:
        return  # a joint that turns freely in the file is held by the spec
    if degree and joint.type == mujoco.mjtJoint.mjJNT_HINGE:
        low, high = math.radians(low), math.radians(high)
    own = robot.joints[robot.joint_names.index(joint.name)]
    if own.low < low - TOLERANCE or own.high > high + TOLERANCE:
        found = (
            f"joint {joint.name!r} reaches from {low:.4f} to {high:.4f} rad, but robot {robot.name!r} is said to reach "
            f"from {own.low:.4f} to {own.high:.4f}"
        )
        yield Finding("error", "limits", found, "correct the file, or narrow the robot's limits")
