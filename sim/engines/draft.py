"""Draft a robot's spec from its model file: an arm, with or without sliding fingers, or a robot on legs.

Joints, limits, frames, gains and feet come from the file. What no model file says, and what this file leaves out, is
assumed, and listed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.interface.robot import FloatingBase, Gripper, Joint, RobotSpec, Tool
from robot_rl.util.errors import ConfigError
from sim.engines.postures import reaching, standing
from sim.engines.read_robot import open_model
from sim.engines.robot_file import compiling
from sim.engines.urdf import limits_of
from sim.rendering.gl import mujoco

Frame = tuple[np.ndarray, np.ndarray]
"""Position (3,) and quaternion (4,) in the frame of the world."""
HINGE, SLIDE = mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE
UNLIMITED, SPEED, EFFORT, FORCE = math.pi, math.pi, 50.0, 20.0
"""Assumed limits of joints without one: rad, rad/s and N m; and of fingers: N."""
ACCELERATION = {"arm": 10.0, "legs": 1e4}
"""Assumed limits, rad/s^2; that of legs is never active."""
FULL_EFFORT_AT, LAG = 0.8, 1 / 40
"""Assumed gains of legs: position error, rad, at full effort, and damping divided by stiffness, s."""
TOOLS = ("attachment", "tool0", "tool", "tcp", "grip", "pinch", "flange", "ee", "hand")
"""Parts of names of a tool's frame, the likeliest first."""


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
    file = _File(model, path, limits_of(path) if urdf else {})
    made = _legged(file, name) if len(file.chains) > 1 else _arm(file, name)
    made.assumed = [*file.assumed, *made.assumed]
    return made


class _File:
    """A compiled model, its driven joints, and what is assumed of them."""

    def __init__(self, model: mujoco.MjModel, path: Path, limits: dict[str, tuple[float, float]]):
        self.model, self.path, self.limits = model, path, limits
        self.data = mujoco.MjData(model)
        coupled = {int(model.eq_obj1id[e]) for e in range(model.neq) if model.eq_type[e] == mujoco.mjtEq.mjEQ_JOINT}
        self.hinges = [j for j in range(model.njnt) if model.jnt_type[j] == HINGE and j not in coupled]
        self.slides = [j for j in range(model.njnt) if model.jnt_type[j] == SLIDE]
        for j in self.hinges:
            self.data.qpos[model.jnt_qposadr[j]] = 0.0
        mujoco.mj_kinematics(model, self.data)
        self.chains = self._chains()
        self.assumed: list[str] = []

    def name(self, joint: int) -> str:
        return str(self.model.joint(joint).name)

    def above(self, body: int) -> list[int]:
        """Return the driven joints between a body and the world, the nearest first."""
        found = []
        while body:
            found += [j for j in self.hinges if self.model.jnt_bodyid[j] == body]
            body = int(self.model.body_parentid[body])
        return found

    def _chains(self) -> list[list[int]]:
        """Return the chains of joints, each from base to tip."""
        if not self.hinges:
            raise ConfigError(f"{self.path} has no joint that turns")
        bodies = [int(self.model.jnt_bodyid[j]) for j in self.hinges]
        if twice := {b for b in bodies if bodies.count(b) > 1}:
            names = ", ".join(sorted(self.model.body(b).name for b in twice))
            raise ConfigError(f"{self.path}: several joints move the body {names}; put a body between them")
        paths = {j: self.above(int(self.model.jnt_bodyid[j])) for j in self.hinges}
        parents = [p[1] for p in paths.values() if len(p) > 1]
        tips = [j for j in self.hinges if j not in parents]
        chains = [paths[tip][::-1] for tip in tips]
        if len({j for chain in chains for j in chain}) != sum(map(len, chains)):
            forks = ", ".join(sorted({self.name(j) for j in parents if parents.count(j) > 1}))
            raise ConfigError(
                f"{self.path} has joints that carry several others ({forks}); only single arms, and legs that begin at "
                "the trunk, are supported: make the joints of hands fixed"
            )
        return chains

    def assume(self, what: str, joints: Sequence[int], value: str) -> None:
        if joints:
            self.assumed.append(f"{what} of {', '.join(self.name(j) for j in joints)}: {value}")

    def servo(self, joint: int) -> int | None:
        """Return the position actuator of a joint."""
        m = self.model
        for a in range(m.nu):
            if m.actuator_trntype[a] == mujoco.mjtTrn.mjTRN_JOINT and m.actuator_trnid[a, 0] == joint:
                return a
        return None

    def effort(self, joint: int) -> float:
        """Return a joint's largest torque or force; inf if the file has none."""
        m, known = self.model, [self.limits.get(self.name(joint), (math.inf, math.inf))[1]]
        if m.jnt_actfrclimited[joint]:
            known.append(float(m.jnt_actfrcrange[joint, 1]))
        if (a := self.servo(joint)) is not None and m.actuator_forcelimited[a]:
            known.append(float(m.actuator_forcerange[a, 1] * m.actuator_gear[a, 0]))
        elif a is not None and m.actuator_ctrllimited[a] and m.actuator_biastype[a] == mujoco.mjtBias.mjBIAS_NONE:
            known.append(float(m.actuator_ctrlrange[a, 1] * m.actuator_gear[a, 0]))  # a motor
        return min(known)

    def gains(self, joint: int) -> tuple[float, float] | None:
        """Return stiffness and damping of a joint's position actuator, if it has one."""
        a = self.servo(joint)
        if a is None or self.model.actuator_biastype[a] != mujoco.mjtBias.mjBIAS_AFFINE:
            return None
        return float(self.model.actuator_gainprm[a, 0]), -float(self.model.actuator_biasprm[a, 2])


