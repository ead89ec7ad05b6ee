"""Confidence intervals of means, and of differences between two policies, for all tables and pages.

Outcomes are one array (E,) per training seed, with one number per held-out episode. For several seeds the interval is
from a two-level bootstrap over seeds and episodes, after Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge
of the Statistical Precipice" (arXiv 2108.13264). For one seed it is Wilson's for outcomes of 0 and 1, Student's t for
other outcomes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Any

import numpy as np

Outcomes = Sequence["np.ndarray[Any, np.dtype[np.float64]]"]
"""One array (E,) of outcomes per training seed."""
SAMPLES = 4000
"""Number of bootstrap samples: the standard error of an interval's ends is about 3 % of the interval's width."""
_CHUNK = 2_000_000
"""Largest number of resampled values in memory at once."""


def wilson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of a success rate (Wilson 1927); (0, 1) if there are no trials."""
    if trials == 0:
        return 0.0, 1.0
    share, z = successes / trials, NormalDist().inv_cdf(0.5 + confidence / 2)
    centre, half = share + z * z / (2 * trials), z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    scale = 1 + z * z / trials
    low, high = (centre - half) / scale, (centre + half) / scale
    return (low if successes else 0.0), (high if successes < trials else 1.0)  # without rounding error


def mean_interval(values: list[float]) -> dict[str, float | None]:
    """Return the mean of all values but NaN and the ends of its 95 % interval; None: unknown. The interval is Wilson's
    for values that are 0 or 1, else Student's t."""
    from scipy import special  # scipy.stats takes a second to import

    x = [v for v in values if not math.isnan(v)]
    if len(x) < 2:
        return {"mean": x[0] if x else None, "low": None, "high": None}
    if set(x) == {0.0, 1.0}:
        low, high = wilson(round(sum(x)), len(x))
        return {"mean": fmean(x), "low": low, "high": high}
    mean, half = fmean(x), float(special.stdtrit(len(x) - 1, 0.975)) * stdev(x) / math.sqrt(len(x))
    return {"mean": mean, "low": mean - half, "high": mean + half}


@dataclass(frozen=True)
class Estimate:
    """Mean with a 95 % interval, whose ends are NaN for a single outcome."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference(Estimate):
    """Mean outcome of one policy minus the mean outcome of another, with a 95 % interval."""

    paired: bool
    """Whether episodes were compared pairwise."""
    more_episodes: int | None = None
    """Estimated number of further held-out episodes per seed that would make the difference significant; None: no
    number suffices, or the difference is significant."""
    more_seeds: int | None = None
    """Like `more_episodes`, but the number of further seeds, each with the same number of episodes."""

    @property
    def decided(self) -> bool:
        """Return whether the 95 % interval excludes 0."""
        return self.low > 0 or self.high < 0


def estimate(outcomes: Outcomes, rate: bool = False) -> Estimate:
    """Return the mean over seeds of the means over episodes; `rate` says that outcomes are 0 or 1. The interval of a
    rate includes Wilson's interval of the pooled episodes, because a bootstrap of equal outcomes has width 0."""
    seeds = _clean(outcomes)
    mean, every = fmean(float(x.mean()) for x in seeds), np.concatenate(seeds)
    pooled = wilson(int(every.sum()), len(every)) if rate else (math.inf, -math.inf)
    if len(seeds) > 1 and not rate and all(len(x) == 1 for x in seeds):  # one number per seed: Student's t
        found = mean_interval(every.tolist())
        return Estimate(mean, float(found["low"] or 0.0), float(found["high"] or 0.0))
    if len(seeds) > 1:
        low, high = _ends(_resampled(seeds))
        return Estimate(mean, min(low, pooled[0]), max(high, pooled[1]))
    if rate:
        return Estimate(mean, *pooled)
    found = mean_interval(seeds[0].tolist())
    return Estimate(mean, *(math.nan if found[end] is None else float(found[end] or 0.0) for end in ("low", "high")))


def difference(first: Outcomes, second: Outcomes, paired: bool, rate: bool = False) -> Difference:
    """Return the mean of `second` minus the mean of `first`.

    Args:
        first, second: the policies' outcomes, one array (E,) per seed.
        paired: seeds and episodes of `first` and `second` correspond by index.
        rate: outcomes are 0 or 1.
    """
    if all(len(x) == 1 for x in (*first, *second)):
        return _of_seeds(np.concatenate(list(first)), np.concatenate(list(second)), paired)
    if paired:
        kept = [np.isfinite(a) & np.isfinite(b) for a, b in zip(first, second, strict=True)]
        parts = [_clean([b[k] - a[k] for a, b, k in zip(first, second, kept, strict=True)])]
        sampled = _resampled(parts[0])
        mean = fmean(float(x.mean()) for x in parts[0])
    else:
        parts = [_clean(first), _clean(second)]
        sampled = _resampled(parts[1], 1) - _resampled(parts[0])
        mean = fmean(float(x.mean()) for x in parts[1]) - fmean(float(x.mean()) for x in parts[0])
    low, high = _ends(sampled)
    if low == high and rate:  # equal outcomes everywhere
        low, high = _newcombe(first, second)
    distance = mean - low if mean > 0 else high - mean
    if low > 0 or high < 0 or mean == 0 or distance <= 0:
        return Difference(mean, low, high, paired)
    return Difference(mean, low, high, paired, *_needed(parts, mean / distance))


