"""Physics that blow up by themselves, under gains that no motor has: contained, counted, kept, replayed."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_rl.cli import main as cli
from robot_rl.rewards import SuccessReward
from robot_rl.training.checkpoint import load_state
from robot_rl.training.off_policy import OffPolicyConfig, demo_replay, train_off_policy
from robot_rl.util.errors import UserError
from sim import divergence
from sim.divergence import read
from sim.engines.model import OVERSPEED
from sim.env import TaskEnv
from sim.randomization import Randomize
from sim.replay import replay
from sim.tasks import tasks
from sim.tasks.base import Task

N = 12
WORST = {"panda-lift": (300, 300), "go2-velocity": (15, 15)}
"""Largest stiffness and strength, such that some episodes blow up at once, some late and some never."""


def wild(name: str) -> Task:
    task, (stiffness, strength) = tasks.get(name), WORST[name]
    ours = (
        Randomize("robot.stiffness_scale", 1, stiffness, "1", "log_uniform"),
        Randomize("robot.strength_scale", 1, strength, "1", "log_uniform"),
    )
    others = tuple(r for r in task.randomization if r.parameter not in {o.parameter for o in ours})
    return replace(task, interface=replace(task.interface, task=f"wild-{name}"), randomization=others + ours)


@pytest.fixture(params=sorted(WORST))
def task(request: pytest.FixtureRequest) -> Task:
    return wild(request.param)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register a task as another package would."""
    for name in WORST:
        attribute = f"WILD_{name.replace('-', '_')}"
        monkeypatch.setitem(tasks.entries, f"wild-{name}", (f"{__name__}:{attribute}", "blows up"))
        monkeypatch.setattr(sys.modules[__name__], attribute, wild(name), raising=False)


def shaken(env: TaskEnv, steps: int, seed: int = 0) -> list[dict[str, Any]]:
    """What came back from `steps` steps of wandering actions, after a reset."""
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


def test_nothing_that_comes_back_is_not_finite(task: Task) -> None:
    env = TaskEnv(task, N, seed=3)
    env.reset(seed=3, options={"stagger": True})
    steps = shaken(env, 100)
    measured = [x for step in steps for x in step.pop("metrics", {}).values()]
    assert env.divergences >= 3
    assert all(x.isfinite().all() for x in numbers(steps))
    assert not any(x.isinf().any() for x in measured), "NaN says that there was nothing to measure"


def test_no_speed_beyond_physics_reaches_a_learner(task: Task) -> None:
    """What is finite and absurd would stand above all other rewards."""
    env = TaskEnv(task, N, seed=3)
    env.reset(seed=3, options={"stagger": True})
    fastest, seen = OVERSPEED * env.robot.limit("velocity"), torch.zeros(len(env.robot.joints))
    for k in range(100):
        shaken(env, 1, seed=k)
        seen = torch.maximum(seen, env.true.joint_velocity.abs().amax(0))
    assert env.divergences >= 3 and (seen <= fastest).all() and (seen > 0.2 * fastest).any(), seen / fastest


@pytest.mark.parametrize("stagger", [False, True])
def test_a_kept_episode_diverges_again_in_the_same_step(task: Task, stagger: bool, tmp_path: Path) -> None:
    """Alone, tick by tick, as it did beside others."""
    env = TaskEnv(task, N, seed=3, diverged=tmp_path)
    env.reset(seed=3, options={"stagger": stagger})
    shaken(env, 100)
    files = sorted(tmp_path.iterdir())
    assert len(files) == min(env.divergences, divergence.MOST) >= 3
    results = [replay(file, task=task) for file in files]
    assert [r.diverged for r in results] == [r.recorded for r in results]
    for result in results:
        last = result.trace[-1]
        assert result.first and last["diverged"] and last["step"] == result.recorded
    if not stagger:
        assert max(r.recorded for r in results) > 3, "some have a history"


def test_the_file_is_the_same_whatever_runs_beside(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "MOST", 1000)
    for n in (4, N):
        env = TaskEnv(task, n, seed=3, diverged=tmp_path / str(n))
        env.reset(seed=3)
        rng = torch.Generator().manual_seed(0)
        for _ in range(40):
            action = torch.rand(1, env.pipeline.actions.size, generator=rng).expand(n, -1)
            env.step(2 * action - 1)
    few, many = ({f.name: f.read_bytes() for f in (tmp_path / str(n)).glob("*")} for n in (4, N))
    assert few and all(many.get(name, content) == content for name, content in few.items())


def test_a_task_that_always_diverges_does_not_fill_the_disk(task: Task, tmp_path: Path) -> None:
    gain = [r for r in task.randomization if not r.parameter.endswith(("stiffness_scale", "strength_scale"))]
    gain += [Randomize(f"robot.{n}_scale", 1e4, 1e5, "1") for n in ("stiffness", "strength")]
    env = TaskEnv(replace(task, randomization=tuple(gain)), N, seed=0, diverged=tmp_path)
    env.reset(seed=0)
    shaken(env, 20)
    assert env.divergences > 2 * divergence.MOST and len(list(tmp_path.iterdir())) == divergence.MOST


