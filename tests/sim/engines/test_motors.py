"""DC motors: the torque that their supply allows, ideal springs below it, and who refuses them."""

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robot_rl.robots import robots
from robot_rl.util.errors import ConfigError
from sim.engines.model import compile_model
from sim.engines.mujoco import MujocoEngine
from sim.env import TaskEnv
from sim.rendering.gl import mujoco
from sim.scenes import Scene
from sim.tasks import tasks

GO2 = robots.get("go2")
AIR = Scene(motors="dc", hung=True, timestep=0.002, cone="pyramidal", impratio=1.0)
KP, KD, EFFORT, SPEED = (
    np.array([getattr(joint, name) for joint in GO2.joints]) for name in ("stiffness", "damping", "effort", "velocity")
)
MODEL = compile_model(GO2, AIR)


def motor_torque(position: np.ndarray, velocity: np.ndarray, command: np.ndarray) -> np.ndarray:
    """Return MuJoCo's torques (J,) for joint positions, velocities and commanded positions (J,)."""
    data = mujoco.MjData(MODEL)
    data.qpos[:], data.ctrl[:] = MODEL.qpos0, command
    for k, name in enumerate(GO2.joint_names):
        joint = MODEL.joint(name)
        data.qpos[joint.qposadr[0]], data.qvel[joint.dofadr[0]] = position[k], velocity[k]
    for a in range(MODEL.nu):  # without the delay of a step
        MODEL.actuator_delay[a] = 0.0
    mujoco.mj_forward(MODEL, data)
    force: np.ndarray = data.actuator_force.copy()
    return force


@settings(max_examples=50)
@given(seed=st.integers(0, 2**31), scale=st.floats(0.1, 3.0))
def test_torque_is_that_of_the_springs_within_what_the_voltage_allows(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    velocity, wanted = scale * SPEED * rng.uniform(-1, 1, 12), scale * EFFORT * rng.uniform(-1, 1, 12)
    command = np.array(GO2.home) + (wanted + KD * velocity) / KP
    least, most = EFFORT * (-1 - velocity / SPEED), EFFORT * (1 - velocity / SPEED)
    expected = np.clip(np.clip(wanted, least, most), -EFFORT, EFFORT)
    assert motor_torque(np.array(GO2.home), velocity, command) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def moved(motors: Any, speed: float, torque: float = 0.0, stiff: float = 1.0) -> torch.Tensor:
    """Return the legs' path (T, J) after a wave of set-points of 0.2 rad, in the air, with feedforward torques."""
    engine = MujocoEngine(GO2, replace(AIR, motors=motors), 1, threads=1)
    engine.set_springs(stiff * KP[None], KD[None], np.full((1, 12), torque))
    engine.reset(np.array([0]), np.array([GO2.home]), {})
    path = []
    for k in range(150):
        goal = torch.tensor([GO2.home]) + 0.2 * np.sin(speed * k * 0.002)
        engine.step(goal[:, None], torch.zeros(1, 1, 1))
        path.append(engine.joint_state()[0][0].clone())
    engine.close()
    return torch.stack(path)


@pytest.mark.parametrize(("torque", "stiff"), [(0.0, 1.0), (2.0, 1.0), (2.0, 0.0)])
def test_slow_motion_is_that_of_ideal_motors(torque: float, stiff: float) -> None:
    """Also with a feedforward torque, and with nothing else."""
    ideal, dc = (moved(motors, 10.0, torque, stiff) for motors in ("ideal", "dc"))
    assert (ideal - dc).abs().max() < 1e-4 and (ideal - torch.tensor(GO2.home)).abs().max() > 0.1


def test_knees_are_no_faster_than_their_motors() -> None:
    ideal, dc = (moved(motors, 0.0, 40.0, 0.0)[:, 2::3].diff(dim=0).abs().max() / 0.002 for motors in ("ideal", "dc"))
    assert float(dc) < SPEED[2] < 1.5 * SPEED[2] < float(ideal)


def test_strength_scales_the_torque_at_rest() -> None:
    engine = MujocoEngine(GO2, AIR, 2, threads=1)
    engine.parameters["robot.strength_scale"](np.arange(2), np.array([0.5, 1.0]))
    engine.reset(np.arange(2), np.tile(GO2.home, (2, 1)), {})
    for _ in range(3):
        engine.step(torch.tensor([GO2.home] * 2)[:, None] + 1.5, torch.zeros(2, 1, 1))
    weak, strong = engine.joint_torque().abs()
    assert (weak < 0.51 * torch.from_numpy(EFFORT)).all() and (strong > 0.6 * torch.from_numpy(EFFORT)).any()
    engine.close()


@pytest.mark.skipif(not find_spec("mujoco_warp"), reason="mujoco_warp is not installed")
def test_warp_has_the_same_motors() -> None:
    from sim.engines.warp import WarpEngine

    paths = []
    for kind in (MujocoEngine, WarpEngine):
        engine = kind(GO2, AIR, 1, threads=1)
        engine.reset(np.array([0]), np.array([GO2.home]), {})
        for k in range(200):
            engine.step(torch.tensor([GO2.home])[:, None] + 0.6 * np.sin(0.08 * k), torch.zeros(1, 1, 1))
        paths.append(engine.joint_state()[0].cpu())
        engine.close()
    assert torch.allclose(paths[0], paths[1], atol=1e-4)


def test_stiff_arms_and_genesis_refuse_dc_motors() -> None:
    lift = tasks.get("panda-lift")
    with pytest.raises(ConfigError, match="servos of robot 'panda' hide their motors"):
        TaskEnv(replace(lift, scene=replace(lift.scene, motors="dc")), 1)
    if find_spec("genesis"):
        from sim.engines.genesis import GenesisEngine

        with pytest.raises(ConfigError, match="ideal motors only"):
            GenesisEngine(GO2, AIR, 1)
    with pytest.raises(ValueError, match="motors"):
        Scene(motors="ac")  # type: ignore[arg-type]


def test_a_robot_stands_on_dc_motors_with_randomized_gains() -> None:
    walk = tasks.get("go2-velocity")
    env = TaskEnv(replace(walk, scene=replace(walk.scene, motors="dc")), 8, seed=1)
    env.reset(seed=1)
    for _ in range(100):
        _, _, terminated, _, _ = env.step(torch.zeros(8, 12))
        assert not terminated.any()
    env.close()
