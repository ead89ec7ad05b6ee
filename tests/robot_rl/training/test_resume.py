"""Killed and resumed equals uninterrupted, to the bit."""

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


class Killed(BaseException):
    """Stands for the signal."""


def after(limit: int) -> Callable[[int, dict[str, float]], None]:
    def progress(step: int, metrics: dict[str, float]) -> None:
        if step >= limit:
            raise Killed

    return progress


def signalled(limit: int, number: signal.Signals) -> Callable[[int, dict[str, float]], None]:
    def progress(step: int, metrics: dict[str, float]) -> None:
        if step >= limit:
            os.kill(os.getpid(), number)

    return progress


def demonstrations() -> Demonstrations:
    rng = torch.Generator().manual_seed(0)
    lengths = torch.tensor([7, 5, 9])
    state, action = torch.randn(21, 3, generator=rng), 2 * torch.rand(21, 2, generator=rng) - 1
    return Demonstrations({"observation.state": state, "action": action}, torch.tensor([0, 7, 12]), lengths)


BC = SupervisedConfig(updates=24, batch=8, checkpoint_every=8, log_every=4)


def clone(policy: Any, data: Demonstrations, *rest: Any) -> None:
    train_supervised(Cloning(policy, CloningConfig(warmup=4), BC.updates), data, BC, *rest)


def test_clone_resumes_to_the_bit(diffusion: Build, run: Build, same: Callable[[Any, Any], bool]) -> None:
    data, start = demonstrations(), diffusion()
    whole, broken = copy.deepcopy(start), copy.deepcopy(start)
    clone(whole, data, run("whole"), 1, after(10**9))
    with pytest.raises(Killed), run("broken") as one:
        clone(broken, data, one, 1, after(20))
    torch.manual_seed(77)  # a new process knows nothing of the old one
    again = diffusion()
    with run("broken", resume=True) as two:
        clone(again, data, two, 1, after(10**9))
    assert same(again.state_dict(), whole.state_dict())
    assert not same(again.state_dict(), start.state_dict())
    curves = [[r["bc/loss"] for r in read_metrics(one.folder.parent / name)] for name in ("whole", "broken")]
    assert curves[0] == curves[1] and len(curves[0]) == 6


def test_clone_ended_by_a_signal_resumes_to_the_bit(
    diffusion: Build, run: Build, same: Callable[[Any, Any], bool]
) -> None:
    """Saved at update 12, which is not a multiple of the checkpoint interval."""
    data, start = demonstrations(), diffusion()
    whole, broken = copy.deepcopy(start), copy.deepcopy(start)
    clone(whole, data, run("whole"), 1, after(10**9))
    with pytest.raises(Interrupted, match="at step 12") as error, run("broken") as one:
        one.stop_on_signals()
        clone(broken, data, one, 1, signalled(12, signal.SIGINT))
    assert error.value.code == 130 and load_state(one.checkpoint_file)["step"] == 12
    torch.manual_seed(77)
    again = diffusion()
    with run("broken", resume=True) as two:
        clone(again, data, two, 1, after(10**9))
    assert same(again.state_dict(), whole.state_dict())
    curves = [[r["bc/loss"] for r in read_metrics(one.folder.parent / name)] for name in ("whole", "broken")]
    assert curves[0] == curves[1] and len(curves[0]) == 6


def test_resuming_a_finished_clone_changes_nothing(
    diffusion: Build, run: Build, same: Callable[[Any, Any], bool]
) -> None:
    policy = diffusion()
    with run() as one:
        clone(policy, demonstrations(), one, 1, after(10**9))
    again = diffusion()
    clone(again, demonstrations(), run(resume=True), 1, after(10**9))
    assert same(again.state_dict(), policy.state_dict())


RL = OffPolicyConfig(
    steps=120, num_envs=2, updates_per_step=0.3, batch=8, warmup=30, learning_starts=20, capacity=100,
    checkpoint_every=40, log_every=10,
)  # fmt: skip


def make(task: Build, residual: Build, agent: Build, folder: Any, seed: int) -> tuple[Any, ...]:
    """What a fresh process builds: environment, agent and demonstrations, from other random weights."""
    env = TaskEnv(task(horizon=9), 2, threads=1)
    torch.manual_seed(0)
    base = residual(env.pipeline.observer.spec.size, 4).base
    torch.manual_seed(seed)
    learner = agent(residual(env.pipeline.observer.spec.size, 4, base=base), seed=seed)
    rng = torch.Generator().manual_seed(0)
    size = env.pipeline.observer.spec.size
    episode = {
        "observation.state": torch.randn(12, size, generator=rng),
        "action": torch.rand(12, 4, generator=rng),
        "reward": torch.zeros(12),
    }
    episode["reward"][-1] = 1
    demos = demo_replay(learner, [episode], torch.Generator().manual_seed(1))
    return env, learner, demos, SuccessReward(), RL, folder, 3


