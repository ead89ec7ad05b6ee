"""Compare a robot's spec with its model file and report differences."""

import math
from collections.abc import Iterator

import numpy as np
import torch

from robot_rl.interface.driver import JointTopics
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.robot import RobotSpec
from robot_rl.util.errors import UserError
from sim.engines.feet import collides
from sim.engines.limit_check import check_rates, compare_efforts, compare_limits, compare_speeds
from sim.engines.model import compile_model, foot_shapes
from sim.engines.mujoco import MujocoEngine
from sim.engines.read_robot import driven_joints, read_robot_file
from sim.engines.robot_file import Finding, RobotFile, counted, faults, moments, result, weighs
from sim.engines.units import MILLI, length_advice, unit_advice
from sim.rendering.gl import mujoco
from sim.scenes import Scene

NEAR, TURNED = 1e-3, 5e-3
"""Maximum difference between frames of spec and file, m and rad."""
SOLE_GAP, SOLE_FAR = 0.01, 0.05
"""Distances between a foot's sole and the ground at home, m, above which a warning and an error are reported."""
DRIFT = 0.02
"""Maximum joint deviation of a stiff robot from the home posture after holding that posture for 1 s, rad."""
_IGNORED = ("gravity", "wind", "density", "viscosity", "disableflags", "enableflags")
"""Physics options that affect motion, unlike solver options. Simulation ignores a file's values of these options."""


def check_robot(robot: RobotSpec, mjcf: str = "") -> list[Finding]:
    """Return the differences between a valid spec and its model file, errors first."""
    try:
        file = read_robot_file(robot, mjcf)
    except UserError as error:
        return [Finding("error", "file", str(error))]
    findings = [*faults(file, robot), *file.changes, *_extras(file, robot)]
    if not any(f.severity == "error" for f in findings):
        findings += [*compare_speeds(file, robot), *compare_efforts(file.spec, robot)]
        period = 1 / robot.command_rate
        scene = Scene(timestep=period / math.ceil(period / 0.005))
        try:
            model = compile_model(robot, scene, mjcf)
            findings += [Finding("ok", "file", f"{file.path} compiles")]
            findings += _compare(model, robot) + list(_check_motion(robot, scene, mjcf))
        except UserError as error:
            findings.append(Finding("error", "file", str(error)))
    findings += [*_driver(robot), *check_rates(robot)]
    return sorted(findings, key=lambda f: ("error", "warning", "ok").index(f.severity))


def _extras(file: RobotFile, robot: RobotSpec) -> Iterator[Finding]:
    """Report elements of the file that the spec does not mention, and their treatment in simulation."""
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


def _driver(robot: RobotSpec) -> Iterator[Finding]:
    """Report the joint names that the robot's driver must use; no model file contains these names. Report
    joints without the limit that the driver needs."""
    if robot.driver.follow == "jerk_limited" and (missing := [j.name for j in robot.joints if j.jerk is None]):
        found = f"driver.follow is jerk_limited, but {', '.join(missing)} has no `jerk` in the spec"
        yield Finding("error", "driver", found, "give the manufacturer's limit, rad/s^3, or set straight_line")
    if isinstance(robot.driver, JointTopics):
        remedy = "a driver with other names: joint_prefix:=PREFIX when it is launched, or the spec's driver.joint_names"
        yield Finding("ok", "driver", f"{robot.driver.joint_states} names {', '.join(robot.driver_names())}", remedy)


def _compare(model: mujoco.MjModel, robot: RobotSpec) -> list[Finding]:
    data = mujoco.MjData(model)
    for name, angle in zip(robot.joint_names, robot.home, strict=True):
        data.qpos[model.joint(name).qposadr[0]] = angle
    for name in robot.gripper.joints if robot.gripper else ():
        assert robot.gripper is not None
        data.qpos[model.joint(name).qposadr[0]] = robot.gripper.width / len(robot.gripper.joints)
    mujoco.mj_forward(model, data)
    findings = [*compare_limits(model, robot), *_check_masses(model), *_check_home(model, data, robot)]
    if robot.tool:
        findings += [*_compare_chain(model, robot), *_compare_tool(model, data, robot)]
    if robot.fingers:
        findings += _compare_gripper(model, robot)
    elif robot.gripper:
        found = "it has no finger joints, so in simulation nothing opens and closes"
        remedy = "for tasks that grasp, simulate one with sliding fingers, and make this robot a variant_of that one"
        findings.append(Finding("warning", "gripper", found, remedy))
    if robot.base:
        findings += _compare_feet(model, data, robot)
    return findings


