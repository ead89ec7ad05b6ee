"""Scripted demonstrators of Gymnasium environments and of the public suites."""

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.data import Dataset
from robot_rl.rewards import reward_source
from robot_rl.util.errors import ConfigError, UnknownName, UserError
from robot_rl.util.registry import SUITES, check_trusted_task
from sim.collect import collect
from sim.demonstrators import demonstrator
from sim.foreign import gym_worker
from sim.foreign.gym_env import GymEnv
from sim.make import describe

SCRIPTED = '''
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

class Line(gym.Env):
    """A point that a script moves to 0 in two steps; actions are between 0 and 4."""
    action_space, observation_space = Box(0.0, 4.0, (1,)), Box(-9.0, 9.0, (1,))
    success_terminates, skills = True, ("STEADY", "CLUMSY")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.uniform(1, 2, 1).astype(np.float32)
        return self.x.copy(), {"begun": float(self.x[0])}

    def step(self, action):
        self.x = self.x - (action - 2)
        near = abs(float(self.x[0])) < 0.1
        return self.x.copy(), 0.0, near, False, {"success": near, "begun": 0.0}

    def demonstrator(self, skill):
        return Script(skill)

class Script:
    def __init__(self, skill):
        self.noise = {"STEADY": 0.0, "CLUMSY": 0.2}[skill]

    def begin(self, observation, info):
        assert info["begun"] == observation[0], "called with the infos of the reset"
        self.steps = 0

    def act(self, observation, info):
        self.steps += 1
        assert (self.steps > 1) == (info["begun"] == 0)
        return 2 + np.clip(observation, -1, 1) + self.noise * np.random.randn(1)

class Lost(Line):
    def step(self, action):
        return *super().step(action)[:4], {"success": False, "begun": 0.0}

gym.register("Line-v0", Line, max_episode_steps=20)
gym.register("Lost-v0", Lost, max_episode_steps=1)
'''
LINE = "gym:scripted_line:Line-v0"


@pytest.fixture(autouse=True)
def line(module: Callable[[str, str], None]) -> None:
    module("scripted_line", SCRIPTED)


def demonstrated(env: GymEnv, skill: str, seed: int, steps: int = 12) -> list[Any]:
    """Return the actions of the environment's script and the results of the steps."""
    expert = demonstrator(env, skill, seed)
    seen: list[Any] = [env.reset(seed=3)]
    for _ in range(steps):
        action = expert.act({})
        seen.append((action, env.step(action)))
    return seen


def test_script_demonstrates_in_either_python(same: Callable[..., bool]) -> None:
    here, there = GymEnv(LINE, 3), GymEnv(LINE, 3, Path(sys.executable))
    assert here.info == there.info and here.info.demonstrator and here.skills == ("STEADY", "CLUMSY")
    seen = demonstrated(here, "CLUMSY", 0)
    assert same(seen, demonstrated(there, "CLUMSY", 0))
    np.random.seed(1)
    before = np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    assert same(seen, demonstrated(here, "CLUMSY", 0)) and not same(seen, demonstrated(here, "CLUMSY", 1))
    assert (np.random.get_state()[1] == before).all(), "numpy's global generator is not changed"  # type: ignore[index]
    assert not torch.equal(seen[1][0][0], seen[1][0][1])
    there.close()


def test_collect_scripted_episodes(tmp_path: Path) -> None:
    env = GymEnv(LINE, 2)
    made = collect(env, tmp_path / "data", 4, seed=0, skill="STEADY")
    assert (made.episodes, made.attempts, made.successes) == (4, 4, 4)
    assert [e.length for e in Dataset(tmp_path / "data").episodes] == [2] * 4
    assert reward_source("success", env.info).limits(0.9) == (0.0, 1.0)
    with pytest.raises(UnknownName, match="WEAK"):
        demonstrator(env, "WEAK", 0)
    with pytest.raises(ConfigError, match="no scripted demonstrator"):
        demonstrator(GymEnv("gym:Pendulum-v1"), "CLUMSY", 0)


def test_collection_without_success_ends(tmp_path: Path) -> None:
    env = GymEnv(LINE.replace("Line", "Lost"), 4)
    with pytest.raises(UserError, match="in a row did not succeed.*--keep-failures"):
        collect(env, tmp_path / "data", 3, seed=0, skill="STEADY")
    assert collect(env, tmp_path / "all", 3, seed=0, skill="STEADY", keep_failures=True).episodes == 3