def test_off_policy_resumes_to_the_bit(
    task: Build, residual: Build, agent: Build, run: Build, same: Callable[[Any, Any], bool]
) -> None:
    """Killed at step 110 with a checkpoint at 80; the replay has wrapped around, episodes are under way."""
    with run("whole") as one:
        whole = make(task, residual, agent, one, 0)
        train_off_policy(*whole, after(10**9))
    with pytest.raises(Killed), run("broken") as two:
        broken = make(task, residual, agent, two, 0)
        train_off_policy(*broken, after(110))
    with run("broken", resume=True) as three:
        resumed = make(task, residual, agent, three, 5)
        train_off_policy(*resumed, after(10**9))
    assert same(resumed[1].state_dict(), whole[1].state_dict())
    assert whole[1].updates.actor > 3
    assert same(resumed[0].state_dict(), whole[0].state_dict())
    curves = [
        [(r["step"], r["critic/loss"]) for r in read_metrics(r.folder) if "critic/loss" in r] for r in (one, three)
    ]
    assert curves[0] == curves[1] and len(curves[0]) > 8


def test_off_policy_ended_by_a_signal_resumes_to_the_bit(
    task: Build, residual: Build, agent: Build, run: Build, same: Callable[[Any, Any], bool]
) -> None:
    with run("whole") as one:
        whole = make(task, residual, agent, one, 0)
        train_off_policy(*whole, after(10**9))
    with pytest.raises(Interrupted, match="at step 70") as error, run("broken") as two:
        two.stop_on_signals()
        broken = make(task, residual, agent, two, 0)
        train_off_policy(*broken, signalled(70, signal.SIGTERM))
    assert error.value.code == 143 and load_state(two.checkpoint_file)["step"] == 70
    with run("broken", resume=True) as three:
        resumed = make(task, residual, agent, three, 5)
        train_off_policy(*resumed, after(10**9))
    assert same(resumed[1].state_dict(), whole[1].state_dict())
    assert same(resumed[0].state_dict(), whole[0].state_dict())
    curves = [
        [(r["step"], r["critic/loss"]) for r in read_metrics(r.folder) if "critic/loss" in r] for r in (one, three)
    ]
    assert curves[0] == curves[1] and len(curves[0]) > 8


CHILD = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from policies.base import Size
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.training.run import Run
from robot_rl.training.supervised import SupervisedConfig, train_supervised
from robot_rl.data.sources import Demonstrations
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
torch.manual_seed(int(sys.argv[2]))
tiny = DiffusionConfig(horizon=4, execute=2, hidden=16, layers=1, train_steps=10, sample_steps=5)
policy = DiffusionPolicy(Size(3, 2), tiny)
rng = torch.Generator().manual_seed(0)
state, action = torch.randn(21, 3, generator=rng), 2 * torch.rand(21, 2, generator=rng) - 1
columns = {"observation.state": state, "action": action}
data = Demonstrations(columns, torch.tensor([0, 7, 12]), torch.tensor([7, 5, 9]))
config = SupervisedConfig(updates=24, batch=8, checkpoint_every=8, log_every=4)
def progress(step, metrics):
    if step == 20:
        os.kill(os.getpid(), signal.SIGKILL)
agent = Cloning(policy, CloningConfig(warmup=4), 24)
train_supervised(agent, data, config, Run(Path(sys.argv[1]), {}), 1, progress)
"""


def test_kill_9_leaves_a_run_that_resumes(
    diffusion: Build, run: Build, tmp_path: Path, same: Callable[[Any, Any], bool]
) -> None:
    child = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path / "run"), "0"], timeout=100)
    assert child.returncode == -signal.SIGKILL
    torch.manual_seed(0)
    whole, again = diffusion(), diffusion()
    clone(whole, demonstrations(), run("whole"), 1, after(10**9))
    one = run("run", resume=True)
    clone(again, demonstrations(), one, 1, after(10**9))
    assert same(again.state_dict(), whole.state_dict())
    assert [r["step"] for r in read_metrics(one.folder)] == [4, 8, 12, 16, 20, 24]
