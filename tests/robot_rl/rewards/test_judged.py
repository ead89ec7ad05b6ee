"""Environment with a success classifier: success ends episodes; the simulator's own test is only reported."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from robot_rl.interface.pipeline import Picture
from robot_rl.rewards.classifier import ClassifierWrapper, judged_info
from robot_rl.util.errors import ConfigError
from sim.env import TaskEnv
from sim.make import describe

Build = Callable[..., Any]
N, KEY = 2, "observation.images.front"


@pytest.fixture
def judged(task: Build, verdict: Build) -> Iterator[Build]:
    opened = []

    def build(always: bool = True, horizon: int = 12, hold: int = 3, **interface: Any) -> ClassifierWrapper:
        made = task(pictures=(Picture("front", 24, 32),), horizon=horizon, **interface)
        opened.append(TaskEnv(made, N, threads=1, success_ends=False))
        return ClassifierWrapper(opened[-1], verdict(always, hold, front=(24, 32)))

    yield build
    for env in opened:
        env.close()


def test_success_in_enough_frames_ends_an_episode_with_reward_1(judged: Build) -> None:
    env = judged()
    before = env.reset(seed=0)[0]
    rewards = []
    for _ in range(9):
        observation, reward, terminated, truncated, infos = env.step(torch.zeros(N, 4))
        rewards.append(float(reward[0]))
        assert torch.equal(reward, infos["success"].float()) and torch.equal(terminated, infos["success"])
        assert not truncated.any() and not infos["true_success"].any(), "nothing was lifted"
        if terminated.any():
            assert torch.equal(infos["_final_obs"], terminated)
            env.observation_spec.check(infos["final_obs"])
            assert (infos["final_obs"][KEY] != observation[KEY]).any(), "the next episode has begun"
            assert env.steps.tolist() == [0] * N and env.episode_number(0) == len(rewards) // 3
        before = observation
    assert rewards == [0, 0, 1] * 3, "the classifier's hold, not the task's success_hold"
    assert before[KEY].shape == (N, 24, 32, 3) and env.request_images is None, "every picture is rendered"


def test_the_simulators_success_is_reported_but_ends_no_episode(judged: Build) -> None:
    env = judged(False, horizon=100)
    expert = env.make_demonstrator(0)
    observation, _ = env.reset(seed=0)
    passed = torch.zeros(N, dtype=torch.bool)
    for step in range(1, 101):
        observation, reward, terminated, truncated, infos = env.step(expert.act(observation))
        assert not terminated.any() and not reward.any() and not infos["success"].any()
        assert bool((infos["true_success"] | ~passed).all()), "remains set until the episode ends"
        passed = infos["true_success"]
        assert truncated.tolist() == [step == 100] * N
    assert passed.any(), "the expert lifts the cube"
    assert not env.passed.any() and not env.step(torch.zeros(N, 4))[4]["true_success"].any(), "a new episode"


def test_success_in_the_last_step_is_no_timeout_and_a_timeout_resets_the_count(judged: Build) -> None:
    env = judged(horizon=3)
    env.reset(seed=0)
    for _ in range(2):
        assert not (env.step(torch.zeros(N, 4))[2]).any()
    _, reward, terminated, truncated, infos = env.step(torch.zeros(N, 4))
    assert terminated.all() and reward.all() and not truncated.any() and infos["_final_obs"].all()
    env = judged(horizon=3, hold=4)
    env.reset(seed=0)
    for step in range(1, 10):
        _, _, terminated, truncated, _ = env.step(torch.zeros(N, 4))
        assert not terminated.any() and truncated.tolist() == [step % 3 == 0] * N
    env.reset(seed=0)
    assert env.success.held.tolist() == [0] * N


def test_a_restored_environment_continues_identically(judged: Build, same: Callable[[Any, Any], bool]) -> None:
    env = judged()
    env.reset(seed=0)
    env.step(torch.zeros(N, 4))
    state = env.state_dict()
    first = [env.step(torch.ones(N, 4)) for _ in range(5)]
    env.load_state_dict(state)
    assert all(same(list(a), list(env.step(torch.ones(N, 4)))) for a in first)


def test_tasks_that_the_classifier_does_not_fit_are_refused(judged: Build, verdict: Build) -> None:
    assert judged().info.rewards == ()
    with pytest.raises(ConfigError, match="reads observation.images.front of 24x32 pixels, which is not there here"):
        judged_info(describe("panda-lift"), verdict(front=(24, 32)))
    with pytest.raises(ConfigError, match="ends its episodes by itself.*take a robot's task"):
        judged_info(describe("testbed:reach"), verdict(front=(24, 32)))
