"""Causal transformer that decodes tokens autoregressively from features."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

Cache = tuple[Tensor, Tensor]
"""Keys and values (B, heads, N, width / heads) of the tokens so far."""


class CausalBlock(nn.Module):
    """Causal attention and an MLP, each after LayerNorm."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        """Return outputs (B, N, width) of new tokens, and the extended cache; given a cache, N is 1."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.inputs(self.first(x)).chunk(3, -1)
        )
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        seen = scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.output(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.second(x)), (k, v)


class Decoder(nn.Module):
    """Logits of the next token, given a prefix of features and earlier tokens."""

    def __init__(self, prefix: int, length: int, vocabulary: int, width: int, heads: int, layers: int):
        """`prefix` features precede `length` tokens."""
        super().__init__()
        self.prefix, self.length = prefix, length
        self.embedding = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(0.02 * torch.randn(prefix + length - 1, width))
        self.blocks = nn.ModuleList(CausalBlock(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, features: Tensor, tokens: Tensor) -> Tensor:
        """Return logits (B, L, vocabulary) for tokens (B, L) after features (B, prefix, width), teacher-forced."""
        x = torch.cat([features, self.embedding(tokens[:, :-1])], 1) + self.place
        for block in self.blocks:
            x, _ = block(x)
        return self.head(self.norm(x[:, self.prefix - 1 :]))

    def write(self, features: Tensor, temperature: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return tokens (B, L), sampled or at temperature 0 greedy, and their logits (B, L, vocabulary)."""
        caches: list[Cache | None] = [None] * len(self.blocks)
        x, tokens, logits = features + self.place[: self.prefix], [], []
        for k in range(self.length):
            for j, block in enumerate(self.blocks):
                x, caches[j] = block(x, caches[j])
            logits.append(self.head(self.norm(x[:, -1])))
            tokens.append(pick(logits[-1], temperature, rng))
            if k + 1 < self.length:
                x = (self.embedding(tokens[-1]) + self.place[self.prefix + k])[:, None]
        return torch.stack(tokens, 1), torch.stack(logits, 1)


def pick(logits: Tensor, temperature: float, rng: torch.Generator) -> Tensor:
    """Return tokens (B,) sampled from logits (B, vocabulary) / temperature; at 0 the most likely."""
    if temperature:
        u = torch.rand(logits.shape, generator=rng, device=rng.device).to(logits.device).clamp(1e-7, 1 - 1e-7)
        logits = logits / temperature - (-u.log()).log()  # the Gumbel-max trick
    return logits.argmax(-1)
