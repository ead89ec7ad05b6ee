"""Compare a spec's limits of angle, speed and torque with its model file's, and its rates with those of control."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from robot_rl.interface.robot import RobotSpec, is_whole
from robot_rl.util.errors import ConfigError
from sim.engines.robot_file import TOLERANCE, Finding, RobotFile, result
from sim.engines.servos import force_range, torque_range
from sim.engines.units import DEGREES, IMPOSSIBLE, MILLI, looks_scaled, unit_advice
from sim.engines.urdf import limits_of
from sim.rendering.gl import mujoco
from sim.scenes import Scene, time_grid

ROUNDED = 1.01
"""Ratio up to which a speed of the spec is that of the file, which may be rounded, such as 3.14."""


def compare_limits(model: mujoco.MjModel, robot: RobotSpec) -> Iterator[Finding]:
    """Compare ranges of angles; faults in a file cover a spec's that are wider."""
    narrower, advice = [], ""
    for joint in robot.joints:
        theirs = model.joint(joint.name)
        limited = bool(model.jnt_limited[theirs.id])
        low, high = theirs.range if limited else (-np.inf, np.inf)
        if low < joint.low - TOLERANCE or high > joint.high + TOLERANCE:
            narrower.append(joint.name)
        if limited:
            advice = advice or unit_advice(joint.high - joint.low, high - low, DEGREES)
        if max(-joint.low, joint.high) > IMPOSSIBLE:
            found = f"joint {joint.name!r} is said to reach from {joint.low:g} to {joint.high:g} rad"
            yield Finding("error", "limits", found, "write rad, not degrees, in the spec: math.radians(...)")
    shown = f"the spec is narrower than the file at {', '.join(narrower)}"
    shown = shown if narrower else f"those of {len(robot.joints)} joints are the file's"
    remedy = advice + "nothing, if that is meant: the shield holds the robot to the spec"
    yield result(not narrower, "limits", shown, remedy, "warning")


def compare_speeds(file: RobotFile, robot: RobotSpec) -> Iterator[Finding]:
    """Compare speeds with those of a URDF (an MJCF has none), or with what a joint can reach at all."""
    known = limits_of(file.path) if file.urdf else {}
    theirs = {name: speed for name, (speed, _) in known.items() if math.isfinite(speed)}
    faster, wrong, advice = [], [], ""
    for joint in robot.joints:
        limit = theirs.get(joint.model_name or joint.name)
        text = f"{joint.name} {joint.velocity:g}" + (f" of {limit:g}" if limit else "")
        if limit is None:
            wrong += [text] if joint.velocity > IMPOSSIBLE else []
            continue
        advice = advice or unit_advice(joint.velocity, limit, DEGREES, "/s")
        if joint.velocity > min(10 * limit, IMPOSSIBLE):
            wrong.append(text)
        elif joint.velocity > ROUNDED * limit:
            faster.append(text)
    if wrong:
        found = f"the spec's cannot be rad/s: {', '.join(wrong)}"
        remedy = "write rad/s, not degrees/s, in the spec: math.radians(...)"
        yield Finding("error", "speed", found, f"{remedy}; or correct the file" if theirs else remedy)
    elif faster:
        found = f"the spec allows more than the file, rad/s: {', '.join(faster)}"
        yield Finding("warning", "speed", found, "correct the wrong one; the shield allows what the spec says")
    elif advice:  # the file's
        yield Finding("warning", "speed", "the file's are far above the spec's", advice + "nothing uses the file's")
    else:
        shown = "within the file's" if theirs else "the file has none to compare with"
        yield Finding("ok", "speed", f"up to {max(j.velocity for j in robot.joints):g} rad/s; {shown}")


def compare_efforts(spec: mujoco.MjSpec, robot: RobotSpec) -> Iterator[Finding]:
    """Compare torque limits of spec and file: simulation uses the smaller limit for stiff joints, and the spec's limit
    for compliant joints."""
    motors = {a.target: a for a in spec.actuators}
    weaker, advice, wrong = [], "", False
    for joint in robot.joints:
        limit = torque_range(spec, joint.name, motors.get(joint.name))[1]
        if not 0 < limit < np.inf:
            continue
        scaled = looks_scaled(joint.effort, limit, MILLI)
        wrong, advice = wrong or scaled, advice or ("write N m, not N mm, in the spec; " if scaled else "")
        if limit < joint.effort and (scaled or not robot.compliant):
            weaker.append(f"{joint.name} {limit:g} of {joint.effort:g}")
    for actuator in spec.actuators:
        if robot.gripper and actuator.target not in robot.joint_names:
            limit = force_range(actuator)[1]
            weaker += [f"gripper {limit:g} of {robot.gripper.force:g}"] if limit < robot.gripper.force else []
    shown = f"{min(j.effort for j in robot.joints):g} N m and more, as the spec says"
    if weaker:
        shown = f"the file allows less than the spec, N m or N: {', '.join(weaker)}"
    remedy = advice + "correct the smaller one; simulation uses it"
    yield result(not weaker, "effort", shown, remedy, "error" if wrong else "warning")


def check_rates(robot: RobotSpec) -> Iterator[Finding]:
    """Check that control periods can be whole numbers of commands, at the rates that tasks have by default."""
    rate, usual = robot.command_rate, 50 if robot.compliant else 20
    whole = [hertz for hertz in range(5, 101) if is_whole(rate / hertz)]
    if usual not in whole:
        fitting = f"{', '.join(map(str, whole))} Hz" if whole else f"{rate / max(1, round(rate / usual)):.6g} Hz"
        found = f"commands at {rate:g} Hz are no whole number in a control period at {usual} Hz, which tasks have"
        if not whole:
            found += ", nor at any other whole number of Hz"
        remedy = f"set `rate` of your tasks' controller to {fitting}, or change `command_rate`"
        yield Finding("warning", "rates", found, remedy)
        return
    try:
        time_grid(Scene().timestep, rate, usual)
    except ConfigError as error:
        yield Finding("warning", "rates", str(error), "set it in your tasks, Scene(timestep=...), or `command_rate`")
        return
    yield Finding("ok", "rates", f"commands at {rate:g} Hz, {rate / usual:g} in a control period at {usual} Hz")
