"""Learners of other libraries as recipes: what they are told, and that the saved policy is the trained one."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from policies.bundle import load_bundle, save_bundle
from robot_rl.bench.checks import Arm, Check
from robot_rl.bench.methods import Runner, run_check
from robot_rl.bench.peers import PEERS, peers, require, table
from robot_rl.bench.peers.offline import D3IQL, D3CalQL, D3TD3PlusBC, D3Training, dataset
from robot_rl.bench.peers.recipe import PeerEnv, PeerTraining
from robot_rl.bench.peers.rsl_rl import Parallel, RslRlPPO
from robot_rl.bench.peers.sb3 import SB3PPO, SB3SAC, SB3TD3, Batched
from robot_rl.bench.peers.sbx import SBXCrossQ
from robot_rl.bench.results import judge
from robot_rl.cli.bench import Peers
from robot_rl.cli.collect import Collect
from robot_rl.cli.main import parse
from robot_rl.cli.train import Train
from robot_rl.interface.observation_spec import PRIVILEGED, STATE
from robot_rl.recipes import recipes
from robot_rl.recipes.job import Job
from robot_rl.training.run import Run, read_metrics
from robot_rl.util.errors import ConfigError, Interrupted, UnknownName
from sim.make import describe, make

PUSH, SWING = "testbed:push", "testbed:swing"
SHORT = PeerTraining(steps=192, num_envs=4, log_every=64)


def job(task: str, folder: Path, data: Path = Path("nowhere")) -> Job:
    run = Run(folder / "run", {"task": task, "recipe": "peer", "seed": 0})
    return Job(describe(task), lambda count: make(task, count), run, 0, data, None, lambda *_: None)


SAME_STEPS = [name for name in peers if not name.startswith("lerobot-")]
"""Rows of equal steps; LeRobot's rows are of equal minutes."""


@pytest.mark.parametrize("name", SAME_STEPS)
def test_arms_have_valid_flags_and_equal_steps(name: str) -> None:
    check, steps = peers[name], set()
    for arm in (check.method, check.control):
        parsed: Any = parse(Train[recipes.get(arm.recipe)], [check.task, *arm.flags], "train")  # type: ignore[misc]
        names = ("steps", "num_envs") if not check.data else ("offline_updates", "batch", "reward")
        steps.add(tuple(getattr(parsed.config.training, each) for each in names))
    assert len(steps) == 1 and check.parity and check.figure == "return"


def test_networks_are_equally_wide() -> None:
    for name, check in ((name, peers[name]) for name in SAME_STEPS):
        sizes: list[tuple[int, ...]] = []
        for arm in (check.method, check.control):
            parsed: Any = parse(Train[recipes.get(arm.recipe)], [check.task, *arm.flags], "train")  # type: ignore[misc]
            config = parsed.config
            sizes.append(tuple(getattr(config, "hidden", None) or config.policy.hidden))
            if hasattr(config, "policy"):
                assert tuple(config.agent.hidden) == sizes[-1]
        assert sizes[0] == sizes[1], name


def test_ends_and_time_limits_are_told_apart(tmp_path: Path) -> None:
    """In push success ends an episode, and so does the time limit, which must not stop a learner's bootstrap."""
    env = PeerEnv(job(PUSH, tmp_path), PeerTraining(steps=10**6, num_envs=50))
    batched, seen = Batched(env), {True: 0, False: 0}
    first = batched.reset()
    assert first.shape == (50, batched.observation_space.shape[0])
    rng = np.random.default_rng(0)
    for _ in range(env.info.horizon or 0):
        action = rng.uniform(-1, 1, (50, env.info.action)).astype(np.float32)
        batched.step_async(action)
        observation, reward, done, infos = batched.step_wait()
        for i in range(50):
            assert bool(infos[i]) == bool(done[i])
            if done[i]:
                seen[infos[i]["TimeLimit.truncated"]] += 1
                assert not np.array_equal(infos[i]["terminal_observation"], observation[i])
    assert seen[True] > 0
    env.close()


