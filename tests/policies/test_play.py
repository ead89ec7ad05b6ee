"""Latent plans from play: divergence, windows, plans that are held, and two ways that are kept apart."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.base import Size
from policies.bundle import Bundle, load_bundle, save_bundle
from policies.hilbert import GoalIndices
from policies.play import PlayConfig, PlayPolicy, divergence
from robot_rl.cli.main import main
from robot_rl.data.sources import GOAL, Windows
from robot_rl.interface.observation_spec import STATE
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.util.errors import ConfigError

PLACES = GoalIndices((0,), (2,))
HOLD = 6


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def policy(**config: object) -> PlayPolicy:
    torch.manual_seed(0)
    small = {"hidden": (64,), "plan": 2, "hold": HOLD, "window": (4, 6), "beta": 0.1}
    return PlayPolicy(Size(3, 1), PlayConfig(**(small | config)), PLACES)  # type: ignore[arg-type]


# ---- divergence -----------------------------------------------------------------------------------------------------
def test_divergence_is_zero_of_equals_and_else_the_mean_of_log_ratios() -> None:
    q, p = ((torch.randn(3, 4, generator=rng(k)), 0.5 * torch.randn(3, 4, generator=rng(k + 9))) for k in (0, 1))
    assert torch.allclose(divergence(q, q), torch.zeros(3), atol=1e-6)
    ours, theirs = (torch.distributions.Normal(mean, log_std.exp()) for mean, log_std in (q, p))
    torch.manual_seed(0)
    z = ours.sample((200_000,))
    estimate = (ours.log_prob(z) - theirs.log_prob(z)).sum(-1).mean(0)
    assert torch.allclose(divergence(q, p), estimate, rtol=0.03)


# ---- windows --------------------------------------------------------------------------------------------------------
@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_windows_end_at_their_goal_within_their_episode(lengths: list[int], seed: int) -> None:
    lengths = lengths if max(lengths) > 1 else [*lengths, 2]
    parts = torch.arange(sum(lengths)).float()[:, None].split(lengths)
    data = Windows.of([{STATE: rows, "action": -rows} for rows in parts])
    data.shortest, data.longest = 3, 5
    batch = data.sample(64, data.rows(1), rng(seed))
    at, goal, inside = batch[STATE][..., 0].long(), batch[GOAL + STATE][:, 0].long(), batch["inside"]
    length = inside.sum(1)
    assert torch.equal(batch["action"][..., 0].long(), -at)
    assert torch.equal(goal, at[:, 0] + length) and torch.equal(at.amax(1), goal - 1)
    assert torch.equal(at[inside], (at[:, :1] + torch.arange(5))[inside]), "consecutive"
    assert bool((goal <= data.last[at[:, 0]]).all())
    assert bool(((length >= 3) | (goal == data.last[at[:, 0]])).all()) and int(length.max()) <= 5


def test_episodes_of_one_step_are_refused() -> None:
    data = Windows.of([{STATE: torch.zeros(1, 3), "action": torch.zeros(1, 1)}])
    with pytest.raises(ConfigError, match="record longer episodes"):
        data.sample(4, data.rows(1), rng())


def test_rows_after_the_goal_have_no_effect() -> None:
    made = policy()
    batch = {STATE: torch.randn(9, 6, 3, generator=rng()), GOAL + STATE: torch.randn(9, 3, generator=rng(1))}
    action, inside = torch.randn(9, 6, 1, generator=rng(2)), torch.arange(6).expand(9, 6) < 4
    loss = made.loss(batch | {"inside": inside}, action, rng())
    other = batch | {"inside": inside, STATE: batch[STATE] + 9.0 * ~inside[..., None]}
    assert torch.equal(made.loss(other, action + ~inside[..., None], rng()), loss)


# ---- plans ----------------------------------------------------------------------------------------------------------
def test_a_plan_is_held_then_drawn_anew_and_at_the_start_of_an_episode() -> None:
    made, draws, plans = policy(), rng(), []
    for step in range(15):
        if step == 8:
            made.reset(torch.tensor([1]))
        made.act({STATE: torch.zeros(3, 3)}, draws)
        assert made.plans is not None
        plans.append(made.plans.clone())
    changed = torch.stack([(b != a).all(1) for a, b in zip(plans[:-1], plans[1:], strict=True)])
    assert (changed.nonzero()[:, 0] + 1).tolist() == [6, 6, 6, 8, 12, 12, 14]
    assert (changed[:, 1].nonzero()[:, 0] + 1).tolist() == [6, 8, 14]
    assert len(plans[0].unique(dim=0)) == 3, "one plan for each environment"
    with pytest.raises(ValueError, match="reset first"):
        made.act({STATE: torch.zeros(4, 3)}, draws)
    made.reset()
    assert made.act({STATE: torch.zeros(4, 3)}, draws).shape == (4, 1, 1)


def test_peeking_keeps_the_plans() -> None:
    made, other, rows = policy(), policy(), torch.tensor([True, False, True])
    seen = {STATE: torch.randn(3, 3, generator=rng())}
    made.act(seen, rng())
    other.act(seen, rng())
    peeked = made.peek(seen, rows, rng(5))
    assert torch.equal(peeked, made.act(seen, rng(6))[rows])
    for _ in range(HOLD):
        other.act(seen, rng(7))
    assert torch.equal(made.plans == other.plans, torch.zeros(3, 2, dtype=torch.bool)), "drawn anew after it was held"


def test_without_plans_the_action_depends_on_state_and_goal_alone() -> None:
    made, seen = policy(plan=0), {STATE: torch.randn(5, 3, generator=rng())}
    action = made.act(seen, rng(0))
    assert torch.equal(made.act(seen, rng(1)), action)
    moved = {STATE: seen[STATE] + torch.tensor([0.0, 0.0, 1.0])}
    assert not torch.equal(made.act(moved, rng()), action)
    with pytest.raises(ValueError, match="shortest first"):
        PlayConfig(window=(9, 3))


# ---- two ways -------------------------------------------------------------------------------------------------------
def play(count: int = 200) -> list[dict[str, torch.Tensor]]:
    """Six steps that all end at the same place; half of the episodes act with +0.7 at every step, half with -0.7. The
    state shows the time alone, so that at every step both ways are as likely."""
    time = torch.arange(7.0)[:, None]
    state = torch.cat([time / 7, torch.zeros(7, 1), torch.ones(7, 1)], 1)
    return [{STATE: state, "action": torch.full((7, 1), 0.7 if k % 2 else -0.7)} for k in range(count)]


@pytest.fixture(scope="module")
def taught() -> Cloning:
    made = policy(window=(6, 6))
    data = Windows.of(play())
    data.shortest = data.longest = 6
    made.fit(data.columns)
    agent, draws, rows = Cloning(made, CloningConfig(ema_decay=0.9), 400), rng(), data.rows(1)
    for _ in range(400):
        metrics = agent.update(data.sample(64, rows, draws), draws)
    assert float(metrics["play/kl"]) > 0.5, "a plan says which of two ways: ln 2 = 0.69 nats"
    agent.finish()
    return agent


def rollout(made: PlayPolicy, count: int = 200) -> torch.Tensor:
    """Return the actions (count, 6) of one episode in each of `count` environments."""
    made.reset()
    state, draws = play(2)[0][STATE], rng(3)
    goal = state.clone()
    goal[:, 2] = state[6, 0]
    return torch.stack([made.act({STATE: row.expand(count, 3)}, draws)[:, 0, 0] for row in goal[:6]], 1)


def test_plans_reach_both_ways_and_each_rollout_keeps_to_one(taught: Cloning) -> None:
    assert isinstance(taught.policy, PlayPolicy)
    actions = rollout(taught.policy)
    right = (actions > 0.35).all(1).float().mean()
    left = (actions < -0.35).all(1).float().mean()
    assert min(float(right), float(left)) > 0.2 and float(right + left) > 0.7
    assert (actions.std(1) < 0.2).float().mean() > 0.9


def test_shuffled_plans_hurt(taught: Cloning) -> None:
    made = taught.policy
    assert isinstance(made, PlayPolicy)
    data = Windows.of(play())
    data.shortest = data.longest = 6
    batch = data.sample(256, data.rows(1), rng())
    goal = batch[GOAL + STATE][:, None, [0]].expand(-1, 6, -1)
    with torch.no_grad():
        context = made.context(batch[STATE], goal)
        plan = made.recognize(context, batch["action"], batch["inside"])[0]
        shuffled = plan[torch.randperm(256, generator=rng())]
        own, others = (
            (made.decode(context, z[:, None].expand(-1, 6, -1)) - batch["action"]).square().mean()
            for z in (plan, shuffled)
        )
    assert own < 0.02 and others > 0.5


def test_a_saved_bundle_acts_as_the_policy(taught: Cloning, tmp_path: Path) -> None:
    assert isinstance(taught.policy, PlayPolicy)
    save_bundle(Bundle(taught.policy, None, {}, task="play"), tmp_path / "bundle")
    again = load_bundle(tmp_path / "bundle").policy
    assert isinstance(again, PlayPolicy)
    assert torch.equal(rollout(again), rollout(taught.policy))


def test_recipe_trains_by_command_twice_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, run, again = (str(tmp_path / name) for name in ("data", "run", "again"))
    collect = ["collect", "testbed:fork-goal", "--episodes", "2", "--num-envs", "2", "--keep-failures"]
    assert main([*collect, "--out", data]) == 0
    few = ("train", "testbed:fork-goal", "--recipe", "play-lmp", "--dataset", data, "--policy.hidden", "8")
    few = (*few, "--training.updates", "20")
    goal = ("--goal.achieved", "position", "--goal.difference", "")
    assert main([*few, "--out", run]) != 0
    assert "goal.achieved" in capsys.readouterr().err
    assert main([*few, *goal, "--out", run]) == 0 == main([*few, *goal, "--out", again])
    ours, same = (load_bundle(folder).policy.state_dict() for folder in (run, again))
    assert all(torch.equal(value, same[name]) for name, value in ours.items())
    assert main(["evaluate", run, "--episodes", "2", "--num-envs", "2"]) == 0
