"""Torque limit of stiff joints in MuJoCo: the smaller one of spec and model file. For Genesis, see test_genesis.py."""

from pathlib import Path

import numpy as np
import torch

from robot_rl.interface.robot import Joint, RobotSpec
from sim.engines.mujoco import MujocoEngine
from sim.scenes import Scene

EFFORT, INERTIA, SPRING, STEP = 6.0, 0.5, 10.0, 0.005
"""N m, kg m^2, N m/rad, s."""
FILES = {
    "unlimited": ("", "", EFFORT),
    "wider": ("", 'forcerange="-50 50"', EFFORT),
    "narrower": ("", 'forcerange="-2 2"', 2.0),
    "narrower_at_the_joint": ('actuatorfrcrange="-3 3"', "", 3.0),
}
"""Attributes of joint and actuator in a file, and the resulting torque limit, N m."""


def _arm(path: Path) -> RobotSpec:
    """Two joints for each of FILES: one that turns freely, and one with a spring to 0."""
    inertial = f'<inertial pos="0 0 0" mass="1" diaginertia="{INERTIA} {INERTIA} {INERTIA}"/>'
    bodies = actuators = ""
    names = [f"{kind}_{name}" for kind in ("free", "sprung") for name in FILES]
    for k, name in enumerate(names):
        joint, actuator, _ = FILES[name.partition("_")[2]]
        spring = SPRING if name.startswith("sprung") else 0.0
        bodies += (
            f'<body name="{name}" pos="0 {k} 1">{inertial}<joint name="{name}" axis="0 0 1" range="-3 3" '
            f'stiffness="{spring}" damping="{spring / 2}" {joint}/></body>'
        )
        actuators += f'<position joint="{name}" kp="1000" {actuator}/>'
    path.write_text(
        f'<mujoco><compiler angle="radian"/><worldbody><body name="root">{bodies}</body></worldbody>'
        f"<actuator>{actuators}</actuator></mujoco>"
    )
    joints = tuple(Joint(name, -3.0, 3.0, 5.0, 50.0, EFFORT) for name in names)
    return RobotSpec("row", joints, (0.0,) * len(joints), str(path))


def test_torque_is_limited_to_the_smaller_one_of_spec_and_file(tmp_path: Path) -> None:
    """Free joints accelerate by torque / inertia; joints with a spring come to rest where torque and spring balance."""
    robot, strength = _arm(tmp_path / "row.xml"), torch.tensor([1.0, 0.5])
    n, count = len(FILES), len(strength)
    engine = MujocoEngine(robot, Scene(timestep=STEP), count, threads=1)
    engine.parameters["robot.strength_scale"](np.arange(count), strength.numpy())
    engine.reset(np.arange(count), np.zeros((count, 2 * n)), {})
    torque = strength[:, None] * torch.tensor([torque for _, _, torque in FILES.values()])
    ticks, target, grip = 20, torch.full((count, 800, 2 * n), 2.5), torch.zeros(count, 800, 1)
    engine.step(target[:, : ticks + 1], grip[:, : ticks + 1])  # the command arrives one step late
    angle, speed = (x[:, :n] for x in engine.joint_state())
    assert torch.allclose(speed, torque / INERTIA * ticks * STEP, rtol=1e-3)
    assert torch.allclose(angle, torque / INERTIA * STEP**2 * ticks * (ticks + 1) / 2, rtol=1e-3), "semi-implicit Euler"
    engine.step(target, grip)
    angle, speed = (x[:, n:] for x in engine.joint_state())
    engine.close()
    assert speed.abs().max() < 1e-3
    assert torch.allclose(angle, torque / SPRING, atol=2e-3)
