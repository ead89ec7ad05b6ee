"""Draft a robot's spec from its model file: an arm, with or without sliding fingers, or a robot on legs.

Joints, limits, frames, gains and feet come from the file. What no model file says, and what this file leaves out, is
assumed, and listed.
"""

import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.interface.robot import FloatingBase, Gripper, Joint, RobotSpec, Tool
from robot_rl.util.errors import ConfigError
from sim.engines.model_facts import ModelFacts, chain_frames, frame_of, relative, rounded
from sim.engines.postures import reaching, standing
from sim.engines.read_robot import open_model
from sim.engines.robot_file import compiling
from sim.engines.urdf import limits_of
from sim.rendering.gl import mujoco

UNLIMITED, EFFORT, FORCE = math.pi, 50.0, 20.0
"""Assumed limits of joints without one: rad and N m; and of fingers: N."""
SPEED, ACCELERATION = {"arm": math.pi, "legs": 20.0}, {"arm": 10.0, "legs": 1e4}
"""Assumed limits, rad/s and rad/s^2; the acceleration of legs is never limited by it."""
FULL_EFFORT_AT, LAG = 0.8, 1 / 40
"""Assumed gains of legs: position error, rad, at full effort, and damping divided by stiffness, s."""
TOOLS = ("tool0", "tcp", "tool", "attachment", "pinch", "grip", "flange", "ee", "hand")
"""Words with which a part of the name of a tool's frame begins, the likeliest first."""


@dataclass
class Draft:
    """A spec, and what was assumed in it."""

    robot: RobotSpec
    assumed: list[str] = field(default_factory=list)


def draft(path: Path, name: str) -> Draft:
    """Return the spec of the robot in an MJCF or URDF file. Raises ConfigError for a file that cannot be read, and for
    a robot that is neither one chain of joints nor several equal ones on a trunk."""
    if not path.is_file():
        raise ConfigError(f"robot model {path} is not a file; name an MJCF or URDF file")
    try:
        spec, urdf, _ = open_model(path)
    except ValueError as error:
        raise ConfigError(f"{path} is not a readable MJCF or URDF file: {' '.join(str(error).split())}") from None
    spec.compiler.boundmass, spec.compiler.boundinertia = 1e-3, 1e-6  # only frames and limits are read
    with compiling(path):
        model = spec.compile()
    file = ModelFacts(model, path, limits_of(path) if urdf else {})
    try:
        made = _legged(file, name) if len(file.chains) > 1 else _arm(file, name)
    except ConfigError:
        raise
    except ValueError as error:  # facts that a spec refuses
        raise ConfigError(f"{path} gives no spec: {error}") from None
    made.assumed = [*file.assumed, *made.assumed]
    return made


def _joints(file: ModelFacts, order: list[int], kind: str) -> tuple[Joint, ...]:
    m = file.model
    range_of = {j: m.jnt_range[j] if m.jnt_limited[j] else (-UNLIMITED, UNLIMITED) for j in order}
    file.assume("limits", [j for j in order if not m.jnt_limited[j]], f"±{UNLIMITED:.4g} rad")
    speeds = {j: file.limits.get(file.name(j), (math.inf, 0))[0] for j in order}
    file.assume("speed", [j for j in order if math.isinf(speeds[j])], f"{SPEED[kind]:.4g} rad/s")
    efforts = {j: file.effort(j) for j in order}
    file.assume("torque", [j for j in order if math.isinf(efforts[j])], f"{EFFORT:g} N m")
    file.assumed.append(f"acceleration of all joints: {ACCELERATION[kind]:g} rad/s^2")
    frames: dict[int, tuple[Any, Any]] = {}  # the kinematics of legs come from the engine
    if kind == "arm":
        frames = chain_frames(file, order)
    joints, springs = [], []
    for j in order:
        low, high = (float(x) for x in range_of[j])
        effort = EFFORT if math.isinf(efforts[j]) else efforts[j]
        stiffness = damping = 0.0
        if kind == "legs":
            known = file.gains(j)
            springs += [] if known else [j]
            stiffness, damping = known or (effort / FULL_EFFORT_AT, LAG * effort / FULL_EFFORT_AT)
        speed = SPEED[kind] if math.isinf(speeds[j]) else speeds[j]
        joint = Joint(file.name(j), _up(low), -_up(-high), round(speed, 4), ACCELERATION[kind], effort)
        if kind == "arm":
            position, quat = frames[j]
            joints.append(replace(joint, position=position, quat=quat, axis=rounded(m.jnt_axis[j])))
        else:
            joints.append(replace(joint, stiffness=round(stiffness, 4), damping=round(damping, 4)))
    file.assume("gains", springs, f"full torque at {FULL_EFFORT_AT:g} rad, damping of {LAG:g} s")
    return tuple(joints)


def _up(limit: float) -> float:
    """Round a lower limit up, so that it stays within the file's."""
    return math.ceil(limit * 1e4) / 1e4


