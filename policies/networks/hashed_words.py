"""Fixed features of instructions, for networks that only need to distinguish instructions.

Each word and each pair of adjacent words adds a random sign vector, seeded by a hash of its spelling (feature hashing,
Weinberger et al. 2009, arXiv 0902.2206). There is no vocabulary and no parameter.
"""

from __future__ import annotations

import re
import zlib
from functools import lru_cache

import torch
from torch import Tensor

from robot_rl.interface.language import decode

WORDS = 64
"""Features of an instruction."""


def hashed_words(text: Tensor, size: int = WORDS) -> Tensor:
    """Return features (B, size) of instructions (B, bytes) uint8."""
    distinct, index = torch.unique(text, dim=0, return_inverse=True)
    return torch.stack([_features(words, size) for words in decode(distinct)]).to(text.device)[index]


@lru_cache(10_000)
def _features(text: str, size: int) -> Tensor:
    words = re.findall(r"\w+", text.lower())
    parts = [*words, *map(" ".join, zip(words, words[1:], strict=False))]
    rows = [_signs(part, size) for part in parts] or [torch.zeros(size)]
    return torch.stack(rows).sum(0) / max(1, len(parts)) ** 0.5


def _signs(part: str, size: int) -> Tensor:
    rng = torch.Generator().manual_seed(zlib.crc32(part.encode()))
    return 2.0 * torch.randint(0, 2, (size,), generator=rng) - 1