def _joints(file: _File, order: list[int], kind: str) -> tuple[Joint, ...]:
    m = file.model
    range_of = {j: m.jnt_range[j] if m.jnt_limited[j] else (-UNLIMITED, UNLIMITED) for j in order}
    file.assume("limits", [j for j in order if not m.jnt_limited[j]], f"±{UNLIMITED:.4g} rad")
    speeds = {j: file.limits.get(file.name(j), (math.inf, 0))[0] for j in order}
    file.assume("speed", [j for j in order if math.isinf(speeds[j])], f"{SPEED:.4g} rad/s")
    efforts = {j: file.effort(j) for j in order}
    file.assume("torque", [j for j in order if math.isinf(efforts[j])], f"{EFFORT:g} N m")
    file.assumed.append(f"acceleration of all joints: {ACCELERATION[kind]:g} rad/s^2")
    frames: dict[int, tuple[Any, Any]] = {}  # the kinematics of legs come from the engine
    if kind == "arm":
        frames = _frames(file, order)
    joints, springs = [], []
    for j in order:
        low, high = (float(x) for x in range_of[j])
        effort = EFFORT if math.isinf(efforts[j]) else efforts[j]
        stiffness = damping = 0.0
        if kind == "legs":
            known = file.gains(j)
            springs += [] if known else [j]
            stiffness, damping = known or (effort / FULL_EFFORT_AT, LAG * effort / FULL_EFFORT_AT)
        speed = SPEED if math.isinf(speeds[j]) else speeds[j]
        joint = Joint(file.name(j), _up(low), -_up(-high), round(speed, 4), ACCELERATION[kind], effort)
        if kind == "arm":
            position, quat = frames[j]
            joints.append(replace(joint, position=position, quat=quat, axis=_tuple(m.jnt_axis[j])))
        else:
            joints.append(replace(joint, stiffness=round(stiffness, 4), damping=round(damping, 4)))
    file.assume("gains", springs, f"full torque at {FULL_EFFORT_AT:g} rad, damping of {LAG:g} s")
    return tuple(joints)


def _up(limit: float) -> float:
    """Round a lower limit up, so that it stays within the file's."""
    return math.ceil(limit * 1e4) / 1e4


def _tuple(values: np.ndarray, digits: int = 6) -> Any:
    return tuple(float(x) + 0.0 for x in np.asarray(values, float).round(digits))


def _turned(file: _File, body: int) -> Frame:
    """Return position and orientation of a body's frame: its joint's anchor, if it has one, with all joints at 0."""
    m, position = file.model, file.data.xpos[body]
    for j in file.hinges:
        if m.jnt_bodyid[j] == body:
            position = file.data.xanchor[j]
    return position, file.data.xquat[body]


def _relative(first: Frame, second: Frame) -> tuple[Any, Any]:
    """Return position and quaternion of the second frame in the first."""
    inverse, quat, position = np.empty(4), np.empty(4), np.empty(3)
    mujoco.mju_negQuat(inverse, first[1])
    mujoco.mju_mulQuat(quat, inverse, second[1])
    mujoco.mju_rotVecQuat(position, second[0] - first[0], inverse)
    quat = quat if quat[np.abs(quat).argmax()] > 0 else -quat
    return _tuple(position), _tuple(quat)


def _frames(file: _File, order: list[int]) -> dict[int, tuple[Any, Any]]:
    """Return the pose of each joint's frame in that of the joint before; the first in that of the base."""
    m, base = file.model, int(file.model.jnt_bodyid[order[0]])
    while m.body_parentid[base]:
        base = int(m.body_parentid[base])
    before, frames = (file.data.xpos[base], file.data.xquat[base]), {}
    for j in order:
        here = _turned(file, int(m.jnt_bodyid[j]))
        frames[j] = _relative(before, here)
        before = here
    return frames


