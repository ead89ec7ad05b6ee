"""A legged robot's task in Genesis and MuJoCo Warp: training, resuming, replay of diverged episodes, and a GPU."""

import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from policies.bundle import load_bundle
from robot_rl.cli.main import main
from robot_rl.training.checkpoint import load_state, save_state
from robot_rl.training.run import read_metrics
from robot_rl.util.errors import ConfigError
from sim.env import TaskEnv
from sim.randomization import Randomize
from sim.replay import replay
from sim.tasks import tasks

pytestmark = pytest.mark.timeout(600)
needs_genesis, needs_warp = (
    pytest.mark.skipif(not find_spec(package), reason=f"{package} is not installed")
    for package in ("genesis", "mujoco_warp")
)
both = pytest.mark.parametrize(
    "engine", [pytest.param("genesis", marks=needs_genesis), pytest.param("warp", marks=needs_warp)]
)

N = 4
WALK = tasks.get("go2-velocity")
WILD = tuple(Randomize(f"robot.{n}_scale", 1, 3000, "log_uniform") for n in ("stiffness", "strength"))
"""Impossible gains, some of which make the physics diverge."""


def explore(env: TaskEnv, steps: int, seed: int) -> list[dict[str, Tensor]]:
    """Return the results of temporally correlated random actions."""
    rng, results = torch.Generator().manual_seed(seed), []
    action = torch.zeros(N, env.pipeline.actions.size)
    for _ in range(steps):
        action = 0.8 * action + 0.6 * torch.randn(action.shape, generator=rng)
        observation, reward, terminated, truncated, _ = env.step(action.clamp(-1, 1))
        results.append(observation | {"reward": reward, "terminated": terminated, "truncated": truncated})
    return results


@needs_genesis
def test_several_threads_are_refused() -> None:
    with pytest.raises(ConfigError, match="one thread of the CPU, not on 2; .*QD_NUM_THREADS"):
        TaskEnv(WALK, N, engine="genesis", device="cpu", threads=2)


@needs_genesis
def test_ground_friction_brakes_a_sliding_robot() -> None:
    task = replace(WALK, scene=replace(WALK.scene, iterations=50))
    env = TaskEnv(task, N, engine="genesis", device="cpu", randomize=False)
    engine: Any = env.engine
    friction, home = np.array([0.05, 0.1, 0.2, 1.0]), torch.tensor(env.robot.home).expand(N, 100, 12)
    engine.parameters["ground.friction"](np.arange(N), friction)
    engine.reset(np.arange(N), np.tile(env.robot.home, (N, 1)), {})
    engine.step(home, torch.zeros(N, 100, 1))
    speed = torch.zeros(N, engine.solver.n_dofs)
    speed[:, engine.world.dofs[1]] = 1.0  # all robots slide to the left
    engine.solver.set_dofs_velocity(speed)
    engine.step(home[:, :15], torch.zeros(N, 15, 1))
    slowed = 1.0 - engine.qvel[:, 1]
    assert slowed[:3] == pytest.approx(friction[:3] * 9.81 * 15 * WALK.scene.timestep, rel=0.3)
    assert (np.diff(slowed) > 0).all()
    env.close()


@both
def test_a_policy_is_trained(engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--engine", engine, "--device", "cpu", "--out", str(tmp_path / "r"), "--training.steps", "240"]
    code = main(["train", "go2-velocity", *words, "--training.num-envs", str(N), "--training.rollout", "20"])
    torch.set_num_threads(1)
    assert code == 0, capsys.readouterr().err
    rows = read_metrics(tmp_path / "r")
    assert [row["step"] for row in rows] == [80, 160, 240] and rows[-1]["train/divergences"] == 0
    bundle = load_bundle(tmp_path / "r")
    assert bundle.provenance["engine"] == engine and bundle.interface.task == "go2-velocity"


@both
def test_a_resumed_task_continues_bit_identically(engine: str, tmp_path: Path) -> None:
    """Through a file and in another environment: engine, sensors, commands, pushes and later episodes."""
    first, second = (TaskEnv(WALK, N, engine=engine, device="cpu") for _ in range(2))
    first.reset(seed=7, options={"stagger": True})
    second.reset(seed=1)
    explore(first, 25, seed=0)
    save_state(first.state_dict(), tmp_path / "state")
    observation = second.load_state_dict(load_state(tmp_path / "state"))
    assert all(torch.equal(observation[k], first.episodes.observation()[k]) for k in observation)
    ours, theirs = (explore(env, 60, seed=1) for env in (first, second))
    assert any(step["terminated"].any() or step["truncated"].any() for step in ours), "also across a reset"
    for a, b in zip(ours, theirs, strict=True):
        assert all(torch.equal(a[name], b[name]) for name in a)
    first.close()
    second.close()


@both
def test_a_diverged_episode_is_saved_and_diverges_in_its_replay(engine: str, tmp_path: Path) -> None:
    others = tuple(r for r in WALK.randomization if r.parameter not in {w.parameter for w in WILD})
    wild = replace(WALK, randomization=others + WILD)
    env = TaskEnv(wild, N, seed=3, engine=engine, device="cpu", diverged=tmp_path)
    env.reset(seed=3)
    steps = explore(env, 30, seed=0)
    env.close()
    assert env.divergences >= 2 and all(x.isfinite().all() for step in steps for x in step.values())
    files = sorted(tmp_path.iterdir())[:2]
    results = [replay(file, task=wild) for file in files]
    assert [r.diverged for r in results] == [r.recorded for r in results]
    assert all(r.first and r.trace[-1]["diverged"] and r.episode["engine"] == engine for r in results)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA GPU")
@both
def test_a_gpu_trains_and_evaluates(engine: str, tmp_path: Path) -> None:
    """In separate processes, since Genesis runs on the CPU in this one."""
    program, common = [sys.executable, "-m", "robot_rl.cli.main"], ["--engine", engine, "--device", "cuda", "--json"]
    sizes = ["--training.steps", "240", "--training.num-envs", str(N), "--training.rollout", "20"]
    train = ["train", "go2-velocity", *sizes, "--out", str(tmp_path / "r")]
    evaluate = ["evaluate", str(tmp_path / "r"), "--episodes", str(N), "--num-envs", str(N)]
    for words in (train, evaluate):
        done = subprocess.run([*program, *words, *common], capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["device"] == "cuda" and result["episodes"] == N and result["divergences"] == 0
    rows = read_metrics(tmp_path / "r")
    assert [row["step"] for row in rows] == [80, 160, 240] and rows[-1]["train/divergences"] == 0
