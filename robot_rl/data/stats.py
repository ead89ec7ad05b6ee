"""Statistics of columns and cameras, per episode and over a whole dataset.

Every feature has `min max mean std count` and the quantiles `q01 q10 q50 q90 q99`, in float64. A number
column of shape `(D,)` has statistics `(D,)`; a camera has them per channel, `(3, 1, 1)`, in [0, 1].
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data.lerobot import DatasetError, Feature, encode_json

Array = np.ndarray[Any, np.dtype[Any]]
Stats = dict[str, Array]

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
BASIC = ("min", "max", "mean", "std", "count")
STATISTICS = (*BASIC, *QUANTILES)
IMAGE_SAMPLES = 100
"""Number of evenly spaced frames of an episode that its image statistics use."""
IMAGE_PIXELS = 150
"""Approximate number of pixel rows, and of pixel columns, of a frame that image statistics use."""


def stats_fault(name: str, value: Any, feature: Feature) -> str:
    """Return the fault of a feature's statistic as text; empty if there is none."""
    shape = (1,) if name == "count" else (feature.shape[-1], 1, 1) if feature.is_camera else feature.shape
    try:
        numbers = np.asarray(value, dtype=np.float64)
        sound = numbers.shape == shape and bool(np.isfinite(numbers).all())
    except (ValueError, TypeError, OverflowError):  # lists of different lengths, or no numbers
        sound = False
    return "" if sound else f"is {value}, not finite numbers {shape}"


def stored_stats(row: Mapping[str, Any], key: str, feature: Feature, folder: Path) -> Stats:
    """Return one feature's statistics from a row of `meta/episodes`; missing statistics are left out."""
    stats: Stats = {}
    for name in STATISTICS:
        value = row.get(f"stats/{key}/{name}")
        if value is None:
            continue
        if fault := stats_fault(name, value, feature):
            where = f"{folder}: 'stats/{key}/{name}' of episode {row['episode_index']}"
            raise DatasetError(f"{where} {fault}; restore it from a copy")
        stats[name] = np.asarray(value, dtype=np.float64)
    return stats


def sampled(length: int) -> Array:
    """Return the numbers (n,) of the frames that an episode's image statistics use."""
    return np.linspace(0, length - 1, min(length, IMAGE_SAMPLES)).round().astype(np.int64)


def column_stats(values: Array) -> Stats:
    """Return the statistics over time of values (T, *shape)."""
    x = values.astype(np.float64)
    basic = {"min": x.min(0), "max": x.max(0), "mean": x.mean(0), "std": x.std(0), "count": np.array([len(x)])}
    return basic | _quantiles(x)


