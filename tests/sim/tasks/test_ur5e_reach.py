"""ur5e-reach: its demonstrator succeeds, zero actions do not, and the target stays where it was sampled."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.data import Dataset
from robot_rl.data.recording import load_episodes
from robot_rl.interface.environment import EnvInfo
from robot_rl.util.errors import UserError
from sim.collect import collect
from sim.demonstrators import make_expert
from sim.env import TaskEnv
from sim.randomization import Randomize
from sim.tasks import tasks


def attempt(env: TaskEnv, act: Any) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Return success and return (n,) of the first episodes, and the extremes of their motion."""
    observation, _ = env.reset(seed=500)
    n = env.num_envs
    success, done, earned = torch.zeros(n, dtype=torch.bool), torch.zeros(n, dtype=torch.bool), torch.zeros(n)
    fastest, tilt = torch.zeros(len(env.robot.joints)), torch.zeros(())
    while not done.all():
        observation, reward, terminated, truncated, infos = env.step(act(observation))
        running = ~done & ~(terminated | truncated)
        success |= infos["success"] & ~done
        earned += reward * ~done
        done |= terminated | truncated
        fastest = fastest.maximum(env.true.joint_velocity[running].abs().amax(0) if running.any() else fastest)
        turned = env.pipeline.kinematics.forward(env.true.joint_position)[1][running, 2, 2]  # type: ignore[union-attr]
        tilt = tilt.maximum((turned + 1).max() if running.any() else tilt)
    return success, earned, {"speed": fastest, "tilt": tilt}


def test_the_steady_expert_reaches_smoothly() -> None:
    env = TaskEnv("ur5e-reach", 50, threads=1)
    success, earned, motion = attempt(env, make_expert(env, "STEADY", 0).act)
    assert success.float().mean() >= 0.95 and env.divergences == 0
    assert -1.5 < earned.mean() < 0
    assert (motion["speed"] < env.robot.limit("velocity")).all()
    assert motion["tilt"] < 0.01, "the flange points down within 8 degrees"
    events = env.shield_events
    assert events["workspace"] < 10, "rarely so fast that it could not stop in the box"
    assert events == {"nonfinite": 0, "position": 0, "workspace": events["workspace"], "collision": 0}


def test_zero_actions_do_not_reach_the_target() -> None:
    env = TaskEnv("ur5e-reach", 32, threads=1)
    success, earned, _ = attempt(env, lambda _: torch.zeros(32, 3))
    assert success.float().mean() <= 0.1 and earned.mean() < -2.5


def test_the_target_stays_at_its_sampled_position_even_inside_the_arm() -> None:
    env = TaskEnv("ur5e-reach", 4, threads=1)
    env.reset(seed=3)
    drawn = env.sampled[:, :3].clone()
    assert np.allclose(env.true.objects["target"][:, :3], drawn, atol=1e-6)
    first = [r.parameter for r in env.randomization[:3]]
    assert first == ["target.x", "target.y", "target.z"], "the first parameters, which the twin samples alone"
    wrist = env.engine.model.body("wrist_1_link").id  # type: ignore[attr-defined]
    pose = np.tile([*env.engine.batch.bind("xpos")[0, wrist], 1.0, 0, 0, 0], (4, 1))  # type: ignore[attr-defined]
    env.engine.place("target", pose)
    before = env.engine.object_pose("target")
    still = torch.tensor(env.robot.home).expand(4, 500, 6)
    env.engine.step(still, torch.zeros(4, 500, 1))
    assert torch.allclose(env.engine.object_pose("target"), before, atol=1e-6)


def test_off_policy_learners_get_success_as_reward(tmp_path: Path) -> None:
    env = TaskEnv("ur5e-reach", 2, threads=1)
    collect(env, tmp_path / "data", 2, seed=0, skill="STEADY", image_size=0)
    recorded = Dataset(tmp_path / "data").columns(["next.reward"])["next.reward"]
    assert (recorded < 0).any(), "the dataset has the dense reward"
    for episode in load_episodes(tmp_path / "data", EnvInfo.of(env.pipeline)):
        assert episode["reward"].tolist() == [0.0] * (len(episode["reward"]) - 1) + [1.0]


@pytest.mark.parametrize("name", ["mass", "friction"])
def test_mass_and_friction_of_an_object_without_collisions_are_refused(name: str) -> None:
    shipped = tasks.get("ur5e-reach")
    more = (*shipped.randomization, Randomize(f"target.{name}", 0.1, 0.2))
    with pytest.raises(UserError, match=f"cannot randomize target.{name}; it can: .*target.size"):
        TaskEnv(replace(shipped, randomization=more), 1, threads=1)