def test_rsl_rl_gets_time_outs_and_what_only_critics_read(tmp_path: Path) -> None:
    env = PeerEnv(job("go2-velocity", tmp_path), PeerTraining(steps=10**6, num_envs=8), stagger=True)
    parallel = Parallel(env, "cpu")
    seen = parallel.get_observations()
    assert seen["policy"].shape == (8, env.info.observation)
    assert seen["critic"].shape == (8, env.info.observation + env.privileged_size) and env.privileged_size
    real, ended = env.env.step, {"out": 0, "done": 0}

    def step(actions: torch.Tensor) -> Any:
        observation, reward, terminated, truncated, infos = real(actions)
        ended["out"] += int((truncated & ~terminated).sum())
        ended["done"] += int((terminated | truncated).sum())
        assert {STATE, PRIVILEGED} <= observation.keys()
        return observation, reward, terminated, truncated, infos

    env.env.step, told = step, {"out": 0, "done": 0}
    rng = torch.Generator().manual_seed(0)
    for _ in range(200):
        _, reward, done, extras = parallel.step(torch.rand(8, env.info.action, generator=rng) * 2 - 1)
        assert reward.shape == done.shape == (8,)
        told["out"] += int(extras["time_outs"].sum())
        told["done"] += int(done.sum())
    assert told == ended and ended["done"] > 0
    env.close()


