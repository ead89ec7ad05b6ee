"""Stable-Baselines3 checks the registered tasks and trains on them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from sim.gym import IDS

sb3 = pytest.importorskip("stable_baselines3")


@pytest.fixture(params=list(IDS))
def env(request: pytest.FixtureRequest) -> Any:
    env = gym.make(request.param)
    yield env
    env.close()


@pytest.mark.parametrize("algorithm", ["SAC", "PPO"])
def test_training_for_200_steps(env: gym.Env[Any, Any], algorithm: str) -> None:
    if isinstance(env.observation_space, gym.spaces.Dict):
        pytest.skip("its network for pictures is slow")
    settings: dict[str, Any] = {"SAC": {"learning_starts": 100, "batch_size": 32}, "PPO": {"n_steps": 100}}
    settings["PPO"] |= {"batch_size": 50, "n_epochs": 2}
    small = {"net_arch": [32]}
    model = getattr(sb3, algorithm)("MlpPolicy", env, seed=0, device="cpu", policy_kwargs=small, **settings[algorithm])
    before = {k: v.clone() for k, v in model.policy.state_dict().items()}
    model.learn(200)
    after = model.policy.state_dict()
    assert model.num_timesteps == 200 and all(v.isfinite().all() for v in after.values())
    assert any(not torch.equal(before[k], after[k]) for k in before)
    action, _ = model.predict(env.reset(seed=0)[0], deterministic=True)
    assert env.action_space.contains(np.clip(action, -1, 1))
