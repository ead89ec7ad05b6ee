"""Off-policy loop: metrics, start of learning, stop criteria, errors, successes as demonstrations."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from policies.base import Size
from policies.coarse_to_fine import Atoms, CoarseToFinePolicy
from policies.networks.bins import BinsConfig
from robot_rl.data.replay import NEXT
from robot_rl.interface import success
from robot_rl.interface.symmetry import Mirror, Reflection
from robot_rl.learning.algorithms.cqn import CQN, CQNConfig
from robot_rl.rewards import SuccessReward, TaskReward
from robot_rl.training.checkpoint import load_state
from robot_rl.training.metrics import Diverged
from robot_rl.training.off_policy import ONE_ENV, OffPolicyConfig, demo_replay, mirrored, train_off_policy
from robot_rl.training.repeat import HeldAction
from robot_rl.training.run import read_metrics
from robot_rl.util.errors import ConfigError
from robot_rl.util.seeds import training_seed
from sim.env import TaskEnv
from sim.testbeds.base import TestbedEnv as Env
from sim.testbeds.fork import Fork
from sim.testbeds.swing import Swing

Build = Callable[..., Any]
AT_ONCE: dict[str, Any] = {"updates_per_step": 1 / 8, "warmup": 0, "learning_starts": 0, "log_every": 1000}


def test_first_rate_is_unbiased(task: Build, residual: Build, agent: Build, run: Build, monkeypatch: Any) -> None:
    """Cubes on the right succeed in 2 steps, others fail in 12: early means would be 100 %."""
    monkeypatch.setitem(success.TESTS, "right", lambda: lambda s: s.objects["cube"][:, 1] > 0)
    env = TaskEnv(task(success="right", success_hold=2, horizon=12), 8, threads=1)
    right = env.reset(seed=training_seed(3))[0]["observation.environment_state"][:, 1] > 0
    size = env.pipeline.observer.spec.size
    learner = agent(residual(size, 4))
    demo = {"observation.state": torch.randn(12, size), "action": torch.zeros(12, 4), "reward": torch.zeros(12)}
    demos = demo_replay(learner, [demo], torch.Generator().manual_seed(1))
    few = {"batch": 8, "warmup": 200, "learning_starts": 200, "capacity": 200}
    config = OffPolicyConfig(steps=8 * 15, num_envs=8, log_every=8, **few)
    with run() as folder:
        train_off_policy(env, learner, demos, SuccessReward(), config, folder, 3, lambda step, row: None)
    rows = {int(row["step"]): row.get("train/success") for row in read_metrics(folder.folder)}
    assert 0 < right.sum() < 8 and env.seed == training_seed(3)
    assert all(rows[8 * k] is None for k in range(1, 12)), "only early successes"
    assert rows[8 * 12] == pytest.approx(float(right.float().mean()))


def started(task: Build, residual: Build, agent: Build, envs: int, n_step: int = 3, **actor: Any) -> Any:
    """Return environments with long episodes, a learner and a demonstration."""
    env = TaskEnv(task(horizon=200), envs, threads=1)
    size = env.pipeline.observer.spec.size
    learner = agent(residual(size, 4, **actor), n_step=n_step)
    demo = {"observation.state": torch.randn(12, size), "action": torch.zeros(12, 4), "reward": torch.zeros(12)}
    return env, learner, demo_replay(learner, [demo], torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("starts", "n_step"), [(0, 3), (8, 6)])
def test_first_update(task: Build, residual: Build, agent: Build, run: Build, starts: int, n_step: int) -> None:
    """Every environment needs `n_step` + 1 steps."""
    env, learner, demos = started(task, residual, agent, 8, n_step=n_step)
    settings = {"batch": 4, "updates_per_step": 1 / 8, "warmup": 0, "log_every": 8, "learning_starts": starts}
    chosen = OffPolicyConfig(steps=8 * 9, num_envs=8, **settings)
    with run() as folder:
        train_off_policy(env, learner, demos, SuccessReward(), chosen, folder, 0, lambda step, row: None)
    # Step k is stored after update k: the replay has n_step + 1 steps after n_step + 1 rounds.
    assert learner.updates.critic == 9 - (n_step + 1)


def test_too_small_capacity_raises(task: Build, residual: Build, agent: Build, run: Build) -> None:
    """Otherwise there would be neither updates nor an error."""
    for capacity, fits in ((8 * 4 - 1, False), (8 * 4, True)):
        env, learner, demos = started(task, residual, agent, 8)
        config = OffPolicyConfig(steps=8, num_envs=8, capacity=capacity)
        refused = nullcontext() if fits else pytest.raises(ConfigError, match="training.capacity")
        with run(str(capacity)) as folder, refused:
            train_off_policy(env, learner, demos, SuccessReward(), config, folder, 0, lambda step, row: None)


def test_run_stops_at_the_success_rate_and_resume_changes_nothing(
    task: Build, residual: Build, agent: Build, run: Build, monkeypatch: pytest.MonkeyPatch, same: Build
) -> None:
    monkeypatch.setitem(success.TESTS, "always", lambda: lambda s: torch.ones(len(s.joint_position), dtype=torch.bool))
    demo = {"action": torch.zeros(12, 4), "reward": torch.zeros(12)}
    config = OffPolicyConfig(steps=4000, num_envs=8, batch=8, stop_at=0.5, **AT_ONCE)

    def learned(resume: bool) -> tuple[Any, list[dict[str, Any]]]:
        env = TaskEnv(task(success="always", success_hold=2), 8, threads=1)
        size = env.pipeline.observer.spec.size
        learner = agent(residual(size, 4))
        demos = demo_replay(learner, [demo | {"observation.state": torch.randn(12, size)}], torch.Generator())
        with run(resume=resume) as folder:
            train_off_policy(env, learner, demos, SuccessReward(), config, folder, 3, lambda step, row: None)
        return learner.state_dict(), read_metrics(folder.folder)

    ends, rows = learned(False)
    # 200 episodes of two steps.
    assert [(row["step"], row["train/steps"], row["train/success"]) for row in rows] == [(400, 400, 1.0)]
    again = learned(True)
    assert same(again[0], ends) and again[1] == rows


@pytest.mark.parametrize("where", ["reward", "loss"])
def test_non_finite_update_keeps_its_batch_and_the_last_checkpoint(
    task: Build, residual: Build, agent: Build, run: Build, same: Build, where: str
) -> None:
    env, learner, demos = started(task, residual, agent, 8)
    config = OffPolicyConfig(steps=160, num_envs=8, batch=4, checkpoint_every=40, **AT_ONCE)
    update, batches, good = learner.update, [], 6

    def damaged(batch: Any, phase: Any) -> Any:
        batches.append(batch)
        if len(batches) > good and where == "reward":
            batch["reward"][1] = torch.nan
        metrics = update(batch, phase)
        return metrics | ({"critic/loss": torch.tensor(torch.inf)} if len(batches) > good and where == "loss" else {})

    learner.update = damaged
    message = r"became NaN at .*not finite \(reward\)" if where == "reward" else "loss became infinite at .*is finite"
    with run() as folder, pytest.raises(Diverged, match=message) as error:
        train_off_policy(env, learner, demos, SuccessReward(), config, folder, 0, lambda step, row: None)
    kept = folder.folder / "diverged-batch.safetensors"
    assert str(kept) in str(error.value) and "the last checkpoint is intact" in str(error.value)
    assert len(batches) == good + 1 and same(dict(load_state(kept)), dict(batches[-1]))
    saved = load_state(folder.checkpoint_file)["state"]["agent"]["critic"]
    assert all(weight.isfinite().all() for weight in saved.values())


# ---- successes as demonstrations -----------------------------------------------------------------------------------
CONFIG = replace(
    ONE_ENV, steps=400, num_envs=4, batch=8, updates_per_step=0.05, warmup=0, learning_starts=40, log_every=80,
    keep_successes=True, checkpoint_every=80, capacity=800,
)  # fmt: skip


def scripted(seen: dict[str, Tensor], *_: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Environments 0 and 2 hit the obstacle, 1 and 3 go around it."""
    aside = (seen["observation.state"][:, 0] < 0.5) & torch.tensor([False, True, False, True])
    return torch.stack([aside.float(), (~aside).float()], 1), {}


