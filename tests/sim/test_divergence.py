"""Physics that diverge because of too large motor gains: contained, counted, kept, replayed."""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_rl.cli import main as cli
from robot_rl.training.checkpoint import load_state
from robot_rl.util.errors import ConfigError, UserError
from sim import divergence
from sim.engines.model import OVERSPEED
from sim.env import TaskEnv
from sim.randomization import Randomize
from sim.replay import read, replay
from sim.tasks import tasks
from sim.tasks.base import Task

N = 12
WORST = {"panda-lift": (300, 300), "go2-velocity": (15, 15)}
"""Largest scales of stiffness and strength: some episodes diverge at once, some late, some not."""


def wild(name: str) -> Task:
    task, (stiffness, strength) = tasks.get(name), WORST[name]
    highest = {"robot.stiffness_scale": stiffness, "robot.strength_scale": strength}
    ours = tuple(Randomize(parameter, 1, high, "log_uniform") for parameter, high in highest.items())
    others = tuple(r for r in task.randomization if r.parameter not in {o.parameter for o in ours})
    return replace(task, interface=replace(task.interface, task=f"wild-{name}"), randomization=others + ours)


@pytest.fixture(params=sorted(WORST))
def task(request: pytest.FixtureRequest) -> Task:
    return wild(request.param)


def shaken(env: TaskEnv, steps: int, seed: int = 0) -> list[dict[str, Any]]:
    """Step with correlated random actions; return the results of `steps` steps."""
    rng = torch.Generator().manual_seed(seed)
    action = torch.zeros(env.num_envs, env.pipeline.actions.size)
    out = []
    for _ in range(steps):
        action = 0.8 * action + 0.6 * torch.randn(action.shape, generator=rng)
        observation, reward, terminated, truncated, infos = env.step(action.clamp(-1, 1))
        out.append({"observation": observation, "reward": reward, "terminated": terminated, "truncated": truncated})
        out[-1] |= infos
    return out


def numbers(value: Any) -> list[torch.Tensor]:
    if isinstance(value, dict):
        return [x for v in value.values() for x in numbers(v)]
    if isinstance(value, list):
        return [x for v in value for x in numbers(v)]
    return [torch.as_tensor(value)] if not isinstance(value, str) and value is not None else []


def test_results_of_diverging_physics_are_finite_and_below_the_speed_limit(task: Task) -> None:
    """A finite but absurd speed would dominate all other rewards."""
    env = TaskEnv(task, N, seed=3)
    env.reset(seed=3, options={"stagger": True})
    limit, fastest, steps = OVERSPEED * env.robot.limit("velocity"), torch.zeros(len(env.robot.joints)), []
    for k in range(100):
        steps += shaken(env, 1, seed=k)
        fastest = torch.maximum(fastest, env.true.joint_velocity.abs().amax(0))
    measured = [x for step in steps for x in step.pop("metrics", {}).values()]
    assert env.divergences >= 3 and all(x.isfinite().all() for x in numbers(steps))
    assert not any(x.isinf().any() for x in measured), "NaN means not measured"
    assert (fastest <= limit).all() and (fastest > 0.2 * limit).any(), fastest / limit


@pytest.mark.parametrize("stagger", [False, True])
def test_replay_diverges_at_the_same_step(task: Task, stagger: bool, tmp_path: Path) -> None:
    """In an environment of its own, tick by tick."""
    env = TaskEnv(task, N, seed=3, diverged=tmp_path)
    env.reset(seed=3, options={"stagger": stagger})
    shaken(env, 100)
    files = sorted(tmp_path.iterdir())
    assert len(files) == min(env.divergences, divergence.MAX_FILES) >= 3
    results = [replay(file, task=task) for file in files]
    assert [r.diverged for r in results] == [r.recorded for r in results]
    for result in results:
        last = result.trace[-1]
        assert result.first and last["diverged"] and last["step"] == result.recorded
    if not stagger:
        assert max(r.recorded for r in results) > 3, "some diverge after several steps"


def test_partly_recorded_episode_after_a_resume_is_not_kept(tmp_path: Path) -> None:
    task = wild("panda-lift")
    first = TaskEnv(task, N, seed=3)
    first.reset(seed=3)
    shaken(first, 1)
    env = TaskEnv(task, N, seed=3, diverged=tmp_path)
    env.reset(seed=3)
    env.load_state_dict(first.state_dict())
    shaken(env, 160, seed=1)  # also in the next episodes
    assert env.divergences > len(list(tmp_path.iterdir())) > 0
    for file in tmp_path.iterdir():
        result = replay(file, task=task)
        assert result.diverged == result.recorded and result.episode["episode"] > 0


