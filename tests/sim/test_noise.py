"""Counter-based random numbers: distribution, and dependence on key, counter and column only."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sim.randomization.noise import _STRIDE, _mixed, episode_keys, normals, uniforms

Draw = Callable[[Tensor, Tensor, int], Tensor]
both = pytest.mark.parametrize("draw", [uniforms, normals])


def episode_key(seed: int, episode: int, purpose: int) -> int:
    return int(episode_keys([seed], episode, purpose)[0])


def table(draw: Draw, purpose: int = 0, episodes: int = 50, steps: int = 40, width: int = 9) -> Tensor:
    """Return random numbers (episodes, steps, width) as in an experiment."""
    keys = episode_keys(range(7, 7 + episodes), 0, purpose).repeat_interleave(steps)
    counters = torch.arange(steps).repeat(episodes)
    return draw(keys, counters, width).view(episodes, steps, width)


def test_uniforms_are_uniform() -> None:
    u = table(uniforms).double().flatten()
    n = len(u)
    assert ((u >= 0) & (u < 1)).all()
    counts = torch.histc(u, 20, 0, 1)
    assert (counts - n / 20).abs().max() < 5 * (n / 20) ** 0.5
    assert float(u.mean()) == pytest.approx(0.5, abs=5 * (1 / 12 / n) ** 0.5)
    assert float(u.var()) == pytest.approx(1 / 12, rel=0.03)


def test_normals_have_normal_moments_and_tails() -> None:
    x = table(normals).double().flatten()
    n = len(x)
    assert x.isfinite().all()
    for power, moment, spread in ((1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)):
        assert float((x**power).mean()) == pytest.approx(moment, abs=5 * (spread / n) ** 0.5), power
    for bound, share in ((0.6745, 0.5), (1.96, 0.05), (2.576, 0.01)):
        assert float((x.abs() > bound).double().mean()) == pytest.approx(share, abs=5 * (share / n) ** 0.5), bound
    assert (x > 0).double().mean() == pytest.approx(0.5, abs=5 * (0.25 / n) ** 0.5)


@both
def test_columns_steps_and_episodes_are_uncorrelated(draw: Draw) -> None:
    x = table(draw).double()
    for flat in (x.flatten(0, 1).T, x.transpose(0, 1).flatten(1), x.flatten(1)):
        c = torch.corrcoef(flat)
        c.fill_diagonal_(0)
        assert c.abs().max() < 6 / flat.shape[1] ** 0.5
    shifted = torch.corrcoef(torch.stack([x[:, :-1].flatten(), x[:, 1:].flatten()]))[0, 1]
    assert abs(float(shifted)) < 5 / x[:, 1:].numel() ** 0.5, "the same column at the next step"


@both
@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    rows=st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40)), min_size=1, max_size=70),
    width=st.integers(1, 40),
)
def test_numbers_do_not_depend_on_other_rows(draw: Draw, rows: list[tuple[int, int]], width: int) -> None:
    keys, counters = torch.tensor(rows, dtype=torch.long).T
    together = draw(keys, counters, width)
    assert together.shape == (len(rows), width) and together.dtype == torch.float32
    for i in {0, len(rows) // 2, len(rows) - 1}:
        assert torch.equal(draw(keys[i : i + 1], counters[i : i + 1], width)[0], together[i])
    assert torch.equal(draw(keys.flip(0), counters.flip(0), width).flip(0), together)


@both
def test_purposes_episodes_seeds_and_counters_differ(draw: Draw) -> None:
    rows = [(episode_key(s, e, p), c) for s in range(6) for e in range(6) for p in range(3) for c in range(6)]
    x = draw(*torch.tensor(rows).T, 2)
    assert len({tuple(row) for row in x.tolist()}) == len(rows)
    first, second = (table(draw, purpose).flatten() for purpose in (0, 1))
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 5 / len(first) ** 0.5


def test_mixer_is_splitmix64() -> None:
    """First numbers of Sebastiano Vigna's reference implementation at seed 1234567."""
    steps = torch.arange(1, 4) * _STRIDE + 1234567
    assert [x % 2**64 for x in _mixed(steps).tolist()] == [
        6457827717110365317, 3203168211198807973, 9817491932198370423
    ]  # fmt: skip