def _check_masses(model: mujoco.MjModel) -> Iterator[Finding]:
    for k in range(1, model.nbody):
        mass, inertia = model.body_mass[k], model.body_inertia[k].max()
        if mass > 0 and (radius := math.sqrt(inertia / mass)) > 1.0:
            found = f"body {model.body(k).name!r}: inertia {inertia:.3g} kg m^2 at {mass:.3g} kg is {radius:.1f} m wide"
            yield Finding("error", "masses", found, "write kg and kg m^2, not g, mm")
    total = float(model.body_mass.sum())
    yield Finding("ok" if 0.05 < total < 500 else "warning", "masses", f"{total:.2f} kg in all")


def _check_home(model: mujoco.MjModel, data: mujoco.MjData, robot: RobotSpec) -> Iterator[Finding]:
    deepest: dict[str, float] = {}
    for contact in data.contact[: data.ncon]:
        bodies = [int(model.geom_bodyid[g]) for g in contact.geom]
        if contact.dist < -NEAR and not (robot.base and 0 in bodies):
            names = " and ".join(model.body(b).name for b in bodies)
            deepest[names] = min(deepest.get(names, 0.0), contact.dist)
    for names, depth in deepest.items():
        remedy = "choose another home, or list what may collide in collision_bodies"
        yield Finding("error", "home", f"{names} overlap by {-1e3 * depth:.0f} mm", remedy)
    margins = [min(q - j.low, j.high - q) for q, j in zip(robot.home, robot.joints, strict=True)]
    least = robot.joint_names[int(np.argmin(margins))]
    severity = "warning" if min(margins) < 0.05 else "ok"
    yield Finding(severity, "home", f"{min(margins):.3f} rad from the next limit, of {least}")  # type: ignore[arg-type]


def _compare_chain(model: mujoco.MjModel, robot: RobotSpec) -> Iterator[Finding]:
    """Compare the order of the joints, and their axes and positions by the Jacobian at random postures."""
    dofs = [int(model.joint(name).dofadr[0]) for name in robot.joint_names]
    last = int(model.jnt_bodyid[model.joint(robot.joint_names[-1]).id])
    chain, body = [], last
    while body:
        at = range(int(model.body_jntadr[body]), int(model.body_jntadr[body] + model.body_jntnum[body]))
        chain += [model.joint(j).name for j in reversed(at)]
        body = int(model.body_parentid[body])
    if (chain := chain[::-1]) != list(robot.joint_names):
        found = f"from base to tool the file has {chain}"
        yield Finding("error", "joints", found, "list these in the spec, in this order")
        return
    yield Finding("ok", "joints", f"{len(chain)} in the file's order")
    low, high = robot.limit("low").double(), robot.limit("high").double()
    rng, data = torch.Generator().manual_seed(0), mujoco.MjData(model)
    joints = low + torch.rand(16, len(dofs), generator=rng, dtype=torch.float64) * (high - low)
    position, _, jacobian = Kinematics(robot, torch.float64).jacobian(joints)
    worst = np.zeros((2, len(dofs)))
    for q, point, ours in zip(joints.numpy(), position.numpy(), jacobian.numpy(), strict=True):
        data.qpos[[model.joint(name).qposadr[0] for name in robot.joint_names]] = q
        mujoco.mj_fwdPosition(model, data)
        theirs = np.zeros((2, 3, model.nv))
        mujoco.mj_jac(model, data, theirs[0], theirs[1], point, last)
        worst = np.maximum(worst, np.linalg.norm(theirs[:, :, dofs] - ours.reshape(2, 3, -1), axis=1))
    wrong = [k for k in range(len(dofs)) if worst[0, k] > NEAR or worst[1, k] > TURNED]
    shown = f"within {1e3 * worst[0].max():.2f} mm of the file at 16 postures"
    for k in wrong[:1]:
        gap = f"{1e3 * worst[0, k]:.1f} mm and {math.degrees(worst[1, k]):.1f} degrees"
        shown = f"joint {robot.joint_names[k]!r} is off by {gap}; those before it fit"
    advice = length_advice(*(x for joint in robot.joints for x in joint.position))
    yield result(not wrong, "frames", shown, advice + "take its position, quat and axis from the file")