@pytest.mark.parametrize(
    ("suite", "package", "task", "remedy"),
    [("ogbench", "ogbench", "cube-single-singletask-v0", "pip install ogbench"),
     ("metaworld", "metaworld", "pick-place-v3", "--env-python"),
     ("fetch", "gymnasium_robotics", "push", "pip install gymnasium-robotics")],
)  # fmt: skip
def test_missing_suite_raises_with_installation(
    suite: str, package: str, task: str, remedy: str, monkeypatch: Any
) -> None:
    for name in [name for name in sys.modules if name.startswith((package, "robot_rl_suite_"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=f"gym:{suite}:{task}.*not installed.*{remedy}"):
        describe(f"gym:{suite}:{task}")


def test_suite_task_cannot_import_other_modules() -> None:
    assert set(SUITES) == set(gym_worker.SUITES)
    for suite in SUITES:
        check_trusted_task(f"gym:{suite}:some-v0")
        with pytest.raises(ConfigError, match="'scripted_line:Line-v0' is no id"):
            describe(f"gym:{suite}:scripted_line:Line-v0")
        with pytest.raises(ConfigError):
            check_trusted_task(f"{suite}:TASK")
    assert "scripted_line" not in sys.modules


needs_ogbench = pytest.mark.skipif(find_spec("ogbench") is None, reason="pip install ogbench")


@needs_ogbench
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["cube-single", "cube-double", "scene", "puzzle-3x3"])
def test_ogbench_oracles_reach_the_goal(name: str) -> None:
    env = GymEnv(f"gym:ogbench:{name}-singletask-v0", 1)
    assert env.info.success_terminates and env.info.reports_success and env.info.rate == 20
    expert = demonstrator(env, "STEADY", 0)
    env.reset(seed=0)
    for _ in range(500):
        _, _, terminated, truncated, infos = env.step(expert.act({}))
        if terminated or truncated:
            break
    assert terminated and infos["success"]


@needs_ogbench
@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (4, 4), (4, 6)])
def test_ogbench_puzzle_presses_solve_lights_out(rows: int, columns: int) -> None:
    """Random solvable boards, also with several solutions."""
    describe("gym:ogbench:cube-single-singletask-v0")  # loads the suite
    presses = sys.modules["robot_rl_suite_ogbench"].presses
    rng, n = np.random.default_rng(0), rows * columns
    x, y = np.divmod(np.arange(n), columns)
    near = (np.abs(x[:, None] - x) + np.abs(y[:, None] - y) <= 1).astype(int)
    for _ in range(50):
        wrong = near @ rng.integers(0, 2, n) % 2
        assert (near @ presses(wrong, rows, columns) % 2 == wrong).all()


OLDER = Path(__file__).parents[2] / ".venv-sims" / "bin" / "python"
needs_older = pytest.mark.skipif(not OLDER.exists(), reason="make sims: Fetch needs an older MuJoCo")


@needs_older
@pytest.mark.parametrize("task", ["reach", "push", "pick-and-place"])
def test_fetch_scripts_reach_the_goal(task: str) -> None:
    """State and reward agree: the goal is within 5 cm exactly when the episode ends."""
    env = GymEnv(f"gym:fetch:{task}", 3, OLDER)
    assert [field.name for field in env.info.state.fields] == ["achieved_goal", "desired_goal", "observation"]
    assert env.info.success_terminates and (env.info.horizon, env.info.rate) == (50, 25)
    expert, won = demonstrator(env, "STEADY", 0), torch.zeros(3, dtype=torch.bool)
    env.reset(seed=0)
    for _ in range(50):
        seen, reward, terminated, truncated, infos = env.step(expert.act({}))
        last = infos["final_obs"]["observation.state"] if "final_obs" in infos else seen["observation.state"]
        near = (last[:, :3] - last[:, 3:6]).norm(dim=1) < 0.05
        assert torch.equal(near, terminated) and torch.equal(near, infos["success"]) and not truncated.any()
        assert torch.equal(reward, near.float() - 1)
        won |= terminated
    assert won.all()
    env.close()


@needs_older
def test_fetch_slide_has_no_script() -> None:
    env = GymEnv("gym:fetch:slide", 1, OLDER)
    assert not env.info.demonstrator
    env.close()
    with pytest.raises(ConfigError, match="pick-and-place"):
        GymEnv("gym:fetch:throw", 1, OLDER)


METAWORLD = os.environ.get("METAWORLD_PYTHON", "")


@pytest.mark.skipif(not METAWORLD, reason="METAWORLD_PYTHON names no Python with metaworld, which pins another MuJoCo")
def test_metaworld_mt10_instructions_and_scripts(same: Callable[..., bool]) -> None:
    env = GymEnv("gym:metaworld:mt10", 10, Path(METAWORLD))
    assert (env.info.observation, env.info.action, env.info.rate) == (4, 4, 80)
    key = "observation.images.corner"
    first = [env.reset(seed=seed)[0] for seed in (0, 0, 10)]
    assert {env.instruction(i) for i in range(10)} == set(env.instructions) and len(env.instructions) == 10
    assert same(first[0], first[1]), "independent of earlier episodes"
    assert (first[0][key] != first[2][key]).flatten(1).any(1).all(), "pictures show other objects and goals"
    assert torch.allclose(first[0]["observation.state"], first[2]["observation.state"], atol=1e-3), "states do not"
    expert, won = demonstrator(env, "STEADY", 0), torch.zeros(10, dtype=torch.bool)
    env.reset(seed=0)
    env.request_images(torch.zeros(10, dtype=torch.bool))
    for _ in range(250):
        won |= env.step(expert.act({}))[2]
    assert won.all()
    env.close()
    env = GymEnv("gym:metaworld:mt50", 1, Path(METAWORLD), "slide the plate out")
    assert len(set(env.instructions)) == 50
    env.reset(seed=1)
    assert env.instruction(0) == "slide the plate out of the cabinet sideways"
    env.close()
