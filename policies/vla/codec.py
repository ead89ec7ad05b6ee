"""Encode action chunks as tokens.

bins   one token per action and control period, one of `bins` intervals (RT-2, OpenVLA)
dct    quantized lowest frequencies of each action over the chunk; FAST (Pertsch et al. 2025, arXiv 2501.09747) keeps
       all frequencies and compresses the tokens, whereas here every chunk has the same number of tokens
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Codec:
    """Convert chunks (B, horizon, A) in [-1, 1] to tokens (B, L) and back."""

    horizon: int
    actions: int
    bins: int
    """Tokens are in 0 ... bins - 1."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Return the number of tokens L of a chunk."""

    @abstractmethod
    def encode(self, chunk: Tensor) -> Tensor:
        """Return the tokens (B, L), long."""

    @abstractmethod
    def decode(self, tokens: Tensor) -> Tensor:
        """Return the chunk (B, horizon, A) in [-1, 1]."""


@dataclass(frozen=True)
class BinCodec(Codec):
    """One token per action, in order of time; the error is at most 1 / bins."""

    @property
    def length(self) -> int:
        return self.horizon * self.actions

    def encode(self, chunk: Tensor) -> Tensor:
        return ((chunk + 1) * (self.bins / 2)).long().clamp(0, self.bins - 1).flatten(1)

    def decode(self, tokens: Tensor) -> Tensor:
        return ((tokens + 0.5) * (2 / self.bins) - 1).unflatten(1, (self.horizon, self.actions))


@dataclass(frozen=True)
class CosineCodec(Codec):
    """Tokens of the `kept` lowest frequencies, lowest first, scaled by the frequencies' ranges for chunks in [-1, 1]."""

    kept: int

    @property
    def length(self) -> int:
        return self.kept * self.actions

    def basis(self) -> Tensor:
        """Return the orthonormal basis (kept, horizon) of the discrete cosine transform, type II."""
        k, t = torch.arange(self.kept)[:, None], torch.arange(self.horizon)
        rows = torch.cos(math.pi / self.horizon * (t + 0.5) * k) * math.sqrt(2 / self.horizon)
        return torch.cat([rows[:1] / math.sqrt(2), rows[1:]])

    def encode(self, chunk: Tensor) -> Tensor:
        basis = self.basis().to(chunk.device)
        share = (basis @ chunk) / basis.abs().sum(1)[:, None]  # in [-1, 1]
        return ((share + 1) * ((self.bins - 1) / 2)).round().long().clamp(0, self.bins - 1).flatten(1)

    def decode(self, tokens: Tensor) -> Tensor:
        basis = self.basis().to(tokens.device)
        share = tokens.unflatten(1, (self.kept, self.actions)) * (2 / (self.bins - 1)) - 1
        return (basis.T @ (share * basis.abs().sum(1)[:, None])).clamp(-1, 1)
