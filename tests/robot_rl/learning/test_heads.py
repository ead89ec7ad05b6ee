"""Critic heads: their targets are distributions with the right mean, and fitting one finds the value."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from robot_rl.learning.parts.critics import BatchNormCritic, Critic
from robot_rl.learning.parts.heads import C51, GaussianHead, HLGauss, Scalar, build_head, clipped_square
from robot_rl.learning.parts.heads import pessimistic
from robot_rl.util.errors import ConfigError

LOW, HIGH, BINS = -2.0, 3.0, 51
WIDTH = (HIGH - LOW) / (BINS - 1)
HEADS = ["scalar", "hl-gauss", "c51", "gaussian"]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def certain(index: Tensor) -> Tensor:
    """Logits of a distribution that is all in one bin."""
    return 100 * torch.nn.functional.one_hot(index, BINS).float()


def centers() -> Tensor:
    return torch.linspace(LOW, HIGH, BINS)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.sampled_from(["hl-gauss", "c51"]), st.integers(0, 99), st.floats(-4, 4), st.floats(0, 1))
def test_targets_of_bins_are_distributions(name: Any, seed: int, reward: float, discount: float) -> None:
    head = build_head(name, LOW, HIGH, BINS)
    following = 3 * torch.randn(16, BINS, generator=rng(seed))
    target = head.target(torch.full((16,), reward), torch.full((16,), discount), following)
    assert target.shape == (16, BINS) and (target >= 0).all()
    torch.testing.assert_close(target.sum(-1), torch.ones(16))
    mean = (target * centers()).sum(-1)
    wanted = reward + discount * head.mean(following)
    if name == "c51":
        each = (reward + discount * centers()).clamp(LOW, HIGH)  # a return beyond the range counts as its end
        torch.testing.assert_close(mean, (following.softmax(-1) * each).sum(-1), atol=1e-4, rtol=1e-4)
    else:
        inside = (wanted > LOW + 3 * WIDTH) & (wanted < HIGH - 3 * WIDTH)
        torch.testing.assert_close(mean[inside], wanted[inside], atol=0.02 * WIDTH, rtol=0)
        assert ((mean - wanted.clamp(LOW, HIGH)).abs() < WIDTH / 2).all(), "cut at the ends of the range"


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(0, BINS - 1), st.integers(-5, 5))
def test_c51_moves_a_certain_return_from_bin_to_bin(start: int, shift: int) -> None:
    target = C51(LOW, HIGH, BINS).target(
        torch.tensor([shift * WIDTH]), torch.ones(1), certain(torch.tensor([start]))
    )  # fmt: skip
    wanted = torch.zeros(BINS)
    wanted[min(max(start + shift, 0), BINS - 1)] = 1
    torch.testing.assert_close(target[0], wanted, atol=1e-4, rtol=0)


def test_c51_splits_a_return_between_its_neighbours() -> None:
    head = C51(LOW, HIGH, BINS)
    target = head.target(torch.tensor([LOW + 3.25 * WIDTH]), torch.zeros(1), certain(torch.tensor([9])))
    assert target[0, 3:5].tolist() == pytest.approx([0.75, 0.25], abs=1e-4)


def test_hl_gauss_spreads_by_three_quarters_of_a_bin() -> None:
    target = HLGauss(LOW, HIGH, BINS).target(torch.tensor([0.5]), torch.zeros(1), torch.zeros(1, BINS))
    spread = (target * (centers() - 0.5).square()).sum(-1).sqrt()
    assert spread.item() == pytest.approx((0.75**2 + 1 / 12) ** 0.5 * WIDTH, rel=0.02), "and half a bin by rounding"


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("value", [-1.3, 0.0, 2.2])
def test_a_head_fitted_to_a_constant_predicts_it(name: Any, value: float) -> None:
    head = build_head(name, LOW, HIGH, BINS)
    out = torch.zeros(2, 1, head.outputs, requires_grad=True)
    optimizer = torch.optim.Adam([out], 0.1)
    target = head.target(torch.tensor([value]), torch.zeros(1), torch.randn(1, head.outputs, generator=rng()))
    for _ in range(300):
        loss = head.loss(out, target)
        assert loss.shape == (2, 1)
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
    assert head.mean(out).flatten().tolist() == pytest.approx([value] * 2, abs=0.02)
    if isinstance(head, GaussianHead):
        assert head.std(out).max() < 2 * head.LEAST_STD, "and it is sure"


def test_the_gaussian_heads_spread_is_that_of_the_return() -> None:
    """Returns of 1 or 0, half and half: mean 0.5, standard deviation 0.5."""
    head = GaussianHead(LOW, HIGH)
    out = torch.zeros(1, 2, 2, requires_grad=True)
    optimizer = torch.optim.Adam([out], 0.02)
    target = head.target(torch.tensor([1.0, 0.0]), torch.zeros(2), torch.zeros(2, 2))
    for _ in range(500):
        both = out.mean(1, keepdim=True).expand(1, 2, 2)
        optimizer.zero_grad()
        head.loss(both, target).mean().backward()
        optimizer.step()
    fitted = out.mean(1)[0].detach()
    assert head.mean(fitted).item() == pytest.approx(0.5, abs=0.02)
    assert head.std(fitted).item() == pytest.approx(0.5, abs=0.03)


def test_the_gaussian_heads_step_has_no_scale() -> None:
    """Values ten times as large: the mean's gradient is ten times as large, and not smaller for being less certain."""
    slopes = []
    for scale in (10.0, 100.0):
        head = GaussianHead(-1e9, 1e9)
        out = torch.tensor([[[0.2 * scale, scale]]], requires_grad=True)  # softplus(x) is x for large x
        (slope,) = torch.autograd.grad(head.loss(out, torch.tensor([[0.3 * scale, 0.0]])).sum(), out)
        slopes.append(slope.flatten() / scale)
    torch.testing.assert_close(slopes[0], slopes[1], atol=0, rtol=0.02)
    assert slopes[0][0].item() == pytest.approx(0.2 - 0.3, rel=0.01)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.floats(-4, 4), st.floats(0, 3), st.floats(0.1, 4))
