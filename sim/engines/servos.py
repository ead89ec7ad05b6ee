"""The position actuators of a robot's joints, for every engine.

A compliant robot's come from its spec. A stiff one's come from its MJCF; a URDF has none, so they are made here. Torque
of a stiff robot's joints is limited to `Joint.effort`, or to the model file's limit if smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from robot_rl.interface.robot import Gripper, RobotSpec
from robot_rl.util.errors import ConfigError
from sim.rendering.gl import mujoco

FULL_EFFORT_AT = 0.05
"""Error at which a URDF's servo gives full effort, rad; the MJCFs of Panda and UR5e have 0.02 and 0.075."""
LAG = 0.05
"""Damping over stiffness of such a servo, s, as in the MJCF of the UR5e."""
GRIP_LAG = 0.1
"""Damping over stiffness of a URDF's fingers, s, as in the MJCF of the Panda."""


def add_springs(spec: mujoco.MjSpec, robot: RobotSpec) -> None:
    """Give a compliant robot the springs of its motors."""
    for joint in robot.joints:
        # The file's joint limit would cut off a randomized, stronger motor.
        spec.joint(joint.name).actfrclimited = mujoco.mjtLimited.mjLIMITED_FALSE
        _add(spec, joint.name, joint.stiffness, joint.damping, joint.effort)


def add_servos(spec: mujoco.MjSpec, robot: RobotSpec) -> None:
    """Give a stiff robot whose file has no actuators one for each joint and finger."""
    for joint in robot.joints:
        stiffness = joint.effort / FULL_EFFORT_AT
        _add(spec, joint.name, stiffness, LAG * stiffness, joint.effort)
    if gripper := robot.gripper:
        share = 1 / len(gripper.joints)
        stiffness = gripper.stiffness or 2 * gripper.force / gripper.width
        damping = GRIP_LAG * stiffness if gripper.damping is None else gripper.damping
        for name in gripper.joints:
            actuator = _add(spec, name, stiffness * share, damping * share, gripper.force * share)
            actuator.ctrllimited, actuator.ctrlrange = mujoco.mjtLimited.mjLIMITED_TRUE, [0, gripper.width * share]


def set_gripper(spec: mujoco.MjSpec, robot: RobotSpec, gripper: Gripper) -> None:
    """Give the gripper's actuator in an MJCF the gains and the force of the spec; what it leaves out is the file's."""
    for actuator in spec.actuators:
        if actuator.target in robot.joint_names:
            continue
        gain, bias = actuator.gainprm.copy(), actuator.biasprm.copy()
        if gripper.stiffness is not None:  # commands mean the same widths as before
            scale = gripper.stiffness / -bias[1]
            gain, bias = gain * scale, bias * scale
        bias[2] = bias[2] if gripper.damping is None else -gripper.damping
        actuator.gainprm, actuator.biasprm = gain, bias
        low, high = force_range(actuator)
        actuator.forcelimited = mujoco.mjtLimited.mjLIMITED_TRUE
        actuator.forcerange = [max(low, -gripper.force), min(high, gripper.force)]


def _add(spec: mujoco.MjSpec, joint: str, stiffness: float, damping: float, effort: float) -> mujoco.MjsActuator:
    return spec.add_actuator(
        name=joint, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT,
        gaintype=mujoco.mjtGain.mjGAIN_FIXED, dyntype=mujoco.mjtDyn.mjDYN_NONE, gear=[1] + [0] * 5,
        ctrllimited=False, actlimited=False,  # these five in case that the file has defaults for actuators
        gainprm=[stiffness] + [0] * 9, biastype=mujoco.mjtBias.mjBIAS_AFFINE,
        biasprm=[0, -stiffness, -damping] + [0] * 7,
        forcelimited=True, forcerange=[-effort, effort],
    )  # fmt: skip


def limit_efforts(spec: mujoco.MjSpec, robot: RobotSpec) -> None:
    """Limit a stiff robot's servos to its efforts, or to the file's limits if smaller."""
    for actuator in spec.actuators:
        if actuator.trntype != mujoco.mjtTrn.mjTRN_JOINT or actuator.target not in robot.joint_names:
            continue
        low, high = torque_range(spec, actuator.target, actuator)
        effort = robot.joints[robot.joint_names.index(actuator.target)].effort
        actuator.forcelimited = mujoco.mjtLimited.mjLIMITED_TRUE
        actuator.forcerange = [max(low, -effort), min(high, effort)]


def torque_range(spec: mujoco.MjSpec, joint: str, actuator: mujoco.MjsActuator | None = None) -> tuple[float, float]:
    """Return the least and greatest torque that the file allows a joint and its actuator, N m; infinite: no limit."""
    own = spec.joint(joint)
    limits = [(own.actfrclimited, own.actfrcrange)]
    return _limits(limits + [(actuator.forcelimited, actuator.forcerange)] if actuator is not None else limits)


def force_range(actuator: mujoco.MjsActuator) -> tuple[float, float]:
    """Return the least and greatest force of an actuator, N or N m; infinite: no limit."""
    return _limits([(actuator.forcelimited, actuator.forcerange)])


def _limits(limits: Sequence[tuple[Any, Sequence[float]]]) -> tuple[float, float]:
    """Return the tightest of MuJoCo's limits; one without `limited` counts if it has a range."""
    low, high = -np.inf, np.inf
    for limited, (least, most) in limits:
        auto = limited == mujoco.mjtLimited.mjLIMITED_AUTO and least < most
        if auto or limited == mujoco.mjtLimited.mjLIMITED_TRUE:
            low, high = max(low, least), min(high, most)
    return float(low), float(high)


def find_servos(model: mujoco.MjModel, joints: Sequence[str], robot: str) -> np.ndarray:
    """Return the position actuators (J,) of the named joints."""
    of_joint = {
        model.joint(model.actuator_trnid[a, 0]).name: a
        for a in range(model.nu)
        if model.actuator_trntype[a] == mujoco.mjtTrn.mjTRN_JOINT
    }
    absent = [name for name in joints if name not in of_joint]
    if absent:
        raise ConfigError(f"the model of {robot!r} has no position actuator for the joints {absent}")
    return np.array([of_joint[name] for name in joints])
