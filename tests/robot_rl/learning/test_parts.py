"""Value functions, their heads, and advantages, against formulas and separate networks."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from policies.networks.ensemble import EnsembleBatchNorm, EnsembleLinear
from robot_rl.learning.parts.critics import BatchNormCritic, Critic, advantages
from robot_rl.learning.parts.heads import C51, GaussianHead, Head, HLGauss, Scalar, build_head, clipped_square
from robot_rl.learning.parts.heads import pessimistic as least
from robot_rl.learning.parts.objectives import annealed, expectile_error
from robot_rl.util.errors import ConfigError
from tests.robot_rl.learning.conftest import rng

LOW, HIGH, BINS = -2.0, 3.0, 51
WIDTH = (HIGH - LOW) / (BINS - 1)
HEADS = ["scalar", "hl-gauss", "c51", "gaussian"]
SCALAR = Scalar(-1.0, 1.0)


# ---- ensembles -----------------------------------------------------------------------------------------------------
def test_ensemble_linear_equals_separate_layers() -> None:
    layer, x = EnsembleLinear(3, 5, 4), torch.randn(3, 7, 5)
    for k, row in enumerate(layer(x)):
        one = nn.Linear(5, 4)
        one.weight.data, one.bias.data = layer.weight[k].T, layer.bias[k, 0]
        assert torch.allclose(row, one(x[k]), atol=1e-6)
    layer, bound = EnsembleLinear(4, 64, 32), nn.Linear(64, 32).weight.abs().max().item()
    assert 0.9 * bound < layer.weight.abs().max() < 1.1 * bound, "initialized like a linear layer"
    assert not torch.equal(layer.weight[0], layer.weight[1])


def test_ensemble_batch_norm_equals_separate_layers() -> None:
    ours, x = EnsembleBatchNorm(3, 4), 2 + 3 * torch.randn(3, 50, 4)
    theirs = [nn.BatchNorm1d(4, affine=False, momentum=0.01) for _ in range(3)]
    for _ in range(3):
        torch.testing.assert_close(ours(x), torch.stack([norm(x[k]) for k, norm in enumerate(theirs)]))
    ours.eval()
    for k, norm in enumerate(theirs):
        torch.testing.assert_close(ours(x)[k], norm.eval()(x[k]))


def test_layer_norm_bounds_values_far_from_the_data() -> None:
    """Without LayerNorm a value grows with its input, and bootstrapping on unseen actions diverges."""
    critic, plain = (Critic(3, 2, members=2, hidden=(16, 16), head=SCALAR, layer_norm=norm) for norm in (True, False))
    near = critic(torch.randn(50, 3), torch.randn(50, 2)).abs().max()
    away = 1e6 * torch.randn(50, 3), 1e6 * torch.randn(50, 2)
    assert critic(*away).abs().max() < 5 * near < 1e3 * near < plain(*away).abs().max()


@pytest.mark.parametrize("head", [SCALAR, GaussianHead(-1.0, 1.0)])
def test_critic_members_share_nothing(head: Head) -> None:
    critic = Critic(3, 2, members=3, hidden=(8, 8), head=head)
    features, action = torch.randn(6, 3), torch.randn(6, 2)
    assert critic(features, action).shape == (3, 6, head.outputs) and critic.value(features, action).shape == (3, 6)
    critic(features, action)[1].sum().backward()
    for name, parameter in critic.named_parameters():
        assert parameter.grad is not None and not parameter.grad[[0, 2]].any(), name
        assert name.endswith("bias") or parameter.grad[1].any(), name


# ---- heads ---------------------------------------------------------------------------------------------------------
def centers() -> Tensor:
    return torch.linspace(LOW, HIGH, BINS)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.sampled_from(["hl-gauss", "c51"]), st.integers(0, 99), st.floats(-4, 4), st.floats(0, 1))
def test_bin_targets_are_distributions_with_the_mean(name: Any, seed: int, reward: float, discount: float) -> None:
    head = build_head(name, LOW, HIGH, BINS)
    following = 3 * torch.randn(16, BINS, generator=rng(seed))
    target = head.target(torch.full((16,), reward), torch.full((16,), discount), following)
    assert target.shape == (16, BINS) and (target >= 0).all()
    torch.testing.assert_close(target.sum(-1), torch.ones(16))
    mean, right = (target * centers()).sum(-1), reward + discount * head.mean(following)
    if name == "c51":
        each = (reward + discount * centers()).clamp(LOW, HIGH)  # returns beyond the range are moved to its end
        torch.testing.assert_close(mean, (following.softmax(-1) * each).sum(-1), atol=1e-4, rtol=1e-4)
    else:
        inside = (right > LOW + 3 * WIDTH) & (right < HIGH - 3 * WIDTH)
        torch.testing.assert_close(mean[inside], right[inside], atol=0.02 * WIDTH, rtol=0)
        assert ((mean - right.clamp(LOW, HIGH)).abs() < WIDTH / 2).all(), "clipped to the range"


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(0, BINS - 1), st.sampled_from([0.0, 0.25, 0.5]), st.integers(-5, 5))
def test_c51_splits_a_certain_return_between_two_bins(start: int, part: float, shift: int) -> None:
    certain = 100 * nn.functional.one_hot(torch.tensor([start]), BINS).float()
    target = C51(LOW, HIGH, BINS).target(torch.tensor([(shift + part) * WIDTH]), torch.ones(1), certain)
    place = min(max(start + shift + part, 0.0), BINS - 1.0)
    right = (1 - (torch.arange(BINS) - place).abs()).clamp_min(0)
    torch.testing.assert_close(target[0], right, atol=1e-4, rtol=0)


def test_hl_gauss_standard_deviation_is_three_quarters_of_a_bin() -> None:
    target = HLGauss(LOW, HIGH, BINS).target(torch.tensor([0.5]), torch.zeros(1), torch.zeros(1, BINS))
    spread = (target * (centers() - 0.5).square()).sum(-1).sqrt()
    assert spread.item() == pytest.approx((0.75**2 + 1 / 12) ** 0.5 * WIDTH, rel=0.02), "1 / 12 is from rounding"


def fit(head: Any, out: Tensor, target: Tensor, lr: float, steps: int) -> None:
    """Fit outputs (E, 1, outputs), the same for all rows, to targets (B, ...)."""
    optimizer = torch.optim.Adam([out], lr)
    for _ in range(steps):
        optimizer.zero_grad()
        head.loss(out.expand(-1, len(target), -1), target).mean(1).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("value", [-1.3, 0.0, 2.2])
def test_head_fitted_to_a_constant_predicts_it(name: Any, value: float) -> None:
    head = build_head(name, LOW, HIGH, BINS)
    out = torch.zeros(2, 1, head.outputs, requires_grad=True)
    target = head.target(torch.tensor([value]), torch.zeros(1), torch.randn(1, head.outputs, generator=rng()))
    assert head.loss(out, target).shape == (2, 1)
    fit(head, out, target, 0.1, 300)
    assert head.mean(out).flatten().tolist() == pytest.approx([value] * 2, abs=0.02)
    if isinstance(head, GaussianHead):
        assert head.std(out).max() < 2 * head.LEAST_STD


def test_gaussian_head_learns_the_standard_deviation_with_gradients_in_proportion_to_it() -> None:
    """Returns of 1 or 0, half and half, have a mean and standard deviation of 0.5.

    With values ten times as large the mean's gradient is ten times as large, in spite of the larger variance."""
    head, out = GaussianHead(LOW, HIGH), torch.zeros(1, 1, 2, requires_grad=True)
    fit(head, out, head.target(torch.tensor([1.0, 0.0]), torch.zeros(2), torch.zeros(2, 2)), 0.02, 500)
    assert head.mean(out).item() == pytest.approx(0.5, abs=0.02)
    assert head.std(out).item() == pytest.approx(0.5, abs=0.03)
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
def test_clipped_square_equals_the_mean_of_samples(center: float, std: float, reach: float) -> None:
    draws = center + std * torch.randn(200_000, generator=rng())
    square = clipped_square(torch.tensor([[center]]), torch.tensor([std]), torch.tensor(reach))
    assert square.item() == pytest.approx(draws.clamp(-reach, reach).square().mean().item(), rel=0.02, abs=1e-3)