def _compare_tool(model: mujoco.MjModel, data: mujoco.MjData, robot: RobotSpec) -> Iterator[Finding]:
    assert robot.tool is not None
    position, rotation = (
        x[0].numpy() for x in Kinematics(robot, torch.float64).forward(torch.tensor([robot.home], dtype=torch.float64))
    )
    low, high = robot.tool.workspace
    advice = length_advice(*low, *high, *robot.tool.position, *(x for j in robot.joints for x in j.position))
    if not ((position >= low) & (position <= high)).all():
        found = f"at home it is at {np.round(position, 3).tolist()} m, outside of the workspace"
        remedy = advice + "move home or workspace: the shield would refuse to start"
        yield Finding("error", "tool", found, remedy)
    name, kinds = robot.tool.name, (mujoco.mjtObj.mjOBJ_SITE, mujoco.mjtObj.mjOBJ_BODY)
    site, body = (mujoco.mj_name2id(model, kind, name) for kind in kinds)
    if site < 0 and body < 0:
        found = f"the file has no site and no body {name!r} to compare it with"
        yield Finding("warning", "tool", found, "add one, or measure the tool's place on the robot")
        return
    theirs, turn = (data.site_xpos[site], data.site_xmat[site]) if site >= 0 else (data.xpos[body], data.xmat[body])
    gap = float(np.linalg.norm(position - theirs))
    angle = math.acos(max(-1.0, min(1.0, (np.trace(rotation.T @ turn.reshape(3, 3)) - 1) / 2)))
    shown = f"{1e3 * gap:.1f} mm and {math.degrees(angle):.1f} degrees from {name!r} in the file"
    yield result(gap < NEAR and angle < TURNED, "tool", shown, advice + "correct position and quat of the tool")


def _compare_gripper(model: mujoco.MjModel, robot: RobotSpec) -> Iterator[Finding]:
    assert robot.gripper is not None
    ranges = np.array([model.joint(name).range for name in robot.gripper.joints])
    closed, travel = ranges.sum(0)
    shown = f"its fingers open from {closed:.3f} to {travel:.3f} m, the spec says 0 to {robot.gripper.width:g} m"
    fits = abs(closed) < NEAR and abs(travel - robot.gripper.width) < NEAR
    advice = unit_advice(robot.gripper.width, travel, MILLI)
    yield result(fits, "gripper", shown, advice + "correct `width`, or the fingers' range")


def _compare_feet(model: mujoco.MjModel, data: mujoco.MjData, robot: RobotSpec) -> Iterator[Finding]:
    assert robot.base is not None
    gaps = []
    for foot in robot.base.feet:
        foot_shapes(model, foot)  # raises for a foot without collisions
        gaps.append(float(data.xpos[model.body(foot).id][2]) - robot.base.foot_radius)
    worst = max(gaps, key=abs)
    severity = "error" if abs(worst) > SOLE_FAR else "warning" if abs(worst) > SOLE_GAP else "ok"
    advice = length_advice(robot.base.height, robot.base.foot_radius)
    remedy = "" if severity == "ok" else advice + "correct base.height, base.foot_radius or home"
    yield Finding(severity, "feet", f"at home the soles are {1e3 * worst:.0f} mm above the ground", remedy)  # type: ignore[arg-type]


def _check_motion(robot: RobotSpec, scene: Scene, mjcf: str) -> Iterator[Finding]:
    """Check that the robot holds home for 1 s in simulation, and that the gripper closes and opens."""
    engine = MujocoEngine(robot, scene, 1, threads=1, mjcf=mjcf)
    engine.reset(np.array([0]), np.array([robot.home]), {})
    home = torch.tensor([robot.home])
    hold = home[:, None].repeat(1, math.ceil(robot.command_rate), 1)
    width = robot.gripper.width if robot.gripper and robot.fingers else 0.0
    reached = []
    for target in (0.0, width) if robot.fingers else (0.0,):
        engine.step(hold, torch.full((1, hold.shape[1], 1), target))
        reached.append(float(engine.gripper_width()))
    if robot.fingers and np.abs(np.subtract(reached, (0.0, width))).max() > 0.1 * width:
        found = "told to close and to open to {:.3f} m, it has {:.3f} and {:.3f} m".format(width, *reached)
        yield Finding("error", "gripper", found, "let the actuator's ctrlrange go from closed to open")
    drift = float((engine.joint_state()[0] - home).abs().max())
    broken = bool(engine.diverged()) or not math.isfinite(drift)
    fell = robot.base is not None and float(engine.base_state()["base_position"][0, 2]) < 0.5 * robot.base.height
    engine.close()
    if broken:
        remedy = "soften the servos, add armature, or shorten the scene's timestep"
        yield Finding("error", "motion", "the physics diverges while it holds home", remedy)
    elif fell:
        yield Finding("error", "motion", "it falls within 1 s of standing at home", "correct home, height or stiffness")
    else:
        held = bool(robot.base) or drift <= DRIFT
        shown = f"it holds home for 1 s within {drift:.3f} rad" if held else f"it leaves home by {drift:.3f} rad"
        yield result(held, "motion", shown, "stiffen the servos, or look for links that collide")