@pytest.mark.parametrize(
    ("recipe", "task"),
    [
        (SB3SAC(training=SHORT, learning_starts=20), SWING), (SB3TD3(training=SHORT, learning_starts=20), SWING),
        (SBXCrossQ(training=SHORT, learning_starts=20), SWING), (SB3PPO(training=SHORT, rollout=16), SWING),
        (RslRlPPO(training=SHORT, rollout=16, hidden=(32,)), "go2-velocity"),
    ],
    ids=["sac", "td3", "crossq", "ppo", "rsl-rl"],
)  # fmt: skip
def test_bundle_acts_as_the_trained_learner(recipe: Any, task: str, tmp_path: Path, monkeypatch: Any) -> None:
    kept: list[Any] = []
    build = type(recipe).build
    monkeypatch.setattr(type(recipe), "build", lambda *arguments: kept.append(build(*arguments)) or kept[0])
    with (work := job(task, tmp_path)).opened:
        save_bundle(recipe.train(work), tmp_path / "bundle")
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [64, 128, 192]
    policy = load_bundle(tmp_path / "bundle").policy
    state = torch.randn(32, work.info.observation, generator=torch.Generator().manual_seed(0))
    ours = policy.act({STATE: state}, torch.Generator())[:, 0]
    model = kept[0]
    if isinstance(recipe, RslRlPPO):
        with torch.no_grad():
            theirs = model.get_inference_policy()({"policy": state}).clamp(-1, 1)
    else:
        env = model.get_vec_normalize_env()
        numbers = env.normalize_obs(state.numpy()) if env else state.numpy()
        theirs = torch.from_numpy(model.predict(numbers, deterministic=True)[0])
    assert ours.shape == theirs.shape and torch.allclose(ours, theirs, atol=1e-5)
    assert ours.std() > 0


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dataset of four episodes."""
    folder = tmp_path_factory.mktemp("peers") / "data"
    words = [SWING, "--skill", "MIXED", "--episodes", "4", "--num-envs", "4", "--out", str(folder)]
    assert parse(Collect, words, "collect").run() == 0
    return folder


@pytest.mark.parametrize("kind", [D3IQL, D3TD3PlusBC, D3CalQL], ids=lambda kind: kind.algorithm)
def test_bundle_acts_as_the_offline_learner(kind: Any, episodes: Path, tmp_path: Path, monkeypatch: Any) -> None:
    kept: list[Any] = []
    build = kind.build
    monkeypatch.setattr(kind, "build", lambda *arguments: kept.append(build(*arguments)) or kept[0])
    recipe = kind(training=D3Training(offline_updates=20, batch=32, reward="task", log_every=10), hidden=(32,))
    with (work := job(SWING, tmp_path, episodes)).opened:
        save_bundle(recipe.train(work), tmp_path / "bundle")
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [10, 20]
    state = torch.randn(32, work.info.observation, generator=torch.Generator().manual_seed(0))
    ours = load_bundle(tmp_path / "bundle").policy.act({STATE: state}, torch.Generator())[:, 0]
    theirs = torch.from_numpy(kept[0].predict(state.numpy())).clamp(-1, 1)
    assert torch.allclose(ours, theirs, atol=1e-5) and ours.std() > 0


def test_dataset_has_all_episodes_with_their_ends(episodes: Path, tmp_path: Path) -> None:
    work = job(SWING, tmp_path, episodes)
    theirs, ours = dataset(work, "task").episodes, work.demonstrations("task", "all")
    assert len(theirs) == len(ours) == 4
    for episode, row in zip(theirs, ours, strict=True):
        assert np.array_equal(episode.observations, row[STATE].numpy())
        assert np.array_equal(episode.actions, row["action"].numpy())
        assert np.array_equal(episode.rewards[:, 0], row["reward"].numpy())
        assert not episode.terminated, "swing ends by its time limit only"


def test_the_best_quarter_of_the_demonstrations(episodes: Path, tmp_path: Path) -> None:
    work = job(SWING, tmp_path, episodes)
    returns = [float(row["reward"].sum()) for row in work.demonstrations("task", "all")]
    (best,) = work.demonstrations("task", "best")
    assert float(best["reward"].sum()) == max(returns)
    (same,) = work.demonstrations("success", "best")
    assert torch.equal(same[STATE], best[STATE]) and not same["reward"].any(), "ranked by the task's reward"


def test_steps_beyond_the_last_are_not_logged(tmp_path: Path) -> None:
    """A learner ends its rollout, which may be longer than the training."""
    with (work := job(SWING, tmp_path)).opened:
        env = PeerEnv(work, PeerTraining(steps=10, num_envs=4, log_every=100))
        env.begin()
        for _ in range(6):
            env.step(torch.zeros(4, env.info.action))
        env.close()
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [12]


def test_stop_signal_ends_the_training(tmp_path: Path) -> None:
    with (work := job(SWING, tmp_path)).opened as run, pytest.raises(Interrupted, match="starts again"):
        run.stop_signal = 15
        SB3SAC(training=SHORT).train(work)
    assert not (tmp_path / "run" / "bundle").exists()


def test_pictures_are_refused(tmp_path: Path) -> None:
    with (work := job("panda-lift-cameras", tmp_path)).opened, pytest.raises(ConfigError, match="read the state alone"):
        SB3SAC(training=SHORT).train(work)


def test_missing_library_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *of: None if name == "rsl_rl" else real(name, *of))
    require(["sac-pendulum"])
    remedy = r"rsl-rl-lib is not installed; pip install -c constraints.txt -e '\.\[peers\]'"
    with pytest.raises(ConfigError, match=remedy):
        Peers(only=("ppo-go2",)).run()
    with pytest.raises(UnknownName):
        Peers(only=("sac-pendulums",)).run()


def test_comparison_by_commands(tmp_path: Path) -> None:
    few = ("--training.steps", "400", "--training.log-every", "100")
    check = Check("", SWING, Arm("sac", (*few, "--training.learning-starts", "390")), Arm(
        "robot_rl.bench.peers.sb3:SB3SAC", (*few, "--learning-starts", "390")
    ), figure="return", parity=True)  # fmt: skip
    assert run_check("tiny", check, Runner(tmp_path), (0,), 8, 1, lambda *_: None) == {}
    record = judge("tiny", check, tmp_path, (0,), {})
    better = record["method"]["mean"] >= record["control"]["low"]
    assert record["verdict"] == ("passed" if better else "failed")
    line = table({"sac-pendulum": record}).splitlines()[2]
    assert line.startswith("| `sac-pendulum` | `testbed:swing` | 400 |") and record["verdict"] in line
    assert str(tmp_path) not in json.dumps(record)


def test_published_rows_are_those_of_the_table() -> None:
    from robot_rl.bench.results import checkout, read_results

    assert read_results(checkout(PEERS.published)).keys() <= peers.keys()