@pytest.mark.parametrize("name", ["scalar", "gaussian"])
def test_targets_are_clipped_to_the_range_of_returns(name: Any) -> None:
    head = build_head(name, LOW, HIGH, BINS)
    target = head.target(torch.tensor([9.0, -9.0]), torch.zeros(2), torch.zeros(2, head.outputs))
    assert (target if name == "scalar" else target[:, 0]).tolist() == [HIGH, LOW]


@pytest.mark.parametrize("name", ["hl-gauss", "c51"])
@pytest.mark.parametrize("limits", [(0.0, float("inf")), (-float("inf"), 0.0), (1.0, 1.0)])
def test_bins_without_a_range_are_refused(name: Any, limits: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="--agent.value-low"):
        build_head(name, *limits, BINS)


@pytest.mark.parametrize("name", ["hl-gauss", "c51"])
@pytest.mark.parametrize("limits", [(LOW, HIGH), (0.0, 1.0), (-4.0, 0.0), (1.0, 2.0)])
@pytest.mark.parametrize(("kind", "bins"), [(Critic, BINS), (Critic, 501), (BatchNormCritic, BINS)])
def test_initial_values_of_bins_are_0_or_the_nearest_in_range(name: Any, limits: Any, kind: Any, bins: int) -> None:
    critic = kind(3, 2, members=3, hidden=(16, bins), head=build_head(name, *limits, bins))
    values = critic.value(9 * torch.randn(40, 3, generator=rng()), torch.rand(40, 2, generator=rng()))
    low, high = limits
    assert (values - min(max(0.0, low), high)).abs().max() < (high - low) / (bins - 1)