def _arm(file: _File, name: str) -> Draft:
    m, order = file.model, file.chains[0]
    last = int(m.jnt_bodyid[order[-1]])
    joints = _joints(file, order, "arm")
    carried = [b for b in range(m.nbody) if b != last and file.above(b)[:1] == [order[-1]]]
    gripper = _gripper(file, [j for j in file.slides if int(m.jnt_bodyid[j]) in carried])
    fingers = {int(m.jnt_bodyid[j]) for j in file.slides}
    fixed = [b for b in carried if b not in fingers and int(m.body_parentid[b]) not in fingers]
    sites = [s for s in range(m.nsite) if int(m.site_bodyid[s]) in (last, *fixed)]
    frames = {m.site(s).name: (file.data.site_xpos[s], _quat(file.data.site_xmat[s])) for s in sites}
    frames |= {m.body(b).name: (file.data.xpos[b], file.data.xquat[b]) for b in fixed}
    likely = [n for part in TOOLS for n in frames if part in n.lower()]
    chosen = likely[0] if likely else next(reversed(frames), m.body(last).name)
    here = _turned(file, last)
    position, quat = _relative(here, frames.get(chosen, here))
    home, place, reach = reaching(m, order, frames.get(chosen, here)[0] - here[0], last)
    margin = 0.2 * reach * np.array([1.0, 1.5, 1.0])
    workspace = (_tuple(place - margin, 2), _tuple(place + margin, 2))
    notes = ["home: far from limits and from stretched postures", "workspace: a box about the tool at home"]
    notes.append(f"tool: the frame {chosen!r}" + ("" if likely else ", as none is named like a tool"))
    tool = Tool(chosen, position, quat, workspace)
    file_of = str(file.path.resolve())
    return Draft(RobotSpec(name, joints, _tuple(home, 3), file_of, tool, gripper), notes)


def _quat(matrix: np.ndarray) -> np.ndarray:
    quat = np.empty(4)
    mujoco.mju_mat2Quat(quat, matrix)
    return quat


def _gripper(file: _File, fingers: list[int]) -> Gripper | None:
    ranges = [file.model.jnt_range[j] for j in fingers]
    if not fingers:
        return None
    if any(abs(low) > 1e-6 or high <= 0 for low, high in ranges):
        file.assume("the sliding joints are no fingers that are 0 when closed, gripper left out", fingers, "")
        return None
    forces = [file.effort(j) for j in fingers]
    file.assume("force", [j for j, f in zip(fingers, forces, strict=True) if math.isinf(f)], f"{FORCE:g} N")
    width = float(sum(high for _, high in ranges))
    names = tuple(file.name(j) for j in fingers)
    return Gripper(names, round(width, 4), round(sum(FORCE if math.isinf(f) else f for f in forces), 2))


def _legged(file: _File, name: str) -> Draft:
    m, chains = file.model, file.chains
    trunks = {int(m.body_rootid[m.jnt_bodyid[chain[0]]]) for chain in chains}
    if len({len(chain) for chain in chains}) > 1 or len(trunks) > 1:
        lengths = ", ".join(f"{file.name(chain[0])} {len(chain)}" for chain in chains)
        raise ConfigError(f"{file.path} has chains that are no equal legs on one trunk (joint, length: {lengths})")
    trunk, order = trunks.pop(), [j for chain in chains for j in chain]
    feet = []
    for chain in chains:
        of_leg = [b for b in range(m.nbody) if file.above(b)[:1] == [chain[-1]]]
        far = [float(np.linalg.norm(file.data.xpos[b] - file.data.xanchor[chain[-1]])) for b in of_leg]
        feet.append(of_leg[int(np.argmax(far))])
    if unnamed := [file.name(chain[-1]) for chain, b in zip(chains, feet, strict=True) if not m.body(b).name]:
        raise ConfigError(f"{file.path}: the feet behind {', '.join(unnamed)} have no name; name these bodies")
    radius = max([float(m.geom_size[g, 0]) for g in range(m.ngeom) if m.geom_bodyid[g] in feet] or [0.02])
    joints = _joints(file, order, "legs")
    home, height = standing(m, chains, trunk, feet)
    bodies = tuple(m.body(b).name for b in feet)
    base = FloatingBase(m.body(trunk).name, round(height + radius, 3), bodies, round(radius, 4))
    notes = ["home: each foot below its hip, legs bent", "foot_radius, and height at home, from the feet's shapes"]
    model_file = str(file.path.resolve())
    robot = RobotSpec(name, joints, _tuple(home, 3), model_file, base=base, collision_bodies=(base.body, *bodies))
    return Draft(robot, notes)