def _arm(file: ModelFacts, name: str) -> Draft:
    m, order = file.model, file.chains[0]
    last = int(m.jnt_bodyid[order[-1]])
    joints = _joints(file, order, "arm")
    carried = [b for b in range(m.nbody) if b != last and file.above(b)[:1] == [order[-1]]]
    gripper = _gripper(file, [j for j in file.slides if int(m.jnt_bodyid[j]) in carried])
    moved, fixed = {int(m.jnt_bodyid[j]) for j in file.slides}, list[int]()
    for b in carried:  # parents come before children
        if int(m.body_parentid[b]) in moved:
            moved.add(b)
        elif b not in moved:
            fixed.append(b)
    sites = [s for s in range(m.nsite) if int(m.site_bodyid[s]) in (last, *fixed)]
    frames = {m.site(s).name: (file.data.site_xpos[s], _quat(file.data.site_xmat[s])) for s in sites}
    frames |= {m.body(b).name: (file.data.xpos[b], file.data.xquat[b]) for b in fixed}
    named = [n for n in frames if n and "cam" not in n.lower()]
    likely = [n for part in TOOLS for n in named if re.search(rf"(?:^|[_./-]){part}", n.lower())]
    chosen = likely[0] if likely else (named or [m.body(last).name])[-1]
    here = frame_of(file, last)
    position, quat = relative(here, frames.get(chosen, here))
    found = reaching(m, order, frames.get(chosen, here), last)
    if found is None:
        raise ConfigError(f"{file.path}: no posture has the tool in front of the base and above it; is it an arm?")
    home, low, high = found
    workspace = (rounded(low, 2), rounded(high, 2))
    notes = ["home: far from limits and from stretched postures, the tool's z axis down if it can be"]
    notes.append("workspace: a box about the tool at home, above the ground and within reach")
    notes.append(f"tool: the frame {chosen!r}" + ("" if likely else ", as none is named like a tool"))
    tool = Tool(chosen, position, quat, workspace)
    file_of = str(file.path.resolve())
    return Draft(RobotSpec(name, joints, rounded(home, 3), file_of, tool, gripper), notes)


def _quat(matrix: np.ndarray) -> np.ndarray:
    quat = np.empty(4)
    mujoco.mju_mat2Quat(quat, matrix)
    return quat


def _gripper(file: ModelFacts, fingers: list[int]) -> Gripper | None:
    ranges = [file.model.jnt_range[j] for j in fingers]
    if not fingers:
        return None
    if any(abs(low) > 1e-6 or high <= 0 for low, high in ranges):
        listed = ", ".join(file.name(j) for j in fingers)
        file.assumed.append(f"gripper: left out, since {listed} do not slide from 0, closed, to a positive position")
        return None
    forces = [file.effort(j) for j in fingers]
    file.assume("force", [j for j, f in zip(fingers, forces, strict=True) if math.isinf(f)], f"{FORCE:g} N")
    width = float(sum(high for _, high in ranges))
    names = tuple(file.name(j) for j in fingers)
    # A grasp's force is that of one finger against the others.
    return Gripper(names, round(width, 4), round(min(FORCE if math.isinf(f) else f for f in forces), 2))


def _legged(file: ModelFacts, name: str) -> Draft:
    m, chains = file.model, file.chains
    trunks = {int(m.body_rootid[m.jnt_bodyid[chain[0]]]) for chain in chains}
    lengths = {len(chain) for chain in chains}
    if len(chains) < 4 or len(trunks) > 1 or lengths not in ({2}, {3}):
        shown = ", ".join(f"{file.name(chain[0])} {len(chain)}" for chain in chains)
        raise ConfigError(
            f"{file.path} is neither an arm nor a robot on four or more legs of two or three joints each; its chains "
            f"(first joint, number): {shown}"
        )
    trunk, order = trunks.pop(), [j for chain in chains for j in chain]
    if not m.body(trunk).name:
        raise ConfigError(f"{file.path}: the outermost body, the trunk, has no name; name it")
    feet = [file.foot(chain) for chain in chains]
    radius = max(foot[3] for foot in feet)
    joints = _joints(file, order, "legs")
    found = standing(m, chains, trunk, [(body, place) for _, body, place, _ in feet])
    if found is None:
        raise ConfigError(f"{file.path}: its legs do not reach below the trunk; is it a robot on legs?")
    home, height = found
    names = tuple(foot[0] for foot in feet)
    base = FloatingBase(m.body(trunk).name, round(height + radius, 3), names, round(radius, 4))
    notes = ["home: each foot below its hip, legs bent", "foot_radius, and height at home, from the feet's shapes"]
    model_file = str(file.path.resolve())
    robot = RobotSpec(name, joints, rounded(home, 3), model_file, base=base, collision_bodies=(base.body, *names))
    return Draft(robot, notes)
