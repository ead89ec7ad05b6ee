"""Position actuators of a robot's joints, for all engines.

Actuators of a compliant robot are built from its spec. Actuators of a stiff robot come from its MJCF, or are built here
for a URDF, which has no actuators. The torque of a stiff robot's actuators is limited to `Joint.effort` or the model
file's limit, whichever is smaller.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from robot_rl.interface.robot import Gripper, Joint, RobotSpec
from robot_rl.util.errors import ConfigError
from sim.rendering.gl import mujoco

FULL_EFFORT_AT = 0.05
"""Position error at which a URDF's servo applies full effort, rad. The MJCFs of Panda and UR5e have 0.02 and 0.075."""
LAG = 0.05
"""Damping divided by stiffness of a URDF's servos, s, as in the MJCF of the UR5e."""
GRIP_LAG = 0.1
"""Damping divided by stiffness of a URDF's fingers, s, as in the MJCF of the Panda."""
POSITION = 1
"""MuJoCo's code of an actuator that takes a position as control."""
DC_RESISTANCE, DC_STIFFNESS, DC_DAMPING = 0, 4, 6
"""Places in `actuator_gainprm` of a DC motor."""


def add_springs(spec: mujoco.MjSpec, robot: RobotSpec, motors: str = "ideal") -> None:
    """Add the motors of a compliant robot, with the stiffness and damping of its spec; see `Scene.motors`."""
    for joint in robot.joints:
        # The file's torque limit would clip a motor with randomized strength.
        spec.joint(joint.name).actfrclimited = mujoco.mjtLimited.mjLIMITED_FALSE
        actuator = _add(spec, joint.name, joint.stiffness, joint.damping, joint.effort)
        if motors == "dc":
            _make_dc(actuator, joint)


def _make_dc(actuator: mujoco.MjsActuator, joint: Joint) -> None:
    """Make an actuator a DC motor with a supply of 1 V: the springs' torque, but no more than the voltage allows.

    torque = K / R (V - K speed), |V| <= 1, so K = 1 / `Joint.velocity`, and R follows from `Joint.effort` at rest.
    """
    constant = 1 / joint.velocity
    springs = [joint.stiffness, 0.0, joint.damping, 0.0, 0.0, 1.0]
    actuator.set_to_dcmotor([constant, constant], constant / joint.effort, controller=springs, ctrlspec=POSITION)


def springs_of(model: mujoco.MjModel, actuators: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return stiffness and damping (J,) of actuators: of ideal springs, or of the controllers of DC motors."""
    gain, bias = model.actuator_gainprm[actuators], model.actuator_biasprm[actuators]
    is_dc = model.actuator_gaintype[actuators] == mujoco.mjtGain.mjGAIN_DCMOTOR
    return np.where(is_dc, gain[:, DC_STIFFNESS], gain[:, 0]), np.where(is_dc, gain[:, DC_DAMPING], -bias[:, 2])


def add_servos(spec: mujoco.MjSpec, robot: RobotSpec) -> None:
    """Add a servo for each joint and finger of a stiff robot whose file has no actuators."""
    for joint in robot.joints:
        stiffness = joint.effort / FULL_EFFORT_AT
        _add(spec, joint.name, stiffness, LAG * stiffness, joint.effort)
    if (gripper := robot.gripper) and gripper.joints:
        share = 1 / len(gripper.joints)
        stiffness = gripper.stiffness or 2 * gripper.force / gripper.width
        damping = GRIP_LAG * stiffness if gripper.damping is None else gripper.damping
        for name in gripper.joints:
            actuator = _add(spec, name, stiffness * share, damping * share, gripper.force * share)
            actuator.ctrllimited, actuator.ctrlrange = mujoco.mjtLimited.mjLIMITED_TRUE, [0, gripper.width * share]


def set_gripper(spec: mujoco.MjSpec, robot: RobotSpec, gripper: Gripper) -> None:
    """Set gains and force of an MJCF's gripper actuator to the spec's; a gain that is None keeps the file's value."""
    for actuator in spec.actuators:
        if actuator.target in robot.joint_names:
            continue
        gain, bias = actuator.gainprm.copy(), actuator.biasprm.copy()
        if gripper.stiffness is not None:  # keep the mapping from command to width
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
        ctrllimited=False, actlimited=False,  # explicit, since the file may have other defaults
        gainprm=[stiffness] + [0] * 9, biastype=mujoco.mjtBias.mjBIAS_AFFINE,
        biasprm=[0, -stiffness, -damping] + [0] * 7,
        forcelimited=True, forcerange=[-effort, effort],
    )  # fmt: skip


def limit_efforts(spec: mujoco.MjSpec, robot: RobotSpec) -> None:
    """Limit the servo torques of a stiff robot to the effort in its spec or the file's limit, whichever is smaller."""
    for actuator in spec.actuators:
        if actuator.trntype != mujoco.mjtTrn.mjTRN_JOINT or actuator.target not in robot.joint_names:
            continue
        low, high = torque_range(spec, actuator.target, actuator)
        effort = robot.joints[robot.joint_names.index(actuator.target)].effort
        actuator.forcelimited = mujoco.mjtLimited.mjLIMITED_TRUE
        actuator.forcerange = [max(low, -effort), min(high, effort)]


def torque_range(spec: mujoco.MjSpec, joint: str, actuator: mujoco.MjsActuator | None = None) -> tuple[float, float]:
    """Return the torque limits (low, high), N m, that a file sets for a joint and its actuator; by default infinite."""
    element = spec.joint(joint)
    limits = [(element.actfrclimited, element.actfrcrange)]
    return _limits(limits + [(actuator.forcelimited, actuator.forcerange)] if actuator is not None else limits)


def force_range(actuator: mujoco.MjsActuator) -> tuple[float, float]:
    """Return the force limits of an actuator (low, high), N or N m; infinite without a limit."""
    return _limits([(actuator.forcelimited, actuator.forcerange)])


def _limits(limits: Sequence[tuple[Any, Sequence[float]]]) -> tuple[float, float]:
    """Return the intersection of MuJoCo's limits; a limit whose flag is "auto" applies if the limit has a range."""
    low, high = -np.inf, np.inf
    for limited, (least, most) in limits:
        auto = limited == mujoco.mjtLimited.mjLIMITED_AUTO and least < most
        if auto or limited == mujoco.mjtLimited.mjLIMITED_TRUE:
            low, high = max(low, least), min(high, most)
    return float(low), float(high)


def find_servos(model: mujoco.MjModel, joints: Sequence[str], robot: str) -> np.ndarray:
    """Return the indices (J,) of the joints' position actuators; raise ConfigError for a joint without an actuator."""
    of_joint = {
        model.joint(model.actuator_trnid[a, 0]).name: a
        for a in range(model.nu)
        if model.actuator_trntype[a] == mujoco.mjtTrn.mjTRN_JOINT
    }
    absent = [name for name in joints if name not in of_joint]
    if absent:
        raise ConfigError(f"the model of {robot!r} has no position actuator for the joints {absent}")
    return np.array([of_joint[name] for name in joints])