Said = Callable[..., tuple[int, str, str]]


@pytest.fixture
def robot_rl(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any) -> Said:
    """Run a command in an empty folder; the tasks are registered as another package would."""
    monkeypatch.chdir(tmp_path)
    for name in WORST:
        attribute = f"WILD_{name.replace('-', '_')}"
        monkeypatch.setitem(tasks.entries, f"wild-{name}", (f"{__name__}:{attribute}", "blows up"))
        monkeypatch.setattr(sys.modules[__name__], attribute, wild(name), raising=False)

    def call(*argv: object) -> tuple[int, str, str]:
        code = cli.main([str(a) for a in argv])
        torch.set_num_threads(1)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_train_keeps_diverged_episodes_and_replay_nan_replays_them(robot_rl: Said) -> None:
    """With PPO: metrics and policy stay finite, and MuJoCo writes no warnings to stderr or its log."""
    words = ["--recipe", "ppo", "--training.steps", 480, "--training.num-envs", N, "--training.rollout", 20]
    code, out, err = robot_rl("train", "wild-go2-velocity", *words, "--out", "r", "--json")
    assert code == 0 and "unstable" not in err and not Path("MUJOCO_LOG.TXT").exists(), err
    assert json.loads(out)["diverged"] == "r/diverged"
    rows = [json.loads(line) for line in Path("r/metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["train/divergences"] >= 3 and all(math.isfinite(v) for row in rows for v in row.values())
    assert all(x.isfinite().all() for x in numbers(load_state(Path("r/checkpoint.safetensors"))["state"]["agent"]))

    file = max(Path("r/diverged").iterdir(), key=lambda f: len(read(f)[1]))
    code, out, err = robot_rl("replay-nan", file, "--json")
    assert code == 0, err
    shown = json.loads(out)
    assert shown["diverged_step"] == shown["recorded_step"] == len(read(file)[1])
    assert shown["task"] == "wild-go2-velocity" and shown["first"] and "note" not in shown
    assert shown["drawn"]["randomization/robot.stiffness_scale"] > 1
    columns = {"step", "tick", "action", "qpos", "qvel", "fastest", "tracking_error", "torque", "contact_force"}
    assert columns <= shown["trace"][0].keys()
    code, out, err = robot_rl("replay-nan", file)
    assert code == 0 and "stiffness_scale" in out and "fastest" in out, err


def test_evaluate_and_collect_keep_diverged_episodes(robot_rl: Said) -> None:
    words = ["--episodes", 16, "--num-envs", 16, "--out", "e/evaluation.json", "--json"]
    code, out, err = robot_rl("evaluate", "random:wild-panda-lift", *words)
    said = json.loads(out)
    assert code == 0 and said["divergences"] > 0 and said["diverged"] == "e/diverged", err
    collect = ["collect", "wild-panda-lift", "--episodes", 8, "--image-size", 0, "--keep-failures", "--out", "set"]
    code, out, err = robot_rl(*collect, "--json")
    said = json.loads(out)
    assert code == 0 and said["divergences"] > 0 and said["diverged"] == "set/diverged", err
    code, out, err = robot_rl("dataset", "verify", "set")
    assert code == 0, (out, err)


def test_number_of_kept_files_is_limited_and_unsuitable_files_are_refused(tmp_path: Path) -> None:
    task = wild("panda-lift")
    gains = tuple(Randomize(f"robot.{n}_scale", 1e4, 1e5) for n in ("stiffness", "strength"))
    task = replace(task, randomization=(*task.randomization[:-2], *gains))
    env = TaskEnv(task, N, seed=0, diverged=tmp_path / "diverged")
    env.reset(seed=0)
    shaken(env, 20)
    files = sorted((tmp_path / "diverged").iterdir())
    assert env.divergences > 2 * divergence.MAX_FILES and len(files) == divergence.MAX_FILES
    with pytest.raises(UserError, match="changed since.*robot.strength_scale"):
        replay(files[0], task=replace(task, randomization=task.randomization[:-1]))
    with pytest.raises(ConfigError, match=f"is a folder.*{files[0].name}"):
        read(tmp_path)
    for damage in (files[0].read_bytes()[:-9], b"{}"):
        files[0].write_bytes(damage)
        with pytest.raises(UserError, match=f"{files[0].name} is damaged"):
            read(files[0])
    files[0].unlink()
    with pytest.raises(ConfigError, match="does not exist"):
        read(files[0])