def image_stats(frames: Array) -> Stats:
    """Return the statistics of frames (T, H, W, 3) uint8, exact for the sampled pixels."""
    times = sampled(len(frames))
    stride = max(1, max(frames.shape[1:3]) // IMAGE_PIXELS)
    pixels = frames[times, ::stride, ::stride].reshape(-1, frames.shape[-1])
    counts = np.stack([np.bincount(channel, minlength=256) for channel in pixels.T])
    levels, share = np.arange(256) / 255.0, counts / len(pixels)
    mean, reached = share @ levels, share.cumsum(1)
    stats = {
        "min": levels[(counts > 0).argmax(1)], "max": levels[255 - (counts[:, ::-1] > 0).argmax(1)], "mean": mean,
        "std": np.sqrt((share * (levels - mean[:, None]) ** 2).sum(1)),
        **{name: levels[np.minimum((reached < q).sum(1), 255)] for name, q in QUANTILES.items()},
    }  # fmt: skip
    return {name: value.reshape(-1, 1, 1) for name, value in stats.items()} | {"count": np.array([len(times)])}


def merge_stats(parts: Sequence[Stats]) -> Stats:
    """Merge statistics of disjoint data: exact, except for quantiles, which are averaged with weights `count`.

    LeRobot averages quantiles in the same way; `RowSample` has more accurate quantiles for number columns.
    """
    counts = np.array([int(part["count"][0]) for part in parts], dtype=np.float64)
    weights = counts / counts.sum()

    def average(values: Array) -> Array:
        return np.tensordot(weights, values, axes=1)

    kept = [name for name in parts[0] if all(name in part for part in parts)]  # other programs may omit quantiles
    stacked = {name: np.stack([np.asarray(part[name], dtype=np.float64) for part in parts]) for name in kept}
    mean = average(stacked["mean"])
    variance = average(stacked["std"] ** 2 + (stacked["mean"] - mean) ** 2)
    return {
        "min": stacked["min"].min(0), "max": stacked["max"].max(0), "mean": mean, "std": np.sqrt(variance),
        "count": np.array([int(counts.sum())]),
        **{name: average(stacked[name]) for name in QUANTILES if name in kept},
    }  # fmt: skip


class RowSample:
    """Uniform sample of a growing table's rows, for its quantiles.

    The sample depends only on the row indices, so the number of recording sessions does not change the quantiles.
    """

    def __init__(self, capacity: int = 4096) -> None:
        self.capacity = capacity
        self._limit = 1 << 64
        self._keys: Array = np.empty(0, dtype=np.uint64)
        self._rows: dict[str, Array] = {}

    def add(self, start: int, columns: Mapping[str, Array]) -> None:
        """Add consecutive rows from row index `start` on."""
        length = len(next(iter(columns.values())))
        keys = _hash(np.arange(start, start + length, dtype=np.uint64))
        keep = keys <= np.uint64(self._limit - 1)
        self._keys = np.concatenate([self._keys, keys[keep]])
        for name, values in columns.items():
            rows = values[keep].astype(np.float64)
            self._rows[name] = np.concatenate([self._rows[name], rows]) if name in self._rows else rows
        while len(self._keys) > self.capacity:
            self._limit //= 2
            keep = self._keys <= np.uint64(self._limit - 1)
            self._keys = self._keys[keep]
            self._rows = {name: rows[keep] for name, rows in self._rows.items()}

    def copy(self) -> RowSample:
        """Return an independent copy; both share arrays, which `add` never changes in place."""
        other = RowSample(self.capacity)
        other._limit, other._keys, other._rows = self._limit, self._keys, dict(self._rows)
        return other

    def quantiles(self) -> dict[str, Stats]:
        """Return the quantiles of every column."""
        return {name: _quantiles(rows) for name, rows in self._rows.items()}


def merge(stats: Mapping[str, Sequence[Stats]], sample: RowSample) -> dict[str, Stats]:
    """Merge the statistics of all parts; the quantiles of number columns are taken from the sample."""
    quantiles = sample.quantiles()
    return {key: merge_stats(parts) | quantiles.get(key, {}) for key, parts in stats.items()}


def _quantiles(x: Array) -> Stats:
    """Return the quantiles over axis 0, linearly interpolated."""
    return dict(zip(QUANTILES, np.quantile(x, list(QUANTILES.values()), axis=0), strict=True))


def _hash(index: Array) -> Array:
    """Hash row indices (splitmix64), so that episodes of equal length do not bias the sample."""
    z = (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def known_stats(entry: Mapping[str, Any]) -> Stats:
    """Return the statistics of one feature's JSON entry as arrays; unknown statistics are left out."""
    return {n: np.atleast_1d(np.asarray(v, dtype=np.float64)) for n, v in entry.items() if n in STATISTICS}


def read_stats(path: Path) -> dict[str, Stats]:
    """Read `stats.json` by feature, without unknown statistics; {} if the file does not exist."""
    try:
        return {key: known_stats(entry) for key, entry in json.loads(path.read_bytes()).items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, OverflowError, AttributeError, RecursionError) as error:
        raise DatasetError(f"{path} is not valid ({error}); write it anew with `robot-rl dataset stats`") from error


def encode_stats(stats: Mapping[str, Stats]) -> bytes:
    return encode_json({key: {name: value.tolist() for name, value in entry.items()} for key, entry in stats.items()})
