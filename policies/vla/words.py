"""Instructions as words: a vocabulary and a language tower."""

import re
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from robot_rl.interface.language import LONGEST, decode

WORD = re.compile(r"\w+")
MOST = LONGEST // 2 + 1
"""Largest number of words of an instruction."""
NOTHING, UNKNOWN = 0, 1
"""Indices of padding and of words outside the vocabulary."""


def words_of(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct words of texts, in lower case and alphabetical order."""
    return tuple(sorted({word for text in texts for word in WORD.findall(text.lower())}))


class LanguageTower(nn.Module):
    """Embed the words of instructions and their positions, and apply one transformer layer."""

    def __init__(self, words: tuple[str, ...], width: int, heads: int):
        super().__init__()
        self.numbers = {word: k for k, word in enumerate(words, UNKNOWN + 1)}
        self.embedding = nn.Embedding(len(words) + 2, width, padding_idx=NOTHING)
        self.place = nn.Parameter(0.02 * torch.randn(MOST, width))
        self.block = block(width, heads)

    def tokens(self, texts: list[str]) -> Tensor:
        """Return the word indices (n, L) of n texts, padded with NOTHING."""
        rows = [[self.numbers.get(word, UNKNOWN) for word in WORD.findall(text.lower())] or [UNKNOWN] for text in texts]
        longest = max(map(len, rows))
        return torch.tensor([row + [NOTHING] * (longest - len(row)) for row in rows])

    def forward(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """Return word embeddings (B, L, width) and the padding mask (B, L) of instructions, given as uint8 (B, bytes)
        or as word indices (B, L) int64."""
        if text.dtype == torch.long:
            return self._embed(text)
        distinct, index = torch.unique(text, dim=0, return_inverse=True)  # a batch has few distinct instructions
        embedded, absent = self._embed(self.tokens(decode(distinct)).to(text.device))
        return embedded[index], absent[index]

    def _embed(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        absent = tokens == NOTHING
        return self.block(self.embedding(tokens) + self.place[: tokens.shape[1]], src_key_padding_mask=absent), absent


def block(width: int, heads: int) -> nn.TransformerEncoderLayer:
    """Return one transformer layer: attention and an MLP, each after LayerNorm."""
    return nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
