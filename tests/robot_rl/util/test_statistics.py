"""Confidence intervals against closed forms and published values, and estimates of further episodes."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robot_rl.util.statistics import Difference, _newcombe, difference, estimate, mean_interval, wilson

RNG = np.random.default_rng


def rates(*share: float, episodes: int = 100, seed: int = 0) -> list[np.ndarray]:
    """Return outcomes 0 or 1 of one seed per success rate, in random order."""
    rng = RNG(seed)
    return [rng.permutation((np.arange(episodes) < round(p * episodes)).astype(float)) for p in share]


def test_one_seed_has_wilsons_or_students_interval() -> None:
    found = estimate(rates(0.3), rate=True)
    assert (found.low, found.high) == wilson(30, 100) and found.mean == pytest.approx(0.3)
    values = RNG(0).normal(size=40)
    student, found = mean_interval(values.tolist()), estimate([values])
    assert (found.mean, found.low, found.high) == pytest.approx((student["mean"], student["low"], student["high"]))


@settings(deadline=None)
@given(st.integers(1, 1000), st.floats(0, 1), st.floats(0.5, 0.999))
def test_intervals_are_scipys(trials: int, share: float, confidence: float) -> None:
    from scipy import stats

    successes = round(share * trials)
    expected = stats.binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    assert wilson(successes, trials, confidence) == pytest.approx((expected.low, expected.high), abs=1e-9)
    x = RNG(trials).normal(size=2 + trials % 50)
    low, high = stats.t.interval(0.95, len(x) - 1, x.mean(), stats.sem(x))
    found = mean_interval(x.tolist())
    assert (found["low"], found["high"]) == pytest.approx((low, high))


def test_constant_seeds_are_resampled_as_wholes_of_equal_weight() -> None:
    # a mean of three draws out of {1, 2, 3} is 1, or 3, with probability 1/27 > 0.025
    found = estimate([np.full(50, v) for v in (1.0, 2.0, 3.0)])
    assert (found.mean, found.low, found.high) == (2, 1, 3)
    found = estimate([np.array([0.0, 0.0, 0.0, 0.0]), np.array([1.0])])
    assert (found.mean, found.low, found.high) == (0.5, 0, 1), "the same weight for another length"


def test_many_seeds_of_one_episode_have_the_normal_interval() -> None:
    x = RNG(1).normal(size=60)
    found, half = estimate([np.array([v]) for v in x]), 1.96 * x.std() / math.sqrt(60)
    assert found.low == pytest.approx(x.mean() - half, abs=0.1 * half)
    assert found.high == pytest.approx(x.mean() + half, abs=0.1 * half)


def test_variance_is_the_sum_of_both_levels() -> None:
    rng = RNG(2)
    seeds = [rng.normal(m, 3.0, 100) for m in rng.normal(0, 0.5, 30)]
    found = estimate(seeds)
    variance = np.var([x.mean() for x in seeds]) / 30 + np.mean([x.var() / 100 for x in seeds]) / 30
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * math.sqrt(variance), rel=0.1)


def test_equal_outcomes_have_an_interval_of_positive_width() -> None:
    found = estimate(rates(1, 1, 1), rate=True)
    assert (found.low, found.high) == wilson(300, 300)
    found = difference(rates(1, 1, 1), rates(1, 1, 1), paired=True, rate=True)
    assert found.mean == 0 and found.low < 0 < found.high and not found.decided


def test_newcombe_interval_equals_the_published_one() -> None:
    low, high = _newcombe(rates(48 / 80, episodes=80), rates(56 / 70, episodes=70))  # Newcombe 1998, table II
    assert (low, high) == (pytest.approx(0.0524, abs=6e-5), pytest.approx(0.3339, abs=6e-5))


def test_pairing_removes_common_variance_and_unpaired_arms_may_have_different_sizes() -> None:
    rng = RNG(3)
    ease = [rng.normal(0, 5, 100) for _ in range(3)]
    first = [x + rng.normal(0, 0.1, 100) for x in ease]
    second = [x + 0.2 + rng.normal(0, 0.1, 100) for x in ease]
    paired, loose = difference(first, second, True), difference(first, second, False)
    assert paired.decided and not loose.decided and paired.mean == pytest.approx(loose.mean)
    assert paired.high - paired.low < 0.1 * (loose.high - loose.low)
    found = difference(rates(0.2, 0.3), rates(0.8, 0.7, 0.9, episodes=50), paired=False, rate=True)
    assert found.decided and found.mean == pytest.approx(0.55) and not found.paired


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(0.1, 0.9), min_size=1, max_size=5), st.floats(-0.3, 0.3), st.booleans())
def test_difference_is_antisymmetric(shares: list[float], gap: float, paired: bool) -> None:
    first = rates(*shares, episodes=40)
    second = rates(*(min(1.0, max(0.0, p + gap)) for p in shares), episodes=40, seed=1)
    forward, back = difference(first, second, paired), difference(second, first, paired)
    assert forward.mean == pytest.approx(-back.mean) and forward.low <= forward.mean <= forward.high
    if paired:
        assert (forward.low, forward.high) == (pytest.approx(-back.high, abs=0.02), pytest.approx(-back.low, abs=0.02))
    assert estimate(first, True) == estimate(first, True), "the bootstrap is seeded"


def longer(seeds: list[np.ndarray], more: int) -> list[np.ndarray]:
    return [np.resize(x, len(x) + more) for x in seeds]


def test_estimated_further_episodes_are_enough() -> None:
    first, second = rates(0.5), rates(0.6, seed=1)
    found = difference(first, second, paired=False, rate=True)
    assert not found.decided and found.more_episodes is not None
    enough = difference(longer(first, 2 * found.more_episodes), longer(second, 2 * found.more_episodes), False, True)
    short = difference(longer(first, found.more_episodes // 3), longer(second, found.more_episodes // 3), False, True)
    assert enough.decided and not short.decided


def test_disagreeing_seeds_need_more_seeds_and_zero_difference_has_no_estimate() -> None:
    first, second = rates(0.2, 0.8, 0.5, 0.5), rates(0.7, 0.6, 0.5, 0.6, seed=1)
    found = difference(first, second, paired=True, rate=True)
    assert not found.decided and found.more_episodes is None and found.more_seeds
    times = 2 + found.more_seeds // 4
    assert difference(first * 2 * times, second * 2 * times, paired=True, rate=True).decided
    found = difference(rates(0.5), rates(0.5), paired=False, rate=True)
    assert isinstance(found, Difference) and not found.decided
    assert found.more_episodes is None and found.more_seeds is None


def test_nan_is_excluded_pairwise() -> None:
    nan = float("nan")
    found = difference([np.array([1.0, nan, 3.0, 0.0])], [np.array([2.0, 5.0, nan, 1.0])], paired=True)
    assert found.mean == 1 and estimate([np.array([1.0, nan, 3.0])]).mean == 2
    with pytest.raises(ValueError, match="no outcome"):
        estimate([np.array([nan])])


def test_one_number_per_seed_is_compared_by_student_s_t() -> None:
    """The bootstrap of three numbers cannot leave their range."""
    first, second = [np.zeros(1)] * 3, [np.array([value]) for value in (0.01, 3.0, 9.0)]
    found = difference(first, second, paired=True)
    assert found.mean == pytest.approx(4.0033, abs=1e-3) and found.low < 0 < found.high and not found.decided
    clear = difference(first, [np.array([value]) for value in (3.0, 3.1, 2.9)], paired=True)
    assert clear.decided and clear.low == pytest.approx(3 - 4.3027 * 0.1 / 3**0.5, abs=1e-3)
    apart = difference([np.array([x]) for x in (0.0, 0.1)], [np.array([x]) for x in (3.0, 3.1)], paired=False)
    assert apart.decided and apart.low == pytest.approx(3 - 4.3027 * (2 * 0.005 / 2) ** 0.5, abs=1e-3)
    assert not difference([np.zeros(1)], [np.ones(1)], paired=True).decided, "one seed says nothing"
    assert estimate(second).low < 0
