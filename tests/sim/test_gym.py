"""Registered Gymnasium environments: order of episodes, seeds, observation spaces."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from robot_rl.interface.pipeline import Picture
from robot_rl.util.seeds import HELD_OUT
from sim.env import TaskEnv
from sim.gym import IDS, GymTask
from sim.step.sampling import EpisodeSampler
from sim.tasks import tasks

Build = Callable[..., Any]
HORIZON, SEED = 3, 7
STILL = np.array([0.0, 0.0, 0.0, 1.0], np.float32)


@pytest.fixture
def env(task: Build) -> GymTask:
    return GymTask(task(horizon=HORIZON))


@pytest.fixture
def starts(task: Build) -> list[np.ndarray]:
    """First observations of episodes 0, 1, 2, ... of the seed."""
    vector = TaskEnv(task(horizon=HORIZON), 1, threads=1)
    first = [vector.reset(seed=SEED, options={"episode": e})[0]["observation.state"][0].numpy() for e in range(6)]
    assert all(not np.array_equal(a, b) for a, b in zip(first, first[1:], strict=False))
    return first


def finish(env: gym.Env[Any, Any]) -> None:
    """Play to the end of the episode."""
    ends = [env.step(STILL)[3] for _ in range(HORIZON)]
    assert ends == [False] * (HORIZON - 1) + [True]


def test_reset_plays_the_next_episode_once(env: GymTask, starts: list[np.ndarray], monkeypatch: Any) -> None:
    begun: list[int] = []
    sample = EpisodeSampler.sample
    monkeypatch.setattr(EpisodeSampler, "sample", lambda self, ids: (begun.extend(ids.tolist()), sample(self, ids))[1])
    for e in range(4):
        observation, info = env.reset(seed=SEED if e == 0 else None)
        assert info == {} and env.vector.episode_number(0) == e
        assert np.array_equal(observation, starts[e])
        finish(env)
    assert len(begun) == 5, "one reset per episode, including the next one"


def test_reset_during_an_episode_begins_the_next(env: GymTask, starts: list[np.ndarray]) -> None:
    env.reset(seed=SEED)
    env.step(STILL)
    assert np.array_equal(env.reset()[0], starts[1])
    assert np.array_equal(env.reset()[0], starts[2]), "also without a step in between"
    finish(env)
    assert np.array_equal(env.reset()[0], starts[3])
    assert np.array_equal(env.reset()[0], starts[4])
    assert np.array_equal(env.reset(seed=SEED)[0], starts[0]), "a seed starts over"
    finish(env)
    assert np.array_equal(env.reset()[0], starts[1])


def test_last_step_returns_the_final_observation(env: GymTask, task: Build) -> None:
    vector = TaskEnv(task(horizon=HORIZON), 1, threads=1)
    env.reset(seed=SEED)
    vector.reset(seed=SEED)
    for _ in range(HORIZON):
        observation, *_ = env.step(STILL)
        infos = vector.step(STILL[None])[4]
    assert np.array_equal(observation, infos["final_obs"]["observation.state"][0].numpy())


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_sync_vector_env_plays_all_episodes(task: Build, starts: list[np.ndarray], mode: AutoresetMode) -> None:
    envs: Any = SyncVectorEnv([lambda: GymTask(task(horizon=HORIZON))] * 2, autoreset_mode=mode)
    observation, _ = envs.reset(seed=SEED)
    seen = [observation[0]]
    ended = np.zeros(2, bool)
    while len(seen) < 4:
        observation, _, _, truncated, _ = envs.step(np.tile(STILL, (2, 1)))
        if (truncated if mode is AutoresetMode.SAME_STEP else ended).all():
            seen.append(observation[0])
        ended = truncated
    assert all(np.array_equal(a, b) for a, b in zip(seen, starts[:4], strict=True))
    assert [e.vector.episode_number(0) for e in envs.envs] == [3, 3]
    envs.close()


@pytest.mark.filterwarnings("ignore:.*Box observation space m.*imum value is")
@pytest.mark.parametrize("name", list(IDS))
def test_gymnasium_env_checker_passes(name: str) -> None:
    env = gym.make(name)
    check_env(env.unwrapped, skip_render_check=True)
    if tasks.get(IDS[name]).interface.pictures:
        assert "observation.environment_state" not in env.observation_space.spaces, "no privileged observation"
    else:
        assert isinstance(env.observation_space, gym.spaces.Box), "the robot's state vector"
    env.close()


@pytest.mark.filterwarnings("ignore:.*Box observation space m.*imum value is")
def test_privileged_and_picture_observations(task: Build) -> None:
    env = gym.make("robot_rl/PandaLift-v0", privileged=True)
    check_env(env.unwrapped, skip_render_check=True)
    assert set(env.observation_space.spaces) == {"observation.state", "observation.environment_state"}
    env.close()
    seeing = GymTask(task(pictures=(Picture("front", 24, 32),), horizon=HORIZON))
    check_env(seeing, skip_render_check=True)
    assert seeing.observation_space["observation.images.front"].shape == (24, 32, 3)
    seeing.close()


@pytest.mark.parametrize("privileged", [False, True])
def test_vector_entry_point_has_equal_spaces_and_observations(privileged: bool) -> None:
    one = gym.make("robot_rl/PandaLift-v0", privileged=privileged)
    many = gym.make_vec("robot_rl/PandaLift-v0", num_envs=2, privileged=privileged)
    assert many.single_observation_space == one.observation_space
    first, batch = one.reset(seed=SEED)[0], many.reset(seed=SEED)[0]
    assert set(many.observation_space) == set(one.observation_space) if privileged else batch.shape == (2, *first.shape)
    for key in first if privileged else [...]:
        assert np.allclose(batch[key][0], first[key], atol=1e-6)
    for _ in range(100):
        observation, _, _, truncated, infos = many.step(many.action_space.sample())
    assert truncated.all() and np.shape(infos["final_obs"]) == np.shape(observation)
    one.close()
    many.close()


@pytest.mark.filterwarnings("ignore:.*Box observation space m.*imum value is")
@pytest.mark.parametrize("mode", ["sync", "vector_entry_point"])
def test_unseeded_environments_differ(mode: str) -> None:
    """Within a vector environment, and between two vector environments."""
    starts = []
    for _ in range(2):
        envs: Any = gym.make_vec("robot_rl/PandaLift-v0", num_envs=2, vectorization_mode=mode)
        starts += [np.asarray(x) for x in envs.reset()[0]]
        envs.close()
    assert len(np.unique(np.array(starts), axis=0)) == 4


def test_constructor_seed_is_used(task: Build, starts: list[np.ndarray]) -> None:
    env = GymTask(task(horizon=HORIZON), seed=SEED)
    assert np.array_equal(env.reset()[0], starts[0])
    assert GymTask(task(horizon=HORIZON)).vector.seed < HELD_OUT


@pytest.mark.parametrize("algorithm", ["SAC", "PPO"])
@pytest.mark.parametrize("name", [name for name, task in IDS.items() if not tasks.get(task).interface.pictures])
def test_stable_baselines3_trains_for_200_steps(name: str, algorithm: str) -> None:
    sb3, env = pytest.importorskip("stable_baselines3"), gym.make(name)
    settings: dict[str, Any] = {"learning_starts": 100, "batch_size": 32}
    settings = settings if algorithm == "SAC" else {"n_steps": 100, "batch_size": 50, "n_epochs": 2}
    small = {"net_arch": [32]}
    model = getattr(sb3, algorithm)("MlpPolicy", env, seed=0, device="cpu", policy_kwargs=small, **settings)
    before = {k: v.clone() for k, v in model.policy.state_dict().items()}
    model.learn(200)
    after = model.policy.state_dict()
    assert model.num_timesteps == 200 and all(v.isfinite().all() for v in after.values())
    assert any(not torch.equal(before[k], after[k]) for k in before)
    action, _ = model.predict(env.reset(seed=0)[0], deterministic=True)
    assert env.action_space.contains(np.clip(action, -1, 1))
    env.close()