def train(folder: Any, progress: Callable[..., None] = lambda step, row: None) -> tuple[CQN, Any]:
    torch.manual_seed(0)
    learner = CQN(CoarseToFinePolicy(Size(2, 2), BinsConfig(2, 3, hidden=(8,))), CQNConfig())
    demo = {"observation.state": torch.zeros(5, 2), "action": torch.zeros(5, 2), "reward": torch.eye(5)[4]}
    demos = demo_replay(learner, [demo], torch.Generator(), CONFIG.capacity)
    learner.act = scripted  # type: ignore[method-assign, assignment]
    train_off_policy(Env(Fork(), 4), learner, demos, SuccessReward(), CONFIG, folder, 3, progress)
    return learner, demos


def killed(step: int, row: Any) -> None:
    if step > 240:
        raise RuntimeError("killed")


def test_successes_are_added_also_in_a_resumed_run(run: Build, same: Callable[[Any, Any], bool]) -> None:
    with run("whole") as folder:
        learner, demos = train(folder)
    stored = demos.size
    assert stored > 5 + 4 * 25, "two environments succeeded at least twice in 25 steps or more"
    ends = demos.flags["last"][0].nonzero().flatten()
    assert torch.equal(demos.columns["reward"][0].nonzero().flatten(), ends), "every episode ends with success"
    assert int(demos.columns["demonstration"].sum()) == stored
    assert (demos.columns["observation.state"][0, ends[1:] + 1, 1] > 0.9).all(), "final observations are stored"
    with pytest.raises(RuntimeError, match="killed"), run("broken") as folder:
        train(folder, killed)
    with run("broken", resume=True) as folder:
        again, others = train(folder)
    assert same(again.state_dict(), learner.state_dict()) and same(others.state_dict(), demos.state_dict())


