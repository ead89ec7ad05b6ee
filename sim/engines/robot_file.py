"""Check a robot's model file for errors that engines ignore, for example negative masses and crossed limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from robot_rl.interface.robot import RobotSpec
from robot_rl.util.errors import ConfigError, nearest
from sim.engines.units import DEGREES, unit_advice
from sim.rendering.gl import mujoco

TOLERANCE = 1e-3
"""Tolerance for differences between joint limits of file and spec, rad: files contain rounded multiples of pi."""


class RobotFile(NamedTuple):
    """A robot's model file as normalized by `sim.engines.read_robot`."""

    spec: mujoco.MjSpec
    path: Path
    urdf: bool
    changes: tuple[Finding, ...] = ()
    """Findings about changes to the file and about elements that were left out."""


class Finding(NamedTuple):
    """Result of one check of a robot."""

    severity: Literal["ok", "warning", "error"]
    what: str
    """Checked property, for example "limits"."""
    found: str
    remedy: str = ""


def result(fits: bool, what: str, found: str, remedy: str, severity: Literal["warning", "error"] = "error") -> Finding:
    """Return the finding of a comparison; a remedy is given only if it does not fit."""
    return Finding("ok", what, found) if fits else Finding(severity, what, found, remedy)


def counted(things: Sequence[object], noun: str) -> str:
    """Return number and noun, for example "2 bodies"."""
    return f"{len(things)} {noun if len(things) == 1 else noun.replace('body', 'bodie') + 's'}"


@contextmanager
def compiling(path: Path) -> Iterator[None]:
    """Convert MuJoCo's compile errors to a ConfigError with file and remedy."""
    try:
        yield
    except ValueError as error:
        reason = " ".join(str(error).split())
        remedy = "do its meshes lie where it says?" if "opening" in reason else "correct the file"
        raise ConfigError(f"{path} does not compile: {reason}; {remedy}") from None


def check_robot_file(file: RobotFile, robot: RobotSpec) -> None:
    """Raise ConfigError for the first error in a file, if any."""
    for fault in faults(file, robot):
        raise ConfigError(f"{file.path}: {fault.found}; {fault.remedy}")


def faults(file: RobotFile, robot: RobotSpec) -> Iterator[Finding]:
    """Yield errors in a file: missing joints or bodies, and contradictions within the file or to the spec."""
    spec = file.spec
    fingers = robot.gripper.joints if robot.gripper else ()
    joints, wanted = {j.name for j in spec.joints}, {*robot.joint_names, *fingers}
    if missing := wanted - joints:
        others = joints - wanted - {""}
        hint = "fixed joints do not count"  # MuJoCo drops them
        if others:
            hint = f"{nearest(min(missing), others)}; if only the file names it so, set Joint.model_name"
        yield Finding("error", "joints", f"it lacks the joints {sorted(missing)} of robot {robot.name!r}", hint)
    bodies = {b.name for b in spec.bodies[1:]}
    needed = (robot.base.body, *robot.base.feet) if robot.base else ()
    if missing := {*needed, *robot.collision_bodies} - bodies:
        found = f"it lacks the bodies {sorted(missing)} of robot {robot.name!r}"
        yield Finding("error", "bodies", found, nearest(min(missing), bodies))
    if robot.base and (trunk := spec.body(robot.base.body)) is not None and trunk.parent.name != "world":
        found = f"the trunk {trunk.name!r} hangs on body {trunk.parent.name!r}, but must be the outermost body"
        yield Finding("error", "bodies", found, "name the outermost one in base.body, or take it out of the file")
    if spec.compiler.settotalmass > 0:
        found = "its compiler option settotalmass would also change the masses of the scene's objects"
        yield Finding("error", "masses", found, "scale the masses in the file instead")
    for body in spec.bodies[1:]:
        yield from _mass_faults(body, robot, file.urdf)
        yield from _place_faults(body)
    for joint in spec.joints:
        yield from _limit_faults(joint, robot, spec.compiler.degree)
    if not robot.compliant and not file.urdf:  # otherwise its actuators are replaced
        yield from _actuator_faults(spec, robot)


def _actuator_faults(spec: mujoco.MjSpec, robot: RobotSpec) -> Iterator[Finding]:
    """Yield errors of the actuators: each joint needs one position actuator without a gear, the gripper needs at least
    one actuator that takes positions."""
    joints = [a for a in spec.actuators if a.trntype == mujoco.mjtTrn.mjTRN_JOINT and a.target in robot.joint_names]
    servos, of = [a for a in joints if _is_servo(a)], f"of robot {robot.name!r}"
    if missing := [name for name in robot.joint_names if name not in [a.target for a in servos]]:
        yield Finding("error", "motors", f"no position actuator for the joints {missing} {of}", "add <position>s")
    doubled = sorted({a.target for a in joints if [b.target for b in joints].count(a.target) > 1})
    if doubled:
        yield Finding("error", "motors", f"several actuators for the joints {doubled} {of}", "leave one of each")
    if geared := [a.target for a in servos if a.gear[0] != 1]:
        found = f"the actuators of the joints {geared} {of} have a gear, and would take angles times that"
        yield Finding("error", "motors", found, "leave out gear, and scale kp, kv and forcerange")
    others = [a for a in spec.actuators if a not in joints]
    if robot.gripper and not others:
        found = f"no actuator for the gripper {of}, {list(robot.gripper.joints)}"
        yield Finding("error", "gripper", found, "add one")
    forced = [a.name for a in others if not (_is_affine(a) and a.biasprm[1] < 0 < a.ctrlrange[1])]
    if forced and robot.gripper:
        found = f"the gripper's actuators {forced} {of} take no position from 0 (closed) to a ctrlrange above (open)"
        yield Finding("error", "gripper", found, "make each a <position> with such a ctrlrange")
    if others and not robot.gripper:
        names = [a.name or a.target for a in others]
        yield Finding("error", "motors", f"the actuators {names} are nothing {of}", "take them out")


