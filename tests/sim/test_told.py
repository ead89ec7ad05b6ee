"""Gymnasium environments with pictures and instructions: recorded, trained and evaluated by instruction."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_rl.cli.main import main
from robot_rl.data import Dataset
from robot_rl.data.recording import load_episodes
from robot_rl.interface.language import decode
from robot_rl.interface.observation_spec import LANGUAGE
from robot_rl.util.errors import ConfigError
from sim.collect import collect
from sim.foreign.gym_env import GymEnv

TOLD = '''
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

class Side(gym.Env):
    """A point that must leave to the left or right, as instructed. The brightness of its picture is the number of
    steps; the first pixel counts the drawn pictures."""
    action_space, observation_space = Box(-1.0, 1.0, (1,)), Box(-9.0, 9.0, (1,))
    success_terminates, skills = True, ("STEADY", "CLUMSY")
    pictures, instructions = {"top": (16, 24)}, ("go to the left", "go to the right", "go away")
    drawn = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.steps = self.np_random.uniform(-0.4, 0.4, 1).astype(np.float32), 0
        self.wanted = (options or {}).get("instruction", 0)
        return self.x.copy(), {}

    def step(self, action):
        self.x, self.steps = self.x + action, self.steps + 1
        x = float(self.x[0])
        won = (x < -1, x > 1, abs(x) > 1)[self.wanted]
        return self.x.copy(), 0.0, won, False, {"success": won, "right": self.wanted > 0}

    def picture(self, name):
        assert name == "top"
        self.drawn += 1
        seen = np.full((16, 24, 3), 10 * self.steps, np.uint8)
        seen[0, 0] = self.drawn
        return seen

    def demonstrator(self, skill):
        return self

    def begin(self, observation, info):
        pass

    def act(self, observation, info):
        return np.array([0.9 if self.wanted else -0.9])

class Wordy(Side):
    instructions = ("go " + 50 * "far ",)

gym.register("Side-v0", Side, max_episode_steps=9)
gym.register("Wordy-v0", Wordy, max_episode_steps=9)
'''
SIDE, PICTURE = "gym:told_side:Side-v0", "observation.images.top"


@pytest.fixture(autouse=True)
def side(module: Callable[[str, str], None]) -> None:
    module("told_side", TOLD)


def instructions_of(env: GymEnv) -> list[str]:
    return [env.instruction(i) for i in range(env.num_envs)]


def steps(observation: dict[str, Any]) -> list[int]:
    """Return the number of steps in the pictures."""
    return [int(value) // 10 for value in observation[PICTURE][:, -1, -1, 0]]


def test_pictures_and_instructions_in_either_python(same: Callable[..., bool]) -> None:
    here, there = GymEnv(SIDE, 3), GymEnv(SIDE, 3, Path(sys.executable))
    assert here.info == there.info and here.info.extra_inputs.pictures == {PICTURE: (16, 24, 3)}
    seen = []
    for env in (here, there):
        seen.append([env.reset(seed=6)])
        seen[-1] += [env.step(torch.full((3, 1), 0.7)) for _ in range(12)]
        for observation, *_ in seen[-1]:
            env.info.extra_inputs.check({key: observation[key] for key in env.info.extra_inputs})
            assert set(observation) == {"observation.state", PICTURE, LANGUAGE}
        assert decode(seen[-1][-1][0][LANGUAGE]) == instructions_of(env)
    assert same(seen[0], seen[1])
    there.close()


def test_instructions_are_permuted_and_selected() -> None:
    env, three = GymEnv(SIDE, 6), {"go to the left", "go to the right", "go away"}
    orders = set()
    for seed in range(0, 60, 6):
        env.reset(seed=seed)
        assert set(instructions_of(env)[:3]) == set(instructions_of(env)[3:]) == three
        orders |= {tuple(instructions_of(env)[:3]), tuple(instructions_of(env)[3:])}
    assert len(orders) == 6, "all permutations occur"
    env.reset(seed=6, options={"group": 3})
    drawn = instructions_of(env)
    assert drawn == 3 * drawn[:1] + 3 * drawn[3:4]
    following = {instructions_of(env)[0]}
    env.reset(seed=6)
    while len(following) < 3:  # episodes of environment 0 continue the sequence of its seeds
        assert instructions_of(env)[0] in following
        observation, *_, infos = env.step(torch.ones(6, 1))
        assert decode(observation[LANGUAGE]) == instructions_of(env)
        if "final_obs" in infos and infos["_final_obs"][0]:
            assert decode(infos["final_obs"][LANGUAGE])[0] != instructions_of(env)[0] not in following
            following.add(instructions_of(env)[0])
    env = GymEnv(SIDE, 4, instruction_set="go to")
    env.reset(seed=6)
    assert sorted(instructions_of(env)) == 2 * ["go to the left"] + 2 * ["go to the right"]
    assert env.simulation["instruction_set"] == "go to"
    with pytest.raises(ConfigError, match="no instruction of 'jump'; it has: go to the left, "):
        GymEnv(SIDE, 1, Path(sys.executable), "jump")
    with pytest.raises(ConfigError, match="'gym:Pendulum-v1' has no instruction of 'held-out'"):
        GymEnv("gym:Pendulum-v1", instruction_set="held-out")
    with pytest.raises(ConfigError, match="'go far far .* 202 bytes.*128"):
        GymEnv("gym:told_side:Wordy-v0")


def test_only_requested_and_first_pictures_are_drawn() -> None:
    env, still = GymEnv(SIDE, 3, instruction_set="go to the left"), torch.zeros(3, 1)
    drawn = lambda: [one.unwrapped.drawn for one in env.batch.envs]  # type: ignore[union-attr]  # noqa: E731
    observation, _ = env.reset(seed=0)
    first = drawn()
    env.request_images(torch.tensor([False, True, False]))
    observation, *_ = env.step(still)
    assert steps(observation) == [0, 1, 0] and drawn() == [first[0], first[1] + 1, first[2]]
    env.request_images(torch.zeros(3, dtype=torch.bool))
    observation, *_ = env.step(still)
    assert steps(observation) == [0, 1, 0]
    env.request_images(None)
    for _ in range(6):
        observation, *_ = env.step(still)
    assert steps(observation) == [8] * 3
    observation, *_, truncated, infos = env.step(still)
    assert truncated.all() and steps(infos["final_obs"]) == [9] * 3 and steps(observation) == [0] * 3


def test_recorded_episodes_have_instructions_and_pictures(tmp_path: Path) -> None:
    env = GymEnv(SIDE, 3, instruction_set="go to")
    made = collect(env, tmp_path / "data", 6, seed=1, skill="STEADY")
    recorded = Dataset(tmp_path / "data")
    assert made.successes == 6 and {e.task for e in recorded.episodes} == {"go to the left", "go to the right"}
    assert json.loads((tmp_path / "data/meta/collect.json").read_text())["instruction_set"] == "go to"
    for ours, theirs in zip(load_episodes(tmp_path / "data", env.info), recorded.episodes, strict=True):
        assert decode(ours[LANGUAGE]) == [theirs.task] * theirs.length
        assert (ours["action"] > 0).all() == ("right" in theirs.task)
        age = ours[PICTURE][:, -1, -1, 0].float() / 10
        assert torch.allclose(age, torch.arange(theirs.length).float(), atol=0.4), "video is lossy"


def test_train_and_evaluate_a_vla_by_instruction(tmp_path: Path, capsys: Any) -> None:
    data, run = str(tmp_path / "d"), tmp_path / "run"
    assert main(["collect", SIDE, "--episodes", "6", "--num-envs", "3", "--out", data]) == 0
    small = ["--policy.encoder.width", "16", "--policy.encoder.layers", "1", "--policy.encoder.channels", "8", "8"]
    train = ["train", SIDE, "--recipe", "vla-sft", "--dataset", data, *small]
    assert main([*train, "--training.updates", "3", "--training.batch", "8", "--out", str(run)]) == 0
    capsys.readouterr()
    words = ["evaluate", str(run), "--episodes", "6", "--num-envs", "3", "--instructions", "go to", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)["by_instruction"]
    assert len(found) == 2 and sum(each["episodes"] for each in found.values()) == 6
    assert (run / "evaluation-go.to.json").exists()
