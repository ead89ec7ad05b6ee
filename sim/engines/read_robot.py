"""Read a manufacturer's model file and normalize it for the engines.

Joints and trunk get the spec's names, and every foot becomes a body with its own geom. Keyframes, sensors, ground
planes and the joints of the base are removed, since the simulation adds its own.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.interface.robot import FloatingBase, RobotSpec
from robot_rl.util.errors import ConfigError
from sim.engines.feet import UPRIGHT, inverse, separate_feet, turn
from sim.engines.robot_file import (
    Finding,
    RobotFile,
    clearly_negative,
    compiling,
    counted,
    fixed_weight,
    moments,
    weighs,
)
from sim.engines.urdf import is_urdf, read_urdf, refuse_xacro
from sim.rendering.gl import mujoco
from sim.scenes import robot_model


def read_robot_file(robot: RobotSpec, mjcf: str = "") -> RobotFile:
    """Return the robot's normalized model file, not checked against the spec; raise ConfigError if it is unreadable."""
    path = robot_model(robot, mjcf)
    try:
        spec, urdf, undrawn = open_model(path)
        for elements in (spec.bodies, spec.joints, spec.geoms, spec.sites, spec.cameras, spec.actuators):
            [element.name for element in elements]  # raises for a name that is not UTF-8
        changes = list(_normalize(spec, robot, path, urdf))
    except UnicodeDecodeError:
        raise ConfigError(f"{path} has names that are not UTF-8; save the file as UTF-8") from None
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} is not a readable MJCF or URDF file: {reason}; correct it") from None
    if undrawn:
        shown = f"visual meshes that cannot be drawn, so collision shapes are: {', '.join(dict.fromkeys(undrawn))}"
        changes.append(Finding("ok", "looks", shown, "to see them, put them there as .obj, .stl or .msh"))
    return RobotFile(spec, path, urdf, tuple(changes))


def open_model(path: Path) -> tuple[mujoco.MjSpec, bool, list[str]]:
    """Return a file's model, whether it is a URDF, and the visual meshes that cannot be drawn. Raises ConfigError, or
    ValueError with the reason."""
    refuse_xacro(path)
    urdf, undrawn = is_urdf(path), list[str]()
    if urdf:
        spec, undrawn = read_urdf(path)
    else:
        spec = mujoco.MjSpec.from_file(str(path))
    spec.compiler.fusestatic = False  # keep feet as separate bodies
    spec.compiler.discardvisual = False  # keep visual geoms
    spec.compiler.balanceinertia = True  # repair impossible inertias, often of small sensors
    for body in spec.bodies[1:]:  # a moment of 0 that was rounded below it, of a plate, which MuJoCo refuses
        if body.explicitinertial and (of := moments(body))[0] <= 0 and not clearly_negative(of):
            body.fullinertia[:3] += 1e-6 * of[2]
    return spec, urdf, undrawn


def root_body(spec: mujoco.MjSpec, robot: RobotSpec) -> mujoco.MjsBody | None:
    """Return the child of the world that carries the robot's joints; None if the file has none of these joints."""
    joint = next((j for j in map(spec.joint, robot.joint_names) if j is not None), None)
    body = None if joint is None else joint.parent
    while body is not None and body.parent.name != "world":
        body = body.parent
    return body


def driven_joints(spec: mujoco.MjSpec, robot: RobotSpec) -> set[str]:
    """Return the joints that follow commands: the spec's joints, and joints that the file couples to the spec's."""
    equalities = [e for e in spec.equalities if e.type == mujoco.mjtEq.mjEQ_JOINT]
    driven = {*robot.joint_names, *(robot.gripper.joints if robot.gripper else ())}
    driven |= {e.name1 for e in equalities if not e.name2}  # held in place
    pairs = [{e.name1, e.name2} for e in equalities if e.name2]
    pairs += [
        {wrap.target.name for wrap in tendon.path if isinstance(wrap.target, mujoco.MjsJoint)}
        for tendon in spec.tendons
        if any(a.trntype == mujoco.mjtTrn.mjTRN_TENDON and a.target == tendon.name for a in spec.actuators)
    ]
    while more := {name for pair in pairs if pair & driven for name in pair} - driven:
        driven |= more
    return driven


def _normalize(spec: mujoco.MjSpec, robot: RobotSpec, path: Path, urdf: bool) -> Iterator[Finding]:
    """Normalize a model in place; yield a finding for each change."""
    _name_joints(spec, robot)
    if robot.base:
        yield from _name_trunk(spec, robot.base)
    planes = [g for g in spec.worldbody.geoms if g.type == mujoco.mjtGeom.mjGEOM_PLANE]
    dropped = {
        "keyframe": list(spec.keys), "sensor": list(spec.sensors),
        "actuator": list(spec.actuators) if robot.compliant or urdf else [],
        "ground plane": planes,
        "contact pair": [p for p in spec.pairs if {p.geomname1, p.geomname2} & {g.name for g in planes}],
        "joint of the base": _base_joints(spec, robot),
    }  # fmt: skip
    for elements in dropped.values():
        for element in elements:
            spec.delete(element)
    if left := [counted(elements, kind) for kind, elements in dropped.items() if elements]:
        yield Finding("ok", "left out", f"{', '.join(left)} of the file; simulation has its own")
    yield from _weld_weightless(spec, robot, urdf)
    yield from _place_base(spec, robot, path)
    if robot.base:
        yield from separate_feet(spec, robot.base, path)