def test_an_action_is_repeated_until_an_episode_ends() -> None:
    env, plain = HeldAction(Env(Swing(), 1), 8), Env(Swing(), 1)
    env.reset(seed=0), plain.reset(seed=0)
    push = torch.tensor([[0.5]])
    for _ in range(200 // 8 + 1):  # into the second episode
        observation, reward, _, truncated, infos = env.step(push)
        expected = torch.zeros(1)
        for _ in range(8):
            other, paid, _, over, _ = plain.step(push)
            expected += paid
            if over.any():
                break
        assert torch.allclose(reward, expected) and torch.equal(truncated, over)
        assert torch.equal(observation["observation.state"], other["observation.state"])
    env.env.steps[:] = 197
    assert env.step(push)[3].tolist() == [True] and env.env.steps.tolist() == [0]
    with pytest.raises(ConfigError, match="num-envs 1"):
        HeldAction(Env(Swing(), 2), 8)


def test_scaled_rewards_are_learned_and_metrics_show_the_task_s(run: Build) -> None:
    config = replace(ONE_ENV, steps=240, num_envs=4, batch=8, reward="task", warmup=0, log_every=80, demo_share=0.0)
    shown, paid = [], []
    for scale in (1.0, 10.0):
        torch.manual_seed(0)
        learner = CQN(CoarseToFinePolicy(Size(3, 1), BinsConfig(2, 3, hidden=(8,)), Atoms(5, -1.0, 0.0)), CQNConfig())
        learner.act = lambda seen, *_: (seen["observation.state"][:, :1], {})  # type: ignore[method-assign, assignment]
        learner.update = lambda batch, _: {"paid": batch["reward"].sum()}  # type: ignore[method-assign]
        chosen = replace(config, reward_scale=scale, learning_starts=0, updates_per_step=0.25, steps=1000)
        with run(str(scale)) as folder:
            train_off_policy(Env(Swing(), 4), learner, None, TaskReward(), chosen, folder, 3, lambda step, row: None)
        rows = read_metrics(folder.folder)
        shown.append([row.get("train/return") for row in rows])
        paid.append([row["paid"] for row in rows])
    assert shown[0] == shown[1] and shown[0][-1] < 0
    assert paid[1] == pytest.approx([10 * each for each in paid[0]])


@given(st.integers(1, 40), st.floats(0, 1), st.integers(1, 3))
def test_a_share_of_each_batch_is_reflected(size: int, share: float, horizon: int) -> None:
    mirror = Mirror(Reflection([1, 0, 2], [1, 1, -1]), Reflection([], []), Reflection([0], [-1]))
    batch = {
        "observation.state": torch.rand(size, 3) + 1, f"{NEXT}observation.state": torch.rand(size, 3) + 1,
        "action": torch.rand(size, horizon, 1) + 1, "reward": torch.rand(size),
    }  # fmt: skip
    found = mirrored(mirror, share, ["observation.state", "action", "intervention"])(batch)
    images = found["action"][:, 0, 0] < 0
    assert int(images.sum()) == math.floor(size * share)
    for name, value in batch.items():
        reflection = mirror.action if name == "action" else mirror.observation
        assert torch.equal(found[name][~images], value[~images])
        assert torch.equal(found[name][images], value[images] if name == "reward" else reflection(value[images]))


def test_mirror_images_are_refused_where_there_are_none() -> None:
    mirror = Mirror(Reflection([0], [1]), Reflection([], []), Reflection([0], [1]))
    with pytest.raises(ConfigError, match="the task declares no symmetry"):
        mirrored(None, 0.5, [])
    with pytest.raises(ConfigError, match="learns from base too, which has no mirror image"):
        mirrored(mirror, 0.5, ["action", "base", "observation.state"])
    assert mirrored(None, 0.0, ["base"])({"a": torch.ones(1)}) == {"a": torch.ones(1)}


@pytest.mark.parametrize(
    ("changes", "message"), [({}, "no-keep-successes"), ({"steps": 0, "offline_updates": 0}, "nothing would")]
)
def test_config_without_effect_raises(run: Build, changes: dict[str, int], message: str) -> None:
    env, learner = Env(Fork(), 4), CQN(CoarseToFinePolicy(Size(2, 2)), CQNConfig())
    with run() as folder, pytest.raises(ConfigError, match=message):
        config = replace(CONFIG, **changes)
        train_off_policy(env, learner, None, SuccessReward(), config, folder, 0, lambda step, row: None)
