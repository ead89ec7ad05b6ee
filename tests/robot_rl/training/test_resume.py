"""Killed and resumed runs are bit-identical to uninterrupted runs; checkpoint files."""

import copy
import json
import math
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from robot_rl.data.sources import Demonstrations
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.rewards import SuccessReward
from robot_rl.training.checkpoint import load_state, save_state
from robot_rl.training.off_policy import OffPolicyConfig, demo_replay, train_off_policy
from robot_rl.training.run import read_metrics
from robot_rl.training.supervised import SupervisedConfig, train_supervised
from robot_rl.util.errors import Interrupted, UserError
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


def demonstrations() -> Demonstrations:
    rng = torch.Generator().manual_seed(0)
    lengths = torch.tensor([7, 5, 9])
    state, action = torch.randn(21, 3, generator=rng), 2 * torch.rand(21, 2, generator=rng) - 1
    return Demonstrations({"observation.state": state, "action": action}, torch.tensor([0, 7, 12]), lengths)


BC = SupervisedConfig(updates=24, batch=8, checkpoint_every=8, log_every=4)


def clone(policy: Any, run: Any, progress: Callable[[int, dict[str, float]], None] = lambda *_: None) -> None:
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

    def train(folder: Any, seed: int = 0, progress: Any = lambda *_: None) -> tuple[Any, Any]:
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


# ---- checkpoint files ----------------------------------------------------------------------------------------------
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
tensors = st.builds(
    lambda shape, dtype, seed: (100 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 99),
)
arrays = st.builds(
    lambda shape, dtype, seed: np.random.default_rng(seed).normal(size=shape, scale=100).astype(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([np.float32, np.float64, np.int64, np.int32, np.bool_]),
    st.integers(0, 99),
)
plain = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text()
keys = st.integers() | st.text() | st.booleans() | st.sampled_from(["tensor", "array", "dict", "list"])
nested = lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)  # noqa: E731
trees = st.recursive(plain | tensors | arrays, nested, max_leaves=8)


@settings(deadline=None, derandomize=True, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees)
def test_round_trip_of_trees(tree: Any, tmp_path: Path, same: Same) -> None:
    save_state(tree, tmp_path / "a.safetensors")
    assert same(load_state(tmp_path / "a.safetensors"), tree)


def test_round_trip_of_an_optimizer(tmp_path: Path, same: Same) -> None:
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(net.parameters(), fused=True)
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    save_state(optimizer.state_dict(), tmp_path / "a")
    loaded = load_state(tmp_path / "a")
    assert list(loaded["state"]) == [0, 1], "integer keys"
    other = torch.optim.Adam(torch.nn.Linear(3, 2).parameters(), fused=True)
    other.load_state_dict(loaded)
    assert same(other.state_dict()["state"], optimizer.state_dict()["state"])


def test_round_trip_of_views_shared_memory_and_tuples(tmp_path: Path, same: Same) -> None:
    whole = torch.arange(12.0).view(3, 4)
    save_state({"t": whole.T, "row": whole[1], "same": whole, "pair": (1, whole[0])}, tmp_path / "a")
    loaded = load_state(tmp_path / "a")
    assert same(loaded, {"t": whole.T.contiguous(), "row": whole[1], "same": whole, "pair": [1, whole[0]]})
    loaded["row"][0] = 99.0
    assert whole[1, 0] == 4 and loaded["same"][1, 0] == 4


def test_numpy_numbers_become_plain_numbers(tmp_path: Path) -> None:
    save_state({"a": np.float64(0.1), "b": np.int64(3), "c": math.inf, "d": np.bool_(True)}, tmp_path / "a")
    assert load_state(tmp_path / "a") == {"a": 0.1, "b": 3, "c": math.inf, "d": True}


@pytest.mark.parametrize("damage", ["empty", "half", "last byte", "noise", "foreign", "bad tree", "folder", "missing"])
def test_damaged_file_raises_with_its_name(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "checkpoint.safetensors"
    save_state({"a": torch.arange(100.0), "b": [1, 2]}, file)
    data = file.read_bytes()
    if damage == "foreign":
        save_file({"a": torch.ones(3)}, file)
    elif damage == "bad tree":
        save_file({"0": torch.ones(3)}, file, {"tree": json.dumps({"dict": [["a", {"tensor": "7"}]]})})
    elif damage in ("folder", "missing"):
        file.unlink()
        file.mkdir() if damage == "folder" else None
    else:
        file.write_bytes({"empty": b"", "half": data[:200], "last byte": data[:-1], "noise": b"\x07" * 300}[damage])
    with pytest.raises(UserError, match=r"checkpoint\.safetensors"):
        load_state(file)


def test_full_disk_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_state({"a": 1}, file)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        with pytest.raises(UserError, match=r"cannot write .*a\.safetensors"):
            save_state({"a": torch.zeros(10_000)}, file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert load_state(file) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]
