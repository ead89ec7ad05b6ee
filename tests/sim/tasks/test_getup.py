"""go2-getup: how it begins, what collides, and when it succeeds; go2-stand: nobody commands a walk."""

import numpy as np
import torch

from robot_rl.interface.observations import down
from sim.env import TaskEnv
from sim.rendering.gl import mujoco


def test_robots_begin_in_the_air_at_any_roll_within_their_limits() -> None:
    env = TaskEnv("go2-getup", 256, threads=1)
    env.reset(seed=0)
    over = down(env.true.base_quat)[:, 2]
    assert over.min() < -0.95 and over.max() > 0.95, "upright, and upside down"
    assert torch.allclose(env.true.base_position[:, 2], torch.tensor(0.52), atol=1e-5)
    low, high = (torch.tensor([getattr(j, end) for j in env.robot.joints]) for end in ("low", "high"))
    assert ((env.true.joint_position >= low - 1e-6) & (env.true.joint_position <= high + 1e-6)).all()
    env.close()


def test_a_robot_on_its_back_lies_on_its_links_and_fails() -> None:
    env = TaskEnv("go2-getup", 4, threads=1, ranges={"start.roll": {"low": 3.1, "high": 3.1}}, without=["start.pitch"])
    env.reset(seed=0)
    bodies: set[str] = set()
    engine, model = env.engine, env.engine.model
    data = mujoco.MjData(model)
    for k in range(100):
        _, _, terminated, _, infos = env.step(torch.zeros(4, 12))
        assert not infos["success"].any() and not terminated.any()
        if k > 50:
            data.qpos[:] = engine.qpos[0]
            mujoco.mj_forward(model, data)
            bodies |= {model.body(model.geom_bodyid[g]).name for g in np.ravel(data.contact.geom) if g >= 0}
    assert any("thigh" in name or "hip" in name or "calf" in name or name == "base" for name in bodies)
    env.close()


def test_standing_for_a_second_succeeds() -> None:
    still = ["start.roll", "start.pitch", "start.height", "robot.home_offset"]
    env = TaskEnv("go2-getup", 4, threads=1, without=still)
    env.reset(seed=0)
    ended = torch.zeros(4, dtype=torch.bool)
    for k in range(80):
        _, reward, terminated, _, infos = env.step(torch.zeros(4, 12))
        ended |= infos["success"]
        assert torch.equal(terminated, infos["success"]) and (reward <= 0).all()
        assert k >= 48 or not ended.any()
    assert ended.all()
    env.close()


def test_nobody_commands_a_robot_that_stands() -> None:
    env = TaskEnv("go2-stand", 16, threads=1)
    env.reset(seed=0)
    for _ in range(450):
        env.step(torch.zeros(16, 12))
        assert not env.state.command.any()
    assert env.sampled.max() > 5, "a payload of several kilograms"
    env.close()
