"""Killed and resumed runs are bit-identical to uninterrupted runs."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_rl.data.sources import Demonstrations
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.rewards import SuccessReward
from robot_rl.training.checkpoint import load_state
from robot_rl.training.off_policy import OffPolicyConfig, demo_replay, train_off_policy
from robot_rl.training.run import read_metrics
from robot_rl.training.supervised import SupervisedConfig, train_supervised
from robot_rl.util.errors import Interrupted
from sim.env import TaskEnv

Build = Callable[..., Any]
Same = Callable[[Any, Any], bool]


class Killed(BaseException):
    """Replacement for SIGKILL."""


def ending(step: int, number: int) -> Callable[[int, dict[str, float]], None]:
    """Return a progress callback that ends the run at `step` by a signal; 0: by `Killed`."""

    def progress(now: int, metrics: dict[str, float]) -> None:
        if now >= step and not number:
            raise Killed
        if now >= step:
            os.kill(os.getpid(), number)

    return progress


def silent(step: int, metrics: dict[str, float]) -> None:
    pass


def demonstrations() -> Demonstrations:
    rng = torch.Generator().manual_seed(0)
    lengths = torch.tensor([7, 5, 9])
    state, action = torch.randn(21, 3, generator=rng), 2 * torch.rand(21, 2, generator=rng) - 1
    return Demonstrations({"observation.state": state, "action": action}, torch.tensor([0, 7, 12]), lengths)


BC = SupervisedConfig(updates=24, batch=8, checkpoint_every=8, log_every=4)


def clone(policy: Any, run: Any, progress: Callable[[int, dict[str, float]], None] = silent) -> None:
    agent = Cloning(policy, CloningConfig(warmup=4), BC.updates)
    train_supervised(agent, demonstrations(), BC, run, 1, progress)


def curve(run: Any, name: str) -> list[tuple[float, float]]:
    return [(row["step"], row[name]) for row in read_metrics(run.folder) if name in row]


def interrupt(run: Build, train: Callable[[Any], None], number: int, saved: int) -> None:
    """Run until `train` is ended by a signal or by `Killed`; check the step of the checkpoint."""
    with pytest.raises(Interrupted if number else Killed) as error, run("broken") as one:
        one.stop_on_signals()
        train(one)
    assert not number or error.value.code == 128 + number
    assert load_state(one.checkpoint_file)["step"] == saved


@pytest.mark.parametrize(("step", "number", "saved"), [(20, 0, 16), (12, signal.SIGINT, 12)], ids=["kill", "signal"])
def test_supervised_resume(diffusion: Build, run: Build, same: Same, step: int, number: int, saved: int) -> None:
    """A signal saves at a step that is not a multiple of the checkpoint interval."""
    start = diffusion()
    whole, broken = copy.deepcopy(start), copy.deepcopy(start)
    clone(whole, first := run("whole"))
    interrupt(run, lambda one: clone(broken, one, ending(step, number)), number, saved)
    torch.manual_seed(77)  # other initial weights, as in a new process
    again = diffusion()
    with run("broken", resume=True) as two:
        clone(again, two)
    assert same(again.state_dict(), whole.state_dict()) and not same(again.state_dict(), start.state_dict())
    assert curve(first, "bc/loss") == curve(two, "bc/loss") and len(curve(two, "bc/loss")) == 6


RL = OffPolicyConfig(
    steps=120, num_envs=2, updates_per_step=0.3, batch=8, warmup=30, learning_starts=20, capacity=100,
    checkpoint_every=40, log_every=10,
)  # fmt: skip


@pytest.mark.parametrize(("step", "number", "saved"), [(110, 0, 80), (70, signal.SIGTERM, 70)], ids=["kill", "signal"])
def test_off_policy_resume(
    task: Build, residual: Build, agent: Build, run: Build, same: Same, step: int, number: int, saved: int
) -> None:
    """With a full replay, during episodes."""

    def train(folder: Any, seed: int = 0, progress: Any = silent) -> tuple[Any, Any]:
        """Build environment and agent as a new process does, with random weights of `seed`, and train."""
        env, rng = TaskEnv(task(horizon=9), 2, threads=1), torch.Generator().manual_seed(0)
        size = env.pipeline.observer.spec.size
        torch.manual_seed(0)
        base = residual(size, 4).base
        torch.manual_seed(seed)
        learner = agent(residual(size, 4, base=base), seed=seed)
        episode = {"observation.state": torch.randn(12, size, generator=rng), "reward": torch.eye(12)[11]}
        episode |= {"action": torch.rand(12, 4, generator=rng)}
        demos = demo_replay(learner, [episode], torch.Generator().manual_seed(1))
        train_off_policy(env, learner, demos, SuccessReward(), RL, folder, 3, progress)
        return learner, env

    with run("whole") as one:
        whole = train(one)
    interrupt(run, lambda two: train(two, progress=ending(step, number)), number, saved)  # type: ignore[func-returns-value]
    with run("broken", resume=True) as three:
        resumed = train(three, 5)
    assert all(same(a.state_dict(), b.state_dict()) for a, b in zip(resumed, whole, strict=True))
    assert whole[0].updates.actor > 3
    assert curve(one, "critic/loss") == curve(three, "critic/loss") and len(curve(one, "critic/loss")) > 8


CHILD = f"""
import signal, sys
from pathlib import Path
import torch
sys.path.insert(0, {str(Path(__file__).parent)!r})
from policies.base import Size
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.training.run import Run
from test_resume import clone, ending
torch.set_num_threads(1)
torch.manual_seed(0)
tiny = DiffusionConfig(horizon=4, execute=2, hidden=16, layers=1, train_steps=10, sample_steps=5)
clone(DiffusionPolicy(Size(3, 2), tiny), Run(Path(sys.argv[1]), {{}}), ending(20, signal.SIGKILL))
"""


def test_resume_after_sigkill(diffusion: Build, run: Build, tmp_path: Path, same: Same) -> None:
    child = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path / "run")], timeout=100)
    assert child.returncode == -signal.SIGKILL
    torch.manual_seed(0)
    whole, again = diffusion(), diffusion()
    clone(whole, run("whole"))
    one = run("run", resume=True)
    clone(again, one)
    assert same(again.state_dict(), whole.state_dict())
    assert [step for step, _ in curve(one, "bc/loss")] == [4, 8, 12, 16, 20, 24]
