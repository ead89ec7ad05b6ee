"""The recipe ppo, from a task's name to a bundle that acts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from policies.bundle import load_bundle, save_bundle
from policies.errors import BundleError
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from robot_rl.cli.main import main
from robot_rl.interface.pipeline import Pipeline
from robot_rl.learning.algorithms.ppo import PPOConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.ppo import ProximalPolicy
from robot_rl.robots import robots
from robot_rl.training.on_policy import OnPolicyConfig
from robot_rl.training.run import read_metrics
from robot_rl.util.seeds import training_seed
from sim.env import TaskEnv
from sim.make import describe, make, mirror_of
from sim.tasks import tasks

Build = Callable[..., Any]


def job(task: str, run: Any, seed: int = 0, progress: Any = lambda *_: None, **simulation: Any) -> Job:
    info, env = describe(task), lambda count: make(task, count, **simulation)
    return Job(info, env, run, seed, Path("nowhere"), None, progress)


def small(steps: int = 6, rollout: int = 2, history: int = 1) -> ProximalPolicy:
    agent = PPOConfig(hidden=(16,), epochs=1, minibatches=1)
    training = OnPolicyConfig(steps=steps, num_envs=3, rollout=rollout)
    return ProximalPolicy(FeedforwardConfig(hidden=(16,), history=history), agent, training)


def test_trains_a_bundle_and_reports_progress(run: Build, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    report = lambda what, done, total, metrics: seen.append((what, done, total))  # noqa: E731
    bundle = small(24, 4, 2).train(job("panda-lift", run(), progress=report))
    assert seen == [("environment steps", 12, 24), ("environment steps", 24, 24)]
    save_bundle(bundle, tmp_path / "bundle")
    again = load_bundle(tmp_path / "bundle")
    assert isinstance(again.policy, FeedforwardPolicy) and again.policy.normalizer.count == 24
    assert set(again.critic) == set(bundle.critic)
    observation = {"observation.state": torch.randn(2, again.policy.size.observation)}
    assert again.policy.act(observation, torch.Generator()).shape == (2, 1, 4)


def test_trains_a_legged_robot_with_its_mirror_image(run: Build, tmp_path: Path) -> None:
    bundle = small(36, 4).train(job("go2-velocity", run()))
    save_bundle(bundle, tmp_path / "bundle")
    again = load_bundle(tmp_path / "bundle")
    again.check_robot(robots.get("go2"))
    with pytest.raises(BundleError, match="for robot 'go2', not for 'panda'"):
        again.check_robot(robots.get("panda"))
    pipeline = Pipeline(again.interface)
    assert again.interface == bundle.interface and pipeline.command.size == 3
    observation = {"observation.state": torch.zeros(2, pipeline.observer.spec.size)}
    assert again.policy.act(observation, torch.Generator()).shape == (2, 1, 12)


@pytest.mark.parametrize("without", [("push.speed",), ("base.com_x", "payload.mass"), ("base.com_y",)])
def test_mirror_follows_the_randomized_parameters(run: Build, without: tuple[str, ...]) -> None:
    assert small().train(job("go2-velocity", run(), without=without, threads=1)).critic
    task: Any = tasks.get("go2-velocity")
    used = [r for r in task.randomization if r.parameter not in without]
    mirror = mirror_of(task, used)
    assert mirror is not None
    flipped = mirror.privileged(torch.ones(len(mirror.privileged)))[-len(used) :]
    assert [r.parameter for r, sign in zip(used, flipped, strict=True) if sign < 0] == (
        [] if "base.com_y" in without else ["base.com_y"]
    )


def test_seeds_share_no_environment(run: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, reset = [], TaskEnv.reset
    monkeypatch.setattr(TaskEnv, "reset", lambda env, **words: (seeds.append(words["seed"]), reset(env, **words))[1])
    for seed in (0, 1):
        small().train(job("panda-lift", run(str(seed)), seed))
    assert seeds == [0, training_seed(1)]


def test_reward_terms_have_a_value_each_and_training_resumes(capsys: Any, tmp_path: Path) -> None:
    few = ["--training.num-envs", "8", "--training.rollout", "10", "--seed", "3"]
    words = ["train", "testbed:pair", "--recipe", "slim", *few]
    assert main([*words, "--training.steps", "320", "--out", str(tmp_path / "whole")]) == 0
    assert main([*words, "--training.steps", "160", "--out", str(tmp_path / "halves")]) == 0
    assert main([*words, "--training.steps", "320", "--out", str(tmp_path / "halves"), "--resume"]) == 0
    rows = [read_metrics(tmp_path / name)[-1] for name in ("whole", "halves")]
    assert rows[0]["reward/first"] < rows[0]["reward/second"] < 0
    assert rows[0]["ppo/value_loss"] == rows[1]["ppo/value_loss"]
    assert main(["train", "testbed:swing", "--recipe", "slim", "--out", str(tmp_path / "run")]) == 2
    assert "reports no terms of its reward: use --training.reward task" in capsys.readouterr().err