def _of_seeds(first: Any, second: Any, paired: bool) -> Difference:
    """Return the difference of outcomes with one number per seed (S,), by Student's t; unbounded for one seed."""
    parts = [second - first] if paired else [first, second]
    mean, degrees = float(second.mean() - first.mean()), sum(len(x) - 1 for x in parts)
    if min(map(len, parts)) < 2:
        return Difference(mean, -math.inf, math.inf, paired)
    from scipy import special  # scipy.stats takes a second to import

    half = float(special.stdtrit(degrees, 0.975)) * math.sqrt(sum(float(x.var(ddof=1)) / len(x) for x in parts))
    return Difference(mean, mean - half, mean + half, paired)


def _needed(parts: Sequence[Outcomes], ratio: float) -> tuple[int | None, int | None]:
    """Return the further episodes per seed, and the further seeds, that would move the nearer end of the interval to 0.

    Args:
        parts: outcomes that determine the variance.
        ratio: difference divided by its distance to that end.
    """
    of_seeds = of_episodes = 0.0
    for seeds in parts:
        within = fmean(float(x.var(ddof=1)) / len(x) if len(x) > 1 else 0.0 for x in seeds)
        between = float(np.var([x.mean() for x in seeds], ddof=1)) if len(seeds) > 1 else 0.0
        of_episodes += within / len(seeds)
        of_seeds += max(0.0, between - within) / len(seeds)
    total = of_seeds + of_episodes
    if not total:
        return None, None
    # With k times the episodes, width^2 is proportional to of_seeds + of_episodes / k.
    left = ratio**2 - of_seeds / total
    episodes = max(len(x) for seeds in parts for x in seeds)
    count = max(len(seeds) for seeds in parts)
    factor = of_episodes / total / left if left > 0 else math.inf
    more = None if factor > 1000 else max(1, math.ceil((factor - 1) * episodes))
    return more, None if ratio**2 < 1e-3 else max(1, math.ceil((1 / ratio**2 - 1) * count))


def _clean(outcomes: Outcomes) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    """Return the outcomes without NaN; ValueError if a seed has no outcome left."""
    kept = [np.asarray(x, np.float64)[np.isfinite(x)] for x in outcomes]
    if not kept or not all(map(len, kept)):
        raise ValueError("a seed has no outcome")
    return kept


def _resampled(seeds: Outcomes, stream: int = 0) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the means (SAMPLES,) of a two-level bootstrap; two unpaired policies need different `stream`s."""
    rng = np.random.default_rng([20210830, stream])
    lengths = np.array([len(x) for x in seeds])
    longest = int(lengths.max())
    table = np.zeros((len(seeds), longest))
    for row, x in zip(table, seeds, strict=True):
        row[: len(x)] = x
    means, each = [], max(1, _CHUNK // (len(seeds) * longest))
    for begin in range(0, SAMPLES, each):
        count = min(each, SAMPLES - begin)
        picked = rng.integers(0, len(seeds), (count, len(seeds), 1))
        episode = (rng.random((count, len(seeds), longest), dtype=np.float32) * lengths[picked]).astype(np.int64)
        used = np.arange(longest) < lengths[picked]
        values = np.where(used, table[picked, np.minimum(episode, lengths[picked] - 1)], 0.0)
        means.append((values.sum(2) / lengths[picked[..., 0]]).mean(1))
    return np.concatenate(means)


def _ends(samples: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[float, float]:
    low, high = np.quantile(samples, (0.025, 0.975))
    return float(low), float(high)


def _newcombe(first: Outcomes, second: Outcomes) -> tuple[float, float]:
    """Return the interval of a difference between two rates (Newcombe 1998, method 10) of pooled episodes."""
    ends = []
    for seeds in (first, second):
        x = np.concatenate(_clean(seeds))
        ends.append((float(x.mean()), *wilson(int(x.sum()), len(x))))
    (p, p_low, p_high), (q, q_low, q_high) = ends
    return q - p - math.hypot(q - q_low, p_high - p), q - p + math.hypot(q_high - q, p - p_low)