def _is_servo(actuator: mujoco.MjsActuator) -> bool:
    """Return whether an actuator applies the torque kp (command - position) - kd speed."""
    return bool(_is_affine(actuator) and actuator.gainprm[0] > 0 and actuator.biasprm[1] == -actuator.gainprm[0])


def _is_affine(actuator: mujoco.MjsActuator) -> bool:
    return actuator.biastype == mujoco.mjtBias.mjBIAS_AFFINE and actuator.gaintype == mujoco.mjtGain.mjGAIN_FIXED


def _mass_faults(body: mujoco.MjsBody, robot: RobotSpec, urdf: bool) -> Iterator[Finding]:
    masses = [body.mass] * bool(body.explicitinertial) + [g.mass for g in body.geoms if not math.isnan(g.mass)]
    if wrong := [mass for mass in masses if not 0 <= mass < math.inf]:
        yield Finding("error", "masses", f"body {body.name!r} has a mass of {wrong[0]:g} kg", "give it a positive one")
    trunk = bool(robot.base) and body.name == robot.base.body  # type: ignore[union-attr]
    # A link may get its mass from bodies fixed to it, but the trunk needs a mass of its own for randomization.
    if not (weighs(body, urdf) or (not trunk and fixed_weight(body, urdf))) and (trunk or len(body.joints)):
        remedy = "give its link an <inertial>" if urdf else "give it an <inertial>, or a shape with mass"
        yield Finding("error", "masses", f"body {body.name!r} moves and has no mass", remedy)
    if body.explicitinertial and clearly_negative(of := moments(body)):
        found = f"body {body.name!r} has an inertia with a negative principal moment, {of[0]:.2g} kg m^2"
        yield Finding("error", "masses", found, "correct its <inertial>")


def clearly_negative(moments: np.ndarray) -> bool:
    """Return whether the first of ascending moments of inertia (3,) is below 0 by more than rounding."""
    return bool(moments[0] < -1e-9 * abs(moments[2]))


def moments(body: mujoco.MjsBody) -> np.ndarray:
    """Return a body's principal moments of inertia (3,) in the file, kg m^2, in ascending order."""
    full = body.fullinertia
    xx, yy, zz, xy, xz, yz = full if np.isfinite(full).all() else (*body.inertia, 0.0, 0.0, 0.0)
    return np.linalg.eigvalsh(np.nan_to_num([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]))


def _place_faults(body: mujoco.MjsBody) -> Iterator[Finding]:
    frames = {"position": body.pos, "orientation": body.quat}
    if body.explicitinertial:  # otherwise these are NaN
        frames |= {"centre of mass": body.ipos, "frame of inertia": body.iquat, "inertia": body.inertia}
    for name, numbers in frames.items():
        if not np.isfinite(numbers).all():
            found = f"the {name} of body {body.name!r} is {' '.join(f'{x:g}' for x in numbers)}"
            yield Finding("error", "frames", found, "give it finite numbers")


def weighs(body: mujoco.MjsBody, urdf: bool) -> bool:
    """Return whether a body itself has mass; geoms of a URDF have no mass."""
    if body.explicitinertial:
        return bool(body.mass > 0)
    return not urdf and any(g.density > 0 if math.isnan(g.mass) else g.mass > 0 for g in body.geoms)


def fixed_weight(body: mujoco.MjsBody, urdf: bool) -> bool:
    """Return whether any body that is fixed to `body` has mass."""
    return any(not len(b.joints) and (weighs(b, urdf) or fixed_weight(b, urdf)) for b in body.bodies)


def _limit_faults(joint: mujoco.MjsJoint, robot: RobotSpec, degree: bool) -> Iterator[Finding]:
    if joint.name in robot.joint_names and joint.type != mujoco.mjtJoint.mjJNT_HINGE:
        found = f"joint {joint.name!r} does not turn, but robot {robot.name!r} gives it angles"
        yield Finding("error", "joints", found, "make it revolute (URDF) or a hinge (MJCF)")
    if robot.gripper and joint.name in robot.gripper.joints and joint.type != mujoco.mjtJoint.mjJNT_SLIDE:
        found = f"finger joint {joint.name!r} does not slide, but a gripper's width is a sum of positions in m"
        yield Finding("error", "gripper", found, "make it prismatic (URDF) or a slide (MJCF), or leave the gripper out")
    low, high = (float(x) for x in joint.range)
    if low > high:
        found = f"joint {joint.name!r} has its lower limit {low:g} above the upper {high:g}"
        yield Finding("error", "limits", found, "swap them")
    if joint.limited == mujoco.mjtLimited.mjLIMITED_FALSE or low >= high or joint.name not in robot.joint_names:
        return  # without limits in the file, those of the spec apply
    if degree and joint.type == mujoco.mjtJoint.mjJNT_HINGE:
        low, high = math.radians(low), math.radians(high)
    ours = robot.joints[robot.joint_names.index(joint.name)]
    if ours.low < low - TOLERANCE or ours.high > high + TOLERANCE:
        found = (
            f"joint {joint.name!r} reaches from {low:.4f} to {high:.4f} rad, but robot {robot.name!r} is said to reach "
            f"from {ours.low:.4f} to {ours.high:.4f}"
        )
        advice = unit_advice(ours.high - ours.low, high - low, DEGREES)
        yield Finding("error", "limits", found, f"{advice}correct the file, or narrow the robot's limits")
