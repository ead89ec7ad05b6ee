"""Vision-language-action policy that decodes action tokens, as RT-2 and OpenVLA (Kim et al. 2024, arXiv 2406.09246), so
the exact probability of a chunk is known. Codecs encode chunks as tokens:

bins   one token per action dimension and control period: one of `bins` intervals (RT-2, OpenVLA)
dct    quantized lowest frequencies of each action dimension over the chunk; FAST (Pertsch et al. 2025, arXiv
       2501.09747) keeps all frequencies and compresses the tokens, but here all chunks have equally many tokens
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from policies.base import EncodingPolicy, Normalizer, Observation, Size
from policies.vla.backbone import build_backbone
from policies.vla.config import BackboneConfig
from robot_rl.util.limits import Interval, NonNegativeFloat, PositiveInt, validate


@dataclass(frozen=True)
class Codec:
    """Convert chunks (B, horizon, A) in [-1, 1] to tokens (B, L) and back."""

    horizon: int
    actions: int
    bins: int
    """Number of token values: tokens are 0 to bins - 1."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Return the number of tokens L of a chunk."""

    @abstractmethod
    def encode(self, chunk: Tensor) -> Tensor:
        """Return the tokens (B, L), long, of chunks (B, horizon, A) in [-1, 1]."""

    @abstractmethod
    def decode(self, tokens: Tensor) -> Tensor:
        """Return the chunks (B, horizon, A) in [-1, 1] of tokens (B, L)."""


@dataclass(frozen=True)
class BinCodec(Codec):
    """One token per action dimension and control period, in order of time; the error of a value is at most 1 / bins."""

    @property
    def length(self) -> int:
        return self.horizon * self.actions

    def encode(self, chunk: Tensor) -> Tensor:
        return ((chunk + 1) * (self.bins / 2)).long().clamp(0, self.bins - 1).flatten(1)

    def decode(self, tokens: Tensor) -> Tensor:
        return ((tokens + 0.5) * (2 / self.bins) - 1).unflatten(1, (self.horizon, self.actions))


@dataclass(frozen=True)
class CosineCodec(Codec):
    """Tokens of each action dimension's `kept` lowest DCT coefficients, lowest frequency first. Each coefficient is
    divided by its largest magnitude for chunks in [-1, 1]."""

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


Cache = tuple[Tensor, Tensor]
"""Keys and values (B, heads, N, width / heads) of a layer for the N tokens so far."""


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
        parts = self.inputs(self.first(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        seen = scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.output(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.second(x)), (k, v)


class Decoder(nn.Module):
    """Causal transformer: logits of the next token, given a prefix of features and earlier tokens."""

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
        """Return tokens (B, L), sampled or, at temperature 0, the most likely, and their logits (B, L, vocabulary)."""
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
    """Return tokens (B,) sampled from logits (B, vocabulary) / temperature; temperature 0: the most likely."""
    if temperature:
        u = torch.rand(logits.shape, generator=rng, device=rng.device).to(logits.device).clamp(1e-7, 1 - 1e-7)
        logits = logits / temperature - (-u.log()).log()  # the Gumbel-max trick
    return logits.argmax(-1)


@dataclass(frozen=True)
class VLATokensConfig:
    """Vision-language-action policy with action tokens."""

    horizon: PositiveInt = 8
    """Number of actions predicted at once."""
    execute: PositiveInt = 8
    """Number of actions executed before the next prediction."""
    codec: Literal["bins", "dct"] = "dct"
    """Tokens of a chunk: bins (one per action dimension and period) or dct (each dimension's lowest frequencies)."""
    bins: Annotated[int, Interval(ge=2)] = 128
    """Number of values that a token can have."""
    kept: PositiveInt = 3
    """Number of lowest frequencies to keep (only dct)."""
    layers: PositiveInt = 2
    """Number of layers of the decoder."""
    temperature: NonNegativeFloat = 0.0
    """Sampling temperature of tokens; 0: the most likely tokens."""
    encoder: BackboneConfig = field(default_factory=BackboneConfig)

    def __post_init__(self) -> None:
        validate(self)
        if self.execute > self.horizon:
            raise ValueError(f"execute {self.execute} is more than horizon {self.horizon} predicts; lower execute")
        if self.codec == "dct" and self.kept > self.horizon:
            raise ValueError(f"kept {self.kept} is more than horizon {self.horizon} has; lower kept")

    def make_codec(self, actions: int) -> Codec:
        """Return the codec for a number of action dimensions."""
        if self.codec == "bins":
            return BinCodec(self.horizon, actions, self.bins)
        return CosineCodec(self.horizon, actions, self.bins, self.kept)


class VLATokensPolicy(EncodingPolicy):
    """Policy that decodes the tokens of a chunk, conditioned on pictures, instruction and state."""

    class_name, config_class = "vla-tokens", VLATokensConfig

    def __init__(self, size: Size, config: VLATokensConfig | None = None):
        super().__init__()
        self.size, self.config = size, config or VLATokensConfig()
        c = self.config
        self.horizon, self.execute, self.codec = c.horizon, c.execute, c.make_codec(size.action)
        self.normalizer = Normalizer(size.observation)
        self.encoder = build_backbone(size, c.encoder)
        width, heads = c.encoder.width, c.encoder.heads
        self.decoder = Decoder(c.encoder.readouts, self.codec.length, c.bins, width, heads, c.layers)
        self.traceable = not c.temperature

    @property
    def words(self) -> tuple[str, ...]:
        known: tuple[str, ...] = self.config.encoder.known
        return known

    def features(self, observation: Observation) -> Tensor:
        """Return the decoder's prefix (B, readouts, width)."""
        return super().features(observation).unflatten(1, (self.config.encoder.readouts, -1))

    def log_prob(self, features: Tensor, tokens: Tensor, temperature: float = 1.0) -> Tensor:
        """Return the log-probability (B, L) of tokens (B, L) at a sampling temperature."""
        logits = self.decoder(features, tokens) / temperature
        return logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]

    @torch.no_grad()
    def sample(self, features: Tensor, temperature: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return sampled tokens (B, L) and their log-probability (B, L), at temperature 1 if `temperature` is 0."""
        tokens, logits = self.decoder.write(features, temperature, rng)
        shares = (logits / (temperature or 1.0)).log_softmax(-1)
        return tokens, shares.gather(-1, tokens[..., None])[..., 0]

    def loss(self, observation: Observation, chunk: Tensor, rng: torch.Generator) -> Tensor:
        """Return the mean negative log-probability (B,) of the tokens of chunks (B, horizon, A) in [-1, 1]."""
        return -self.log_prob(self.features(self.encoder.augment(observation, rng)), self.codec.encode(chunk)).mean(1)

    @torch.no_grad()
    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        tokens, _ = self.sample(self.features(observation), self.config.temperature, rng)
        return self.codec.decode(tokens)
