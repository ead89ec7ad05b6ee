"""Random numbers by counter: a function of (key, counter, column), for all environments in one call.

What an episode draws while it runs must not depend on the other environments; a generator per environment would be a
Python loop per step. The mixer is splitmix64 (Steele et al. 2014, "Fast splittable pseudorandom number generators").
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_STRIDE, _COLUMN = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)


def _mixed(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def episode_keys(seeds: Sequence[int], episodes: np.ndarray | int, purpose: int) -> np.ndarray:
    """Keys (n,) uint64 of episodes (n,) of environment seeds (n); different purposes have independent numbers."""
    key = np.array([seed & (2**64 - 1) for seed in seeds], np.uint64)
    for part in (episodes, purpose):
        key = _mixed(key + _STRIDE * (np.atleast_1d(part) + 1).astype(np.uint64))
    return key


def _bits(keys: np.ndarray, counters: np.ndarray, width: int) -> np.ndarray:
    start = keys + _STRIDE * counters.astype(np.uint64)
    return _mixed(_mixed(start)[:, None] + _COLUMN * np.arange(1, width + 1, dtype=np.uint64))


def uniforms(keys: np.ndarray, counters: np.ndarray, width: int) -> Tensor:
    """Numbers in [0, 1), (n, width) float32, of n keys (n,) uint64 at counters (n,)."""
    return torch.from_numpy((_bits(keys, counters, width) >> np.uint64(40)).astype(np.float32) * np.float32(2**-24))


def normals(keys: np.ndarray, counters: np.ndarray, width: int) -> Tensor:
    """Standard normal numbers, (n, width) float32 (Box and Muller 1958: two of every 64 bits)."""
    pairs = (width + 1) // 2
    bits = _bits(keys, counters, pairs)
    first = torch.from_numpy((bits >> np.uint64(32)).astype(np.float32)).add_(1.0).mul_(2**-32)
    second = torch.from_numpy((bits & np.uint64(0xFFFFFFFF)).astype(np.float32)).mul_(2 * np.pi * 2**-32)
    radius = first.clamp_(max=1.0).log_().mul_(-2.0).sqrt_()
    return torch.cat([radius * second.cos(), radius * second.sin()], 1)[:, :width]
