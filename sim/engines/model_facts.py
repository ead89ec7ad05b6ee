"""What a compiled model file says of a robot's joints: chains, limits, efforts, gains and frames."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.util.errors import ConfigError
from sim.rendering.gl import mujoco

Frame = tuple[np.ndarray, np.ndarray]
"""Position (3,) and quaternion (4,) in the frame of the world."""
HINGE, SLIDE = mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE


class ModelFacts:
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


def rounded(values: np.ndarray, digits: int = 6) -> Any:
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
