"""What a compiled model file says of a robot's joints: chains, limits, efforts, gains and frames."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.util.errors import ConfigError
from sim.rendering.gl import mujoco

Frame = tuple[np.ndarray, np.ndarray]
"""Position (3,) and quaternion (4,) in the frame of the world."""
HINGE, SLIDE = mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE
FINGER = re.compile("grip|finger|jaw|knuckle|thumb")
"""Words in names of joints that open and close something."""
DEGREES = 30.0
"""Limits beyond which an angle cannot be rad."""


class ModelFacts:
    """A compiled model, its driven joints, and what is assumed of them."""

    def __init__(self, model: mujoco.MjModel, path: Path, limits: dict[str, tuple[float, float]]):
        self.model, self.path, self.limits = model, path, limits
        self.data = mujoco.MjData(model)
        self.hinges = [j for j in range(model.njnt) if model.jnt_type[j] == HINGE]
        self.slides = [j for j in range(model.njnt) if model.jnt_type[j] == SLIDE]
        self._check_joints()
        for j in self.hinges:
            self.data.qpos[model.jnt_qposadr[j]] = 0.0
        mujoco.mj_kinematics(model, self.data)
        self.chains = self._chains()
        self.assumed: list[str] = []

    def _check_joints(self) -> None:
        """Raise ConfigError for joints that no spec can have."""
        m, driven = self.model, [*self.hinges, *self.slides]
        if not self.hinges:
            raise ConfigError(f"{self.path} has no joint that turns")
        if unnamed := [m.body(m.jnt_bodyid[j]).name for j in driven if not self.name(j)]:
            raise ConfigError(f"{self.path}: the joints of the bodies {', '.join(unnamed)} have no name; name them")
        pairs = [e for e in range(m.neq) if m.eq_type[e] == mujoco.mjtEq.mjEQ_JOINT]
        coupled = {int(j) for e in pairs for j in (m.eq_obj1id[e], m.eq_obj2id[e])}
        turning = [j for j in self.hinges if j in coupled or FINGER.search(self.name(j).lower())]
        if turning:
            names = ", ".join(self.name(j) for j in turning)
            raise ConfigError(f"{self.path}: {names} are fingers that turn, or coupled; make these joints fixed")
        if far := [self.name(j) for j in self.hinges if m.jnt_limited[j] and np.abs(m.jnt_range[j]).max() > DEGREES]:
            raise ConfigError(f"{self.path}: the limits of {', '.join(far)} cannot be rad; are they degrees?")
        moved = {int(m.jnt_bodyid[j]) for j in self.slides}
        for j in self.hinges:
            body = int(m.jnt_bodyid[j])
            while body:
                if body in moved:
                    raise ConfigError(f"{self.path}: a sliding joint carries {self.name(j)}; only fingers may slide")
                body = int(m.body_parentid[body])

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

    def actuators(self, joint: int) -> list[int]:
        """Return the actuators of a joint."""
        m = self.model
        of_joint = m.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT
        return [a for a in range(m.nu) if of_joint[a] and m.actuator_trnid[a, 0] == joint]

    def effort(self, joint: int) -> float:
        """Return a joint's largest torque or force, both ways; inf if the file has none."""
        m, known = self.model, [self.limits.get(self.name(joint), (math.inf, math.inf))[1]]
        if m.jnt_actfrclimited[joint]:
            known.append(float(np.abs(m.jnt_actfrcrange[joint]).min()))
        for a in self.actuators(joint):
            gear = abs(float(m.actuator_gear[a, 0]))
            if m.actuator_forcelimited[a]:
                known.append(float(np.abs(m.actuator_forcerange[a]).min()) * gear)
            if m.actuator_ctrllimited[a] and m.actuator_biastype[a] == mujoco.mjtBias.mjBIAS_NONE:  # a motor
                gain = abs(float(m.actuator_gainprm[a, 0]))
                known.append(float(np.abs(m.actuator_ctrlrange[a]).min()) * gain * gear)
        return min(known)

    def gains(self, joint: int) -> tuple[float, float] | None:
        """Return stiffness and damping of a joint's position actuator, if it has one."""
        m = self.model
        for a in self.actuators(joint):
            gain, bias, gear = m.actuator_gainprm[a], m.actuator_biasprm[a], float(m.actuator_gear[a, 0])
            if m.actuator_biastype[a] == mujoco.mjtBias.mjBIAS_AFFINE and gain[0] > 0 and bias[1] == -gain[0]:
                return float(gain[0]) * gear**2, -float(bias[2]) * gear**2
        return None

    def foot(self, chain: list[int]) -> tuple[str, int, np.ndarray, float]:
        """Return a leg's foot: name, body, place (3,) in that body, m, and radius, m. It is the named body, colliding
        shape or site that is farthest from the leg's last joint."""
        m, anchor = self.model, self.data.xanchor[chain[-1]]
        bodies = [b for b in range(m.nbody) if self.above(b)[:1] == [chain[-1]]]
        found: list[tuple[float, str, int, np.ndarray, float]] = []
        for b in bodies[1:]:
            radii = [float(m.geom_size[g, 0]) for g in range(m.ngeom) if m.geom_bodyid[g] == b and m.geom_contype[g]]
            where = np.zeros(3)
            found.append((self._far(self.data.xpos[b], anchor), m.body(b).name, b, where, max(radii, default=0.02)))
        for g in range(m.ngeom):
            if m.geom_bodyid[g] in bodies and m.geom_contype[g] and m.geom_type[g] == mujoco.mjtGeom.mjGEOM_SPHERE:
                far = self._far(self.data.geom_xpos[g], anchor)
                found.append((far, m.geom(g).name, int(m.geom_bodyid[g]), m.geom_pos[g], float(m.geom_size[g, 0])))
        for k in range(m.nsite):
            if m.site_bodyid[k] in bodies:
                far = self._far(self.data.site_xpos[k], anchor)
                found.append((far, m.site(k).name, int(m.site_bodyid[k]), m.site_pos[k], 0.02))
        named = [each for each in found if each[1]]
        if not named or max(found)[0] > max(named)[0] + 0.01 or max(named)[0] < 0.01:
            raise ConfigError(
                f"{self.path}: the foot behind {self.name(chain[-1])} has no name; name its body, sphere or site"
            )
        return max(named, key=lambda each: round(each[0], 3))[1:]

    @staticmethod
    def _far(place: np.ndarray, anchor: np.ndarray) -> float:
        return float(np.linalg.norm(place - anchor))