def test_the_square_of_a_clipped_gaussian_is_that_of_samples(center: float, std: float, reach: float) -> None:
    draws = center + std * torch.randn(200_000, generator=rng())
    found = clipped_square(torch.tensor([[center]]), torch.tensor([std]), torch.tensor(reach))
    assert found.item() == pytest.approx(draws.clamp(-reach, reach).square().mean().item(), rel=0.02, abs=1e-3)


@pytest.mark.parametrize("name", HEADS)
def test_targets_stay_within_the_known_returns(name: Any) -> None:
    head = build_head(name, LOW, HIGH, BINS)
    target = head.target(torch.tensor([9.0, -9.0]), torch.zeros(2), torch.zeros(2, head.outputs))
    if isinstance(head, Scalar | GaussianHead):
        value = target if isinstance(head, Scalar) else target[:, 0]
    else:
        value = (target * centers()).sum(-1)
    assert value.tolist() == pytest.approx([HIGH, LOW], abs=WIDTH / 2)


@pytest.mark.parametrize("name", ["hl-gauss", "c51"])
@pytest.mark.parametrize("limits", [(0.0, float("inf")), (-float("inf"), 0.0), (1.0, 1.0)])
def test_bins_without_a_range_are_refused(name: Any, limits: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="--agent.value-low"):
        build_head(name, *limits, BINS)


@pytest.mark.parametrize("name", ["hl-gauss", "c51"])
@pytest.mark.parametrize("limits", [(LOW, HIGH), (0.0, 1.0), (-4.0, 0.0), (1.0, 2.0)])
@pytest.mark.parametrize(("kind", "bins"), [(Critic, BINS), (Critic, 501), (BatchNormCritic, BINS)])
def test_values_of_bins_begin_at_0_or_the_nearest_of_their_range(name: Any, limits: Any, kind: Any, bins: int) -> None:
    critic = kind(3, 2, members=3, hidden=(16, bins), head=build_head(name, *limits, bins))
    values = critic.value(9 * torch.randn(40, 3, generator=rng()), torch.rand(40, 2, generator=rng()))
    low, high = limits
    assert (values - min(max(0.0, low), high)).abs().max() < (high - low) / (bins - 1)


@pytest.mark.parametrize("name", HEADS)
def test_the_pessimistic_member_is_chosen_row_by_row(name: Any) -> None:
    head = build_head(name, LOW, HIGH, BINS)
    out = torch.randn(4, 32, head.outputs, generator=rng())
    chosen = head.mean(pessimistic(head, out, 4, rng()))
    assert torch.equal(chosen, head.mean(out).amin(0))
    pairs = {tuple(head.mean(pessimistic(head, out, 2, rng(k))).tolist()) for k in range(40)}
    possible = {tuple(head.mean(out)[[a, b]].amin(0).tolist()) for a in range(4) for b in range(a)}
    assert pairs == possible, "every pair of the four, and nothing else"