def _name_joints(spec: mujoco.MjSpec, robot: RobotSpec) -> None:
    """Rename the joints, also where other elements refer to them, to the names that the robot's driver uses."""
    driver = {j.model_name: j.name for j in robot.joints if j.model_name}
    _rename(driver, spec.joints, "name")
    _rename(driver, [a for a in spec.actuators if a.trntype == mujoco.mjtTrn.mjTRN_JOINT], "target")
    _rename(driver, [e for e in spec.equalities if e.type == mujoco.mjtEq.mjEQ_JOINT], "name1", "name2")


def _name_trunk(spec: mujoco.MjSpec, base: FloatingBase) -> Iterator[Finding]:
    """Rename the trunk from one of its aliases to its name in the spec."""
    alias = next((name for name in base.aliases if spec.body(name) is not None), "")
    if alias and spec.body(base.body) is None:
        names = {alias: base.body}
        _rename(names, spec.bodies[1:], "name")
        _rename(names, spec.excludes, "bodyname1", "bodyname2")
        _rename(names, [e for e in spec.equalities if e.type != mujoco.mjtEq.mjEQ_JOINT], "name1", "name2")
        _rename(names, [*spec.cameras, *spec.lights], "targetbody")
        yield Finding("ok", "bodies", f"{alias!r} is the trunk, {base.body!r} in the spec")


def _rename(names: dict[str, str], elements: Iterable[Any], *attributes: str) -> None:
    for element in elements:
        for attribute in attributes:
            if (new := names.get(getattr(element, attribute))) is not None:
                setattr(element, attribute, new)


def _base_joints(spec: mujoco.MjSpec, robot: RobotSpec) -> list[mujoco.MjsJoint]:
    """Return the joints between world and base, which the spec replaces."""
    root = spec.body(robot.base.body) if robot.base else root_body(spec, robot)
    kinds = (mujoco.mjtJoint.mjJNT_FREE,) if robot.base is None else tuple(mujoco.mjtJoint.__members__.values())
    return [j for j in (root.joints if root else ()) if j.type in kinds and j.name not in robot.joint_names]


def _weld_weightless(spec: mujoco.MjSpec, robot: RobotSpec, urdf: bool) -> Iterator[Finding]:
    """Weld massless links that no command drives and that carry no mass: engines cannot simulate such links."""
    driven, welded = driven_joints(spec, robot), []
    for body in reversed(spec.bodies[1:]):  # from the tips inwards: a massless link may carry others
        alone = all(len(b.joints) == 0 for b in body.find_all("body"))
        free = len(body.joints) and not any(j.name in driven for j in body.joints)
        if free and alone and not weighs(body, urdf) and not fixed_weight(body, urdf):
            welded += [j.name or f"of body {body.name}" for j in body.joints]
            for joint in list(body.joints):
                spec.delete(joint)
    for equality in list(spec.equalities):
        if {equality.name1, equality.name2} & set(welded):
            spec.delete(equality)
    if welded:
        shown = f"joints that only move links without mass, fixed here: {', '.join(welded)}"
        yield Finding("warning", "masses", shown, "give these links an <inertial> if they should move")


def _place_base(spec: mujoco.MjSpec, robot: RobotSpec, path: Path) -> Iterator[Finding]:
    """Move the root body of a fixed robot to the origin, with its surroundings, or a trunk to the spec's height."""
    root = spec.body(robot.base.body) if robot.base else root_body(spec, robot)
    if root is None or root.parent.name != "world":
        return
    world = spec.worldbody
    others = [e for e in (*world.bodies, *world.geoms, *world.sites, *world.cameras) if e != root]
    turned = root.frame is not None or root.alt.type != mujoco.mjtOrientation.mjORIENTATION_QUAT
    if not robot.base and others and (turned or np.any(root.pos) or not np.array_equal(root.quat, UPRIGHT)):
        with compiling(path):
            model = spec.compile()
        body = model.body(root.id)
        around = world.add_frame(pos=turn(-body.pos, inverse(body.quat)), quat=inverse(body.quat))
        outermost: list[Any] = []
        for element in others:
            while element.frame is not None:
                element = element.frame
            if element not in outermost:
                outermost.append(element)
        for element in outermost:
            element.set_frame(around)
        shown = " ".join(f"{x:g}" for x in body.pos)
        yield Finding("ok", "base", f"the file has it at {shown} m; all of the file is moved to have it at the origin")
    root.pos, root.quat = [0, 0, robot.base.height if robot.base else 0], [1, 0, 0, 0]
    root.alt.type = mujoco.mjtOrientation.mjORIENTATION_QUAT
    if root.frame is not None:
        root.set_frame(world.add_frame())