def rounded(values: np.ndarray, digits: int = 6) -> Any:
    """Return numbers as a tuple, rounded."""
    return tuple(float(x) + 0.0 for x in np.asarray(values, float).round(digits))


def frame_of(file: ModelFacts, body: int) -> Frame:
    """Return position and orientation of a body's frame: its joint's anchor, if it has one, with all joints at 0."""
    m, position = file.model, file.data.xpos[body]
    for j in file.hinges:
        if m.jnt_bodyid[j] == body:
            position = file.data.xanchor[j]
    return position, file.data.xquat[body]


def relative(first: Frame, second: Frame) -> tuple[Any, Any]:
    """Return position and quaternion of the second frame in the first."""
    inverse, quat, position = np.empty(4), np.empty(4), np.empty(3)
    mujoco.mju_negQuat(inverse, first[1])
    mujoco.mju_mulQuat(quat, inverse, second[1])
    mujoco.mju_rotVecQuat(position, second[0] - first[0], inverse)
    quat = quat if quat[np.abs(quat).argmax()] > 0 else -quat
    return rounded(position), rounded(quat)


def chain_frames(file: ModelFacts, order: list[int]) -> dict[int, tuple[Any, Any]]:
    """Return the pose of each joint's frame in that of the joint before; the first in that of the base."""
    m, base = file.model, int(file.model.jnt_bodyid[order[0]])
    while m.body_parentid[base]:
        base = int(m.body_parentid[base])
    before, frames = (file.data.xpos[base], file.data.xquat[base]), {}
    for j in order:
        here = frame_of(file, int(m.jnt_bodyid[j]))
        frames[j] = relative(before, here)
        before = here
    return frames
