"""SmolVLA as a policy (Shukor et al. 2025, arXiv 2506.01844).

    x_t = t noise + (1 - t) actions        network(x_t, t, observation) -> noise - actions, integrated from t = 1 to 0

A bundle contains all weights. Loading also needs SmolVLM's config.json and tokenizer, whose hash the bundle stores.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad, scaled_dot_product_attention, silu

from policies.base import Observation, Policy, Size, normal, uniform
from policies.networks import pretrained
from policies.vla.config import pictures_of
from robot_rl.interface.language import decode
from robot_rl.interface.observation_spec import LANGUAGE
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import Fraction, NonNegativeInt, PositiveFloat, PositiveInt

Cache = list[tuple[Tensor, Tensor]]
"""For each layer: keys after rotary embedding, and values, (B, N, key heads, head size) each."""
WAVELENGTH = 10_000.0
"""Longest wavelength of the rotary embedding; SmolVLM's own setting is not used."""


class SmolVLANetwork(nn.Module):
    """Velocity of noisy actions, after the equations of LeRobot's implementation.

    The first layers of SmolVLM read the observation. A narrower action expert of the same depth attends to each layer's
    keys and values.

        [pictures | words | state] -> keys and values per layer    only the state token attends to the state
        noisy actions, time -> expert -> velocity                  layers alternate between causal self-attention,
                                                                   extended by the layer's keys and values, and
                                                                   cross-attention to projections of both
    """

    def __init__(self, config: Any, described: Any):
        """Build from a `SmolVLAConfig` and SmolVLM's configuration, with fresh weights."""
        super().__init__()
        auto, text = pretrained.require("transformers").AutoModel, described.get_text_config()
        self.config, self.head = config, text.head_dim
        self.vlm = auto.from_config(described, dtype=torch.float32)
        narrow = copy.deepcopy(text)
        narrow.hidden_size = width = int(text.hidden_size * config.expert_share)
        narrow.intermediate_size = 256 * math.ceil(4 * (2 * width // 3) / 256)
        self.expert = auto.from_config(narrow, dtype=torch.float32)
        self.expert.embed_tokens = None
        across = text.num_key_value_heads * text.head_dim
        for number, layer in enumerate(self.expert.layers):
            if not self._has_self_attention(number):
                layer.self_attn.k_proj = nn.Linear(across, across, bias=text.attention_bias)
                layer.self_attn.v_proj = nn.Linear(across, across, bias=text.attention_bias)
        self.state_proj = nn.Linear(config.state_size, text.hidden_size)
        self.action_in_proj = nn.Linear(config.action_size, width)
        self.action_out_proj = nn.Linear(width, config.action_size)
        self.action_time_mlp_in = nn.Linear(2 * width, width)
        self.action_time_mlp_out = nn.Linear(width, width)

    def read(self, pictures: Tensor, ids: Tensor, present: Tensor, state: Tensor) -> tuple[Cache, Tensor]:
        """Return the cache of N tokens for the expert, and the mask (B, N) bool of tokens that are not padding.

        Inputs: pictures (B, n, 3, side, side) in [-1, 1], token ids (B, L) with mask `present` (B, L) bool, and the
        normalized state (B, state_size).
        """
        seen = self.vlm.vision_model(pixel_values=pictures.flatten(0, 1).contiguous()).last_hidden_state
        seen = self.vlm.connector(seen).unflatten(0, pictures.shape[:2]).flatten(1, 2)
        words = self.vlm.text_model.embed_tokens(ids)
        scale = math.sqrt(words.shape[-1])
        x = torch.cat([scale * seen, scale * words, self.state_proj(state)[:, None]], 1)
        present = torch.cat([present.new_ones(seen.shape[:2]), present, present.new_ones(len(state), 1)], 1)
        count = x.shape[1]
        allowed = present[:, None, :] & present[:, :, None]
        allowed[:, :-1, -1] = False
        allowed |= torch.eye(count, dtype=torch.bool, device=x.device)  # padding attends to itself, which avoids NaN
        positions, cache = present.cumsum(1) - 1, []
        for layer in self.vlm.text_model.layers:
            q, k, v = self._project(layer, x)
            q, k = rotated(q, positions), rotated(k, positions)
            cache.append((k, v))
            x = _finish(layer, x, _attend(q, k, v, allowed))
        return cache, present

    def velocity(self, noisy: Tensor, time: Tensor, cache: Cache, present: Tensor) -> Tensor:
        """Return the velocity (B, horizon, action_size) from actions to noise at times (B,); time 1 is pure noise."""
        actions = self.action_in_proj(noisy)
        when = self._embedded(time, actions.shape[-1]).to(actions.dtype)[:, None].expand_as(actions)
        x = self.action_time_mlp_out(silu(self.action_time_mlp_in(torch.cat([actions, when], 2))))
        count, device = x.shape[1], x.device
        before = present[:, None].expand(-1, count, -1)
        earlier = torch.ones(count, count, dtype=torch.bool, device=device).tril().expand(len(x), -1, -1)
        steps = torch.arange(count, device=device).expand(len(x), -1)
        later = present.sum(1, keepdim=True) + steps
        for number, (layer, (keys, values)) in enumerate(zip(self.expert.layers, cache, strict=True)):
            if self._has_self_attention(number):
                q, k, v = self._project(layer, x)
                k, v = torch.cat([keys, rotated(k, later)], 1), torch.cat([values, v], 1)
                seen = _attend(rotated(q, later), k, v, torch.cat([before, earlier], 2))
            else:
                q = layer.self_attn.q_proj(layer.input_layernorm(x)).unflatten(-1, (-1, self.head))
                k = layer.self_attn.k_proj(keys.flatten(2)).unflatten(-1, (-1, self.head))
                v = layer.self_attn.v_proj(values.flatten(2)).unflatten(-1, (-1, self.head))
                seen = _attend(rotated(q, steps), k, v, before)
            x = _finish(layer, x, seen)
        return self.action_out_proj(self.expert.norm(x))

    def _has_self_attention(self, number: int) -> bool:
        return bool(self.config.self_every) and number % self.config.self_every == 0

    def _project(self, layer: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values (B, N, heads, head size) of tokens (B, N, width)."""
        x, own = layer.input_layernorm(x), layer.self_attn
        q, k, v = (part(x).unflatten(-1, (-1, self.head)) for part in (own.q_proj, own.k_proj, own.v_proj))
        return q, k, v

    def _embedded(self, time: Tensor, width: int) -> Tensor:
        """Return sines and cosines (B, width) of times (B,), computed in float64 because periods are short."""
        c = self.config
        share = torch.linspace(0, 1, width // 2, dtype=torch.float64, device=time.device)
        angle = 2 * math.pi * time[:, None].double() / (c.min_period * (c.max_period / c.min_period) ** share)
        return torch.cat([angle.sin(), angle.cos()], 1)


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Apply rotary embedding at positions (B, N) to x (B, N, heads, D); the halves of D are paired."""
    half = x.shape[-1] // 2
    frequency = WAVELENGTH ** (-torch.arange(half, dtype=torch.float32, device=x.device) / half)
    angle = (positions[..., None].float() * frequency)[:, :, None]
    a, b = x.split(half, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def _attend(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """Return attention outputs (B, L, heads D) of queries (B, L, heads, D) over N tokens with mask `allowed`
    (B, L, N) bool."""
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    seen = scaled_dot_product_attention(q, k, v, attn_mask=allowed[:, None], enable_gqa=True)
    return seen.transpose(1, 2).flatten(2)


def _finish(layer: Any, x: Tensor, seen: Tensor) -> Tensor:
    """Return a layer's output (B, N, width), given its input `x` and the attention output `seen`."""
    x = x + layer.self_attn.o_proj(seen)
    done: Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
    return done


STATE = "observation.state"


@dataclass(frozen=True)
class SmolVLAConfig:
    """SmolVLA with LeRobot's defaults."""

    model: str = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"
    """Folder or hub name of the SmolVLM that provides configuration and tokenizer."""
    horizon: PositiveInt = 50
    """Number of actions predicted at once."""
    execute: PositiveInt = 50
    """Number of actions executed before the next prediction."""
    sample_steps: PositiveInt = 10
    """Number of Euler steps."""
    state_size: PositiveInt = 32
    """Size of states after zero padding."""
    action_size: PositiveInt = 32
    """Size of actions after zero padding."""
    side: PositiveInt = 512
    """Height and width of pictures, pixels, after resizing and padding."""
    longest: PositiveInt = 48
    """Largest number of tokens of an instruction; further tokens are cut off."""
    layers: NonNegativeInt = 16
    """Number of first layers of the language model to use; 0: all."""
    self_every: NonNegativeInt = 2
    """Every `self_every`-th layer of the expert has self-attention among actions; 0: no layer has."""
    expert_share: Fraction = 0.75
    """Width of the expert divided by the width of the language model."""
    min_period: PositiveFloat = 4e-3
    """Shortest period of the sinusoidal embedding of times in [0, 1]."""
    max_period: PositiveFloat = 4.0
    """Longest period of the sinusoidal embedding of times in [0, 1]."""
    pictures: tuple[str, ...] = ()
    """Picture keys in input order; empty: the task's order."""

    def __post_init__(self) -> None:
        if self.execute > self.horizon:
            raise ValueError(f"execute {self.execute} is more than horizon {self.horizon} predicts; lower execute")


class SmolVLAPolicy(Policy):
    """Flow policy: an action expert that attends to a vision-language model."""

    class_name, config_class = "smolvla", SmolVLAConfig
    state_mean: Tensor
    state_std: Tensor
    action_mean: Tensor
    action_std: Tensor

    def __init__(self, size: Size, config: SmolVLAConfig | None = None):
        """Build with fresh weights; ConfigError if SmolVLM's folder is incomplete or the task does not fit."""
        super().__init__()
        self.size, self.config = size, config or SmolVLAConfig()
        c, shapes = self.config, pictures_of(size)
        self.horizon, self.execute = c.horizon, c.execute
        self.pictures = c.pictures or tuple(shapes)
        if absent := [key for key in self.pictures if key not in shapes]:
            raise ConfigError(f"the policy sees {absent[0]}, which the task lacks: it has {', '.join(shapes)}")
        if size.observation > c.state_size or size.action > c.action_size:
            raise ConfigError(
                f"the task has {size.observation} states and {size.action} actions, SmolVLA at most {c.state_size} and "
                f"{c.action_size}"
            )
        folder = pretrained.find(c.model, weights=False)
        described = pretrained.load_config(folder, c.layers)
        if described.model_type != "smolvlm":
            raise ConfigError(f"SmolVLA reads with SmolVLM, but {c.model} is {described.model_type}; name another")
        self.tokenizer = pretrained.load_tokenizer(folder)
        self.network = SmolVLANetwork(c, described)
        self.network.vlm.requires_grad_(False)
        for name, count in (("state", size.observation), ("action", size.action)):
            self.register_buffer(f"{name}_mean", torch.zeros(count))
            self.register_buffer(f"{name}_std", torch.ones(count))
        pretrained.add_fingerprint(self, c.model, folder, weights=False)

    def fit(self, columns: dict[str, Tensor]) -> None:
        """Set mean and standard deviation of states and actions from demonstrations, columns of N rows (N, ...)."""
        for name, key in (("state", STATE), ("action", "action")):
            getattr(self, f"{name}_mean").copy_(columns[key].mean(0))
            getattr(self, f"{name}_std").copy_(columns[key].std(0))

    def loss(self, observation: Observation, chunk: Tensor, rng: torch.Generator) -> Tensor:
        """Return the squared velocity error (B,) for chunks (B, horizon, A), padded components included."""
        actions = self._padded((chunk - self.action_mean) / (self.action_std + 1e-8), self.config.action_size)
        noise = normal(actions.shape, rng, actions.device)
        # Times from Beta(1.5, 1), by inversion: more samples with much noise.
        time = 0.001 + 0.999 * uniform((len(chunk),), rng, chunk.device) ** (1 / 1.5)
        share = time[:, None, None]
        velocity = self.network.velocity(share * noise + (1 - share) * actions, time, *self._read(observation))
        return (velocity - (noise - actions)).square().mean((1, 2))

    @torch.no_grad()
    def chunk(self, observation: Observation, noise: Tensor) -> Tensor:
        """Integrate noise (B, horizon, action_size) to actions (B, horizon, A) in the units of the demonstrations."""
        read, x, steps = self._read(observation), noise, self.config.sample_steps
        for k in range(steps):
            x = x - self.network.velocity(x, x.new_full((len(x),), 1 - k / steps), *read) / steps
        return x[..., : self.size.action] * self.action_std + self.action_mean

    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        shape = (len(observation[STATE]), self.horizon, self.config.action_size)
        return self.chunk(observation, normal(shape, rng, self.action_mean.device)).clamp(-1, 1)

    def _read(self, observation: Observation) -> tuple[Any, Tensor]:
        """Return the cache and mask of an observation, which the network's `velocity` needs."""
        state = (observation[STATE] - self.state_mean) / (self.state_std + 1e-8)
        texts = [f"{text}\n" for text in decode(observation[LANGUAGE])]
        words = self.tokenizer(
            texts, padding=True, padding_side="right", truncation=True, max_length=self.config.longest,
            return_tensors="pt",
        ).to(state.device)  # fmt: skip
        pictures = torch.stack([self._fitted(observation[key]) for key in self.pictures], 1)
        present = words["attention_mask"].bool()
        return self.network.read(pictures, words["input_ids"], present, self._padded(state, self.config.state_size))

    def _fitted(self, pictures: Tensor) -> Tensor:
        """Resize uint8 pictures (B, H, W, 3) to (B, 3, side, side) in [-1, 1], with black padding left and top."""
        side, x = self.config.side, pictures.permute(0, 3, 1, 2).float() / 255
        ratio = max(x.shape[2] / side, x.shape[3] / side)
        height, width = int(x.shape[2] / ratio), int(x.shape[3] / ratio)
        x = interpolate(x, (height, width), mode="bilinear", align_corners=False)
        return pad(x, (side - width, 0, side - height, 0)) * 2 - 1

    @staticmethod
    def _padded(x: Tensor, size: int) -> Tensor:
        """Pad x (..., n) with zeros to (..., size)."""
        return pad(x, (0, size - x.shape[-1]))