def test_no_half_written_file_has_the_final_name(tmp_path: Path) -> None:
    """The kernel kills the process in the middle of write()."""
    program = f"""
import resource, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_divergence import N, TaskEnv, shaken, wild
env = TaskEnv(wild("panda-lift"), N, seed=3, threads=1, diverged=Path("kept"))
env.reset(seed=3)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
shaken(env, 100)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, timeout=110)
    assert done.returncode == -signal.SIGXFSZ, done.stderr
    parts = list((tmp_path / "kept").iterdir())
    assert [p.stat().st_size for p in parts] == [500] and parts[0].suffix == ".part"
    assert not list((tmp_path / "kept").glob("*.safetensors"))


def test_an_episode_that_a_resume_fell_into_is_counted_only(tmp_path: Path) -> None:
    task = wild("panda-lift")
    first = TaskEnv(task, N, seed=3)
    first.reset(seed=3)
    shaken(first, 1)
    env = TaskEnv(task, N, seed=3, diverged=tmp_path)
    env.reset(seed=3)
    env.load_state_dict(first.state_dict())
    shaken(env, 160, seed=1)  # and on into the next episodes
    assert env.divergences > len(list(tmp_path.iterdir())) > 0
    for file in tmp_path.iterdir():
        result = replay(file, task=task)
        assert result.diverged == result.recorded and result.episode["episode"] > 0


def test_a_task_that_has_changed_since_is_refused(task: Task, tmp_path: Path) -> None:
    env = TaskEnv(task, N, seed=3, diverged=tmp_path)
    env.reset(seed=3)
    shaken(env, 30)
    file = next(tmp_path.iterdir())
    changed = replace(task, randomization=task.randomization[:-1])
    with pytest.raises(UserError, match="changed since.*robot.strength_scale"):
        replay(file, task=changed)


# ---- learners ----------------------------------------------------------------------------------------------------
def test_no_divergence_reaches_the_replay(tmp_path: Path, residual: Any, agent: Any, run: Any) -> None:
    env = TaskEnv(wild("panda-lift"), N, seed=3)
    size = env.pipeline.observer.spec.size
    policy = residual(size, 4)
    learner = agent(policy)
    rng = torch.Generator().manual_seed(0)
    demo = {"observation.state": torch.randn(12, size, generator=rng)}
    demo |= {"action": torch.zeros(12, 4), "reward": torch.zeros(12)}
    demos = demo_replay(learner, [demo], rng)
    config = OffPolicyConfig(
        steps=800, num_envs=N, batch=16, warmup=80, learning_starts=40, capacity=2000, log_every=80,
        checkpoint_every=800, updates_per_step=0.1,
    )  # fmt: skip
    folder = run()
    train_off_policy(env, learner, demos, SuccessReward(), config, folder, 3, lambda step, row: None)
    assert env.divergences >= 3
    saved = load_state(folder.checkpoint_file)["state"]
    assert all(x.isfinite().all() for x in numbers(saved["replay"]) + numbers(saved["agent"]))
    rows = [json.loads(line) for line in (folder.folder / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["train/divergences"] == env.divergences


Said = Callable[..., tuple[int, str, str]]


@pytest.fixture
def robot_rl(
    registered: None, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Said:
    monkeypatch.chdir(tmp_path)

    def call(*argv: object) -> tuple[int, str, str]:
        code = cli.main([str(a) for a in argv])
        torch.set_num_threads(1)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_training_keeps_what_diverged_and_the_command_replays_it(robot_rl: Said) -> None:
    """With PPO: the metrics and the policy stay finite, nothing is told on stderr or in a log of MuJoCo's."""
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
    assert {"qpos", "qvel", "fastest", "action", "tracking_error", "torque", "contact_force"} <= shown["trace"][
        0
    ].keys()
    code, out, err = robot_rl("replay-nan", file)
    assert code == 0 and "stiffness_scale" in out and "fastest" in out, err


def test_evaluate_and_collect_count_and_keep(robot_rl: Said) -> None:
    code, out, err = robot_rl(
        "evaluate", "random:wild-panda-lift", "--episodes", 16, "--num-envs", 16, "--out", "e/evaluation.json", "--json"
    )
    said = json.loads(out)
    assert code == 0 and said["divergences"] > 0 and said["diverged"] == "e/diverged", err
    collect = ["collect", "wild-panda-lift", "--episodes", 8, "--image-size", 0, "--keep-failures", "--out", "set"]
    code, out, err = robot_rl(*collect, "--json")
    said = json.loads(out)
    assert code == 0 and said["divergences"] > 0 and said["diverged"] == "set/diverged", err
    code, out, err = robot_rl("dataset", "verify", "set")
    assert code == 0, (out, err)


@pytest.mark.parametrize("damage", ["missing", "truncated", "foreign", "a folder"])
def test_a_file_that_is_none(robot_rl: Said, task: Task, damage: str) -> None:
    env = TaskEnv(task, N, seed=3, diverged=Path("r/diverged"))
    env.reset(seed=3)
    shaken(env, 30)
    file = next(Path("r/diverged").iterdir())
    if damage == "missing":
        file.unlink()
    elif damage == "truncated":
        file.write_bytes(file.read_bytes()[:-9])
    elif damage == "foreign":
        file.write_text("{}")
    code, out, err = robot_rl("replay-nan", "r" if damage == "a folder" else file)
    assert code == (2 if damage in ("missing", "a folder") else 1), err
    assert out == "" and err.startswith("robot-rl: ") and err.count("\n") == 1, err
    assert file.name in err and "(a defect" not in err
