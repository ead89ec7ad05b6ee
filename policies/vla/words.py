"""Instructions as words: a vocabulary, and a tower that reads them in order."""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from robot_rl.interface.language import LONGEST, decode

WORD = re.compile(r"\w+")
MOST = LONGEST // 2 + 1
"""Words of an instruction at most."""
NOTHING, UNKNOWN = 0, 1
"""Tokens of no word, and of one that the vocabulary lacks."""


def words_of(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the words of texts in alphabetical order, in lower case."""
    return tuple(sorted({word for text in texts for word in WORD.findall(text.lower())}))


class LanguageTower(nn.Module):
    """Embed the words of an instruction with their places in it, and let them see each other."""

    def __init__(self, words: tuple[str, ...], width: int, heads: int):
        super().__init__()
        self.numbers = {word: k for k, word in enumerate(words, UNKNOWN + 1)}
        self.embedding = nn.Embedding(len(words) + 2, width, padding_idx=NOTHING)
        self.place = nn.Parameter(0.02 * torch.randn(MOST, width))
        self.block = block(width, heads)

    def tokens(self, texts: list[str]) -> Tensor:
        """Return the numbers of the words of n texts (n, L), filled up with NOTHING."""
        rows = [[self.numbers.get(word, UNKNOWN) for word in WORD.findall(text.lower())] or [UNKNOWN] for text in texts]
        longest = max(map(len, rows))
        return torch.tensor([row + [NOTHING] * (longest - len(row)) for row in rows])

    def forward(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """Return embedded words (B, L, width) of instructions, and where there is none (B, L).

        Instructions are bytes (B, bytes) uint8, or the numbers of their words (B, L) int64.
        """
        if text.dtype == torch.long:
            return self._embed(text)
        said, which = torch.unique(text, dim=0, return_inverse=True)  # few: a batch repeats them
        embedded, absent = self._embed(self.tokens(decode(said)).to(text.device))
        return embedded[which], absent[which]

    def _embed(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        absent = tokens == NOTHING
        return self.block(self.embedding(tokens) + self.place[: tokens.shape[1]], src_key_padding_mask=absent), absent


def block(width: int, heads: int) -> nn.TransformerEncoderLayer:
    """Return one layer of a transformer: attention and an MLP, each after LayerNorm."""
    return nn.TransformerEncoderLayer(
        width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