@pytest.mark.parametrize("name", HEADS)
def test_pessimistic_member_is_chosen_per_row_from_random_subsets(name: Any) -> None:
    head = build_head(name, LOW, HIGH, BINS)
    out = torch.randn(4, 32, head.outputs, generator=rng())
    assert torch.equal(head.mean(least(head, out, 4, rng())), head.mean(out).amin(0))
    pairs = {tuple(head.mean(least(head, out, 2, rng(k))).tolist()) for k in range(40)}
    assert pairs == {tuple(head.mean(out)[[a, b]].amin(0).tolist()) for a in range(4) for b in range(a)}


def test_expectile_error_and_annealing() -> None:
    error = torch.randn(100, generator=rng())
    assert torch.equal(2 * expectile_error(error, 0.5), error.square())
    assert [annealed(0.9, done, 10) for done in (0, 5, 10, 99)] == pytest.approx([0.9, 0.7, 0.5, 0.5])
    grid = torch.linspace(-1, 1, 2001)
    losses = expectile_error(torch.tensor([-0.5, 0.5])[:, None] - grid, 0.9).mean(0)
    assert grid[losses.argmin()].item() == pytest.approx(0.4, abs=2e-3), "0.9 (0.5 - x) = 0.1 (x + 0.5)"


# ---- advantages ----------------------------------------------------------------------------------------------------
REWARD, VALUE = torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([[10.0], [20.0], [30.0], [40.0]])
NO, AT_1 = torch.zeros(4, 1, dtype=torch.bool), torch.tensor([[False], [True], [False], [False]])


@pytest.mark.parametrize(
    ("after", "terminated", "done", "delta"),
    [(30.0, NO, NO, 2 + 15 - 20), (1e9, AT_1, AT_1, 2 - 20), (6.0, NO, AT_1, 2 + 3 - 20)],
    ids=["no-end", "termination", "truncation"],
)
def test_advantages_by_hand(after: float, terminated: Tensor, done: Tensor, delta: float) -> None:
    """A_t = delta_t + A_{t+1} / 4; `after` is the value after the second step, which a termination ignores."""
    following = torch.tensor([[20.0], [after], [40.0], [50.0]])
    advantage, target = advantages(REWARD, VALUE, following, terminated, done, 0.5, 0.5)
    a3 = 4 + 25 - 40.0
    a2 = 3 + 20 - 30 + a3 / 4
    a1 = delta + (0 if done[1] else a2 / 4)
    assert advantage[:, 0].tolist() == [1 + 10 - 10 + a1 / 4, a1, a2, a3]
    assert torch.equal(target, advantage + VALUE)


def test_lambda_1_is_the_return_lambda_0_one_step_and_environments_are_independent() -> None:
    following = torch.cat([VALUE[1:], torch.tensor([[50.0]])])
    whole, step = (advantages(REWARD, VALUE, following, NO, NO, 0.5, weight)[1] for weight in (1.0, 0.0))
    assert whole[0].item() == 1 + 2 / 2 + 3 / 4 + 4 / 8 + 50 / 16
    assert torch.equal(step, REWARD + 0.5 * following)
    generator = rng()
    reward, value, following = torch.randn(3, 6, 4, generator=generator)
    done = torch.rand(6, 4, generator=generator) < 0.3
    terminated = done & (torch.rand(6, 4, generator=generator) < 0.5)
    whole, _ = advantages(reward, value, following, terminated, done, 0.9, 0.8)
    for i in range(4):
        one = [x[:, i : i + 1] for x in (reward, value, following, terminated, done)]
        assert torch.equal(advantages(*one, 0.9, 0.8)[0], whole[:, i : i + 1])
    with pytest.raises(ValueError, match=r"next_value has shape \(5, 1\), reward \(4, 1\)"):
        advantages(REWARD, VALUE, torch.zeros(5, 1), NO, NO, 0.9, 0.9)
