"""Counter-based random numbers: a function of (key, counter, column), for all environments in one call, on any device.

Random numbers of an episode must not depend on other environments, but a generator per environment would need a Python
loop in every step. The mixer is splitmix64 (Steele et al. 2014, "Fast splittable pseudorandom number generators").
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def _signed(x: int) -> int:
    """Return 64 bits as a signed integer: PyTorch does not multiply unsigned integers."""
    return (x + 2**63) % 2**64 - 2**63


_STRIDE, _COLUMN = _signed(0x9E3779B97F4A7C15), _signed(0xD1B54A32D192ED03)
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shift the bits of `x` to the right and fill with zeros."""
    return (x >> bits) & (2 ** (64 - bits) - 1)


def _mixed(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def episode_keys(seeds: Sequence[int], episodes: Sequence[int] | int, purpose: int) -> Tensor:
    """Return keys (n,) int64 of `episodes` (n,) of environment `seeds` (n,). Keys of different purposes are
    independent."""
    key = torch.tensor([_signed(seed) for seed in seeds])
    for part in (episodes, purpose):
        key = _mixed(key + _STRIDE * (torch.as_tensor(part) + 1))
    return key


def _bits(keys: Tensor, counters: Tensor, width: int) -> Tensor:
    start = keys + _STRIDE * counters
    columns = torch.arange(1, width + 1, device=keys.device) * _COLUMN
    return _mixed(_mixed(start)[:, None] + columns)


def uniforms(keys: Tensor, counters: Tensor, width: int) -> Tensor:
    """Return uniform numbers in [0, 1), (n, width) float32, of keys (n,) int64 at counters (n,)."""
    return _shifted(_bits(keys, counters, width), 40).float() * 2**-24


def normals(keys: Tensor, counters: Tensor, width: int) -> Tensor:
    """Return standard normal numbers, (n, width) float32, of keys (n,) at counters (n,) (Box and Muller 1958: two
    numbers from 64 bits)."""
    bits = _bits(keys, counters, (width + 1) // 2)
    first = ((_shifted(bits, 32).float() + 1) * 2**-32).clamp(max=1.0)
    second = (bits & 0xFFFFFFFF).float() * (2 * math.pi * 2**-32)
    radius = (-2 * first.log()).sqrt()
    return torch.cat([radius * second.cos(), radius * second.sin()], 1)[:, :width]
