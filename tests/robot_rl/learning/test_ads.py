"""Imitation of observed states: transport, scores, progress and discount with known answers; replay, resume, errors."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.networks.gaussian import GaussianConfig
from robot_rl.cli.main import main
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig
from robot_rl.learning.parts.ads import Imitation, ImitationConfig, distances, longest_increasing, masses, transport
from robot_rl.rewards import SuccessReward
from robot_rl.training.off_policy import OffPolicyConfig, train_off_policy
from sim.testbeds.base import TestbedEnv as Env
from sim.testbeds.fork import Fork

CONFIG = ImitationConfig()


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def line(steps: int = 40, shift: float = 0.0) -> Tensor:
    """Return states (T, 2) along a line."""
    t = torch.linspace(0, 1, steps)
    return torch.stack([t, t + shift], 1)


def episode(states: Tensor) -> dict[str, Tensor]:
    """Return an episode whose steps reached `states`."""
    return {"observation.state": torch.cat([states[:1], states])}


# ---- transport ------------------------------------------------------------------------------------------------------
@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.lists(st.integers(1, 30), min_size=1, max_size=3), st.integers(0, 9), st.booleans())
def test_plans_have_the_given_marginals(steps: int, lengths: list[int], seed: int, far: bool) -> None:
    longest = max(lengths)
    states, others = (torch.randn(n, 3, generator=rng(seed)) for n in (steps, len(lengths) * longest))
    states[0] += 1e4 * far
    give, take = masses(torch.tensor([steps]), 30)[0], masses(torch.tensor(lengths), 30)
    cost = distances(states, others.unflatten(0, (len(lengths), longest)))
    plan = transport(cost, give, take, CONFIG.smoothing, CONFIG.iterations)
    assert plan.isfinite().all() and (plan >= 0).all()
    assert torch.allclose(plan.sum(2), give.expand(len(lengths), -1), atol=1e-9)
    assert torch.allclose(plan.sum(1), take, atol=1e-9), "and 0 for states that only fill up"


def test_masses_are_uniform_and_the_rest_is_on_the_last_state() -> None:
    mass = masses(torch.tensor([4, 3, 1]), 4)
    assert mass.tolist() == [[0.25, 0.25, 0.25, 0.25], [0.25, 0.25, 0.5, 0], [1, 0, 0, 0]]


def test_a_sequence_is_moved_to_itself_at_no_cost() -> None:
    states, even = torch.randn(30, 6, generator=rng(0)), torch.full((30,), 1 / 30)
    cost = distances(states, states[None])
    plan = transport(cost, even, even[None], CONFIG.smoothing, CONFIG.iterations)[0]
    assert all(torch.allclose(plan.sum(k), even.double(), atol=1e-4) for k in (0, 1))
    assert plan.diagonal().sum() > 0.99 and (cost * plan).sum() < 0.01 * cost.mean()
    reward, nearest = Imitation([line(30, 5.0), line(30)], CONFIG, 0.9).reward(line(30))
    assert nearest == 1 and reward.abs().max() < 0.03


def test_plan_is_the_cheapest_permutation() -> None:
    """States of one dimension are matched in sorted order, at the mean distance of the sorted values."""
    ours, theirs = torch.rand(2, 12, 1, generator=rng(3))
    cost, even = distances(ours, theirs[None]), torch.full((1, 12), 1 / 12)
    plan = transport(cost, even[0], even, 0.005, 2000)
    least = float((ours.sort(0).values - theirs.sort(0).values).abs().mean())
    assert float((cost * plan).sum()) == pytest.approx(least, rel=0.02)


def test_an_episode_that_ends_early_counts_as_if_it_stayed() -> None:
    imitation, states = Imitation([line(20), line(15)], CONFIG, 0.9, 40), line(10, 0.2)
    short, stays = (imitation.reward(s)[0] for s in (states, torch.cat([states, states[-1:].expand(30, -1)])))
    assert torch.allclose(stays[:10], short, atol=1e-3) and torch.allclose(stays[10:], short[-1], atol=1e-3)


# ---- progress -------------------------------------------------------------------------------------------------------
@given(st.lists(st.integers(0, 9), min_size=1, max_size=10))
def test_longest_increasing_subsequence(numbers: list[int]) -> None:
    best: list[int] = []
    for k, number in enumerate(numbers):
        best.append(1 + max([best[i] for i in range(k) if numbers[i] < number], default=0))
    rows = torch.tensor([numbers + [-1, -1], numbers[:1] + [-1] * (len(numbers) + 1)])
    assert longest_increasing(rows).tolist() == [max(best), 1]


def test_a_demonstration_advances_and_a_reversed_one_never() -> None:
    demos = [line(shift=shift) for shift in (0.0, 0.001, 0.002)]
    good, bad = Imitation(demos, CONFIG, 0.9), Imitation(demos, CONFIG, 0.9)
    assert good.progress == bad.progress == 8 and good.discount == 0.2 ** (1 / 8)
    assert good.reference(8) == 8
    passed = []
    for _ in range(8):
        good(episode(demos[1]))
        bad(episode(demos[1].flip(0)))
        passed.append(good.progress)
        assert bad.progress == 8 and good.discount == pytest.approx(0.2 ** (1 / good.progress))
    assert passed == [13, 18, 23, 28, 33, 38, 40, 40], "five steps at a time, up to the demonstrations' length"


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.floats(0, 1), st.integers(0, 99)), min_size=1, max_size=8))
def test_progress_never_falls_and_moves_at_most_five(episodes: list[tuple[int, float, int]]) -> None:
    """For noisy episodes of any length; the discount follows."""
    imitation = Imitation([line(30), line(25, 0.01), line(35, 0.02)], CONFIG, 0.9)
    for steps, noise, seed in episodes:
        before = imitation.progress
        imitation(episode(line(steps) + noise * torch.randn(steps, 2, generator=rng(seed))))
        assert before <= imitation.progress <= min(before + 5, 35)
        assert imitation.discount == pytest.approx(0.2 ** (1 / imitation.progress))


def test_without_schedule_the_discount_stays() -> None:
    imitation = Imitation([line(), line()], ImitationConfig(schedule=False), 0.97)
    imitation(episode(line()))
    assert imitation.discount == 0.97 and imitation.metrics() == {"train/progress": 8.0, "train/discount": 0.97}


# ---- training -------------------------------------------------------------------------------------------------------
def train(folder: Any, stop: int | None = None) -> tuple[ActorCritic, Imitation, list[float], dict[str, Tensor]]:
    """Train on fork, whose episodes end by failure, success or the time limit; return discounts of batches, replay."""
    torch.manual_seed(0)
    policy = GaussianPolicy(Size(2, 2), GaussianConfig(hidden=(8,)))
    agent = ActorCritic(policy, ActorCriticConfig(hidden=(8,), n_step=1))
    up = torch.linspace(-0.9, 0.9, 30)
    imitation = Imitation([torch.stack([0 * up + x, up], 1) for x in (0.0, 0.01)], CONFIG, 0.9)
    used: list[float] = []
    update = agent.update

    def seen(batch: Any, phase: Any) -> Any:
        used.extend(batch["discount"].unique().tolist())
        assert (batch["reward"] < 0).all(), "nothing is learned from before its reward is known"
        return update(batch, phase)

    agent.update = seen  # type: ignore[method-assign]
    config = OffPolicyConfig(
        steps=900, num_envs=3, updates_per_step=0.1, batch=8, demo_share=0.0, warmup=0, learning_starts=0,
        checkpoint_every=300, log_every=300, capacity=3000, reward_scale=2.0,
    )  # fmt: skip

    def progress(step: int, row: Any) -> None:
        if stop is not None and step > stop:
            raise RuntimeError("killed")

    args = (Env(Fork(), 3), agent, None, SuccessReward(), config, folder, 3, progress, imitation)
    train_off_policy(*args)
    return agent, imitation, used, folder.load()["replay"]


def test_replay_holds_the_rewards_and_hides_the_ends(run: Callable[..., Any]) -> None:
    with run() as folder:
        _, imitation, used, replay = train(folder)
    columns, head = replay["columns"], replay["head"]
    for lane in range(3):
        starts, decides = columns["starts"][lane], columns["decides"][lane]
        finals = (~starts[: int(head[lane])]).nonzero().flatten().tolist()
        first = 0
        assert len(finals) >= 5
        for final in finals:
            states = columns["observation.state"][lane, first + 1 : final + 1]
            assert torch.equal(columns["reward"][lane, first:final], 2 * imitation.reward(states)[0])
            assert decides[first:final].all() and columns["last"][lane, final - 1]
            first = final + 1
        assert not decides[first:].any(), "the running episode waits"
    assert not columns["terminated"].any() and min(used) > 0
    known = [0.2 ** (1 / p) for p in range(6, 31)]
    assert all(any(math.isclose(gamma, each, rel_tol=1e-6) for each in known) for gamma in used)


def test_resumed_run_is_the_same(run: Callable[..., Any], same: Callable[[Any, Any], bool]) -> None:
    with run("whole") as folder:
        agent, imitation, _, replay = train(folder)
    with pytest.raises(RuntimeError, match="killed"), run("broken") as folder:
        train(folder, 500)
    with run("broken", resume=True) as folder:
        again, resumed, _, stored = train(folder)
    assert same(again.state_dict(), agent.state_dict()) and same(stored, replay)
    assert same(resumed.state_dict(), imitation.state_dict())


# ---- recipe ---------------------------------------------------------------------------------------------------------
def test_recipe_learns_from_states_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data, one = str(tmp_path / "data"), str(tmp_path / "one")
    for folder, count in ((data, "3"), (one, "1")):
        assert main(["collect", "testbed:carry", "--episodes", count, "--skill", "STEADY", "--out", folder]) == 0
    few = ["train", "testbed:carry", "--recipe", "ads", "--training.steps", "300", "--training.learning-starts", "200",
           "--training.batch", "8", "--policy.hidden", "8"]  # fmt: skip
    for k, (flags, message) in enumerate((
        (["--dataset", one], "has 1 demonstrations of two or more steps"),
        (["--dataset", data, "--imitation.features", "hand"], "hand_position"),
        (["--dataset", data, "--training.demo-share", "0.5"], "reads no actions"),
        (["--dataset", data, "--training.offline-updates", "5"], "reads no actions"),
    )):  # fmt: skip
        assert main([*few, *flags, "--out", str(tmp_path / str(k))]) == 2 and message in capfd.readouterr().err
    chosen = ["--dataset", data, "--imitation.features", "hand_position", "holds", "--out", str(tmp_path / "run")]
    assert main([*few, *chosen]) == 0
