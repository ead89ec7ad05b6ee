"""PPO on tokens: Lu et al. 2025, "VLA-RL" (arXiv 2505.18719).

Each token of a chunk is an action of PPO. All tokens of a chunk have the chunk's advantage.

    r_k = exp(log pi(token_k | tokens before) - log pi_old(token_k | tokens before)), at the rollout's temperature

Only the token decoder is trained, not the backbone. The critic reads privileged state and instruction. An estimate of
task progress, learned from demonstrations, may shape the reward.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from policies.base import Observation
from policies.vla.tokens import VLATokensPolicy
from robot_rl.learning.algorithms.chunk_ppo import ChunkPPO, ChunkPPOConfig, estimated_divergence
from robot_rl.learning.parts.progress import ProgressEstimate, shaping
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeFloat, PositiveFloat


@dataclass(frozen=True)
class TokenPPOConfig(ChunkPPOConfig):
    temperature: PositiveFloat = 1.0
    """Sampling temperature of tokens while exploring; the deployed policy uses its own temperature."""
    progress: NonNegativeFloat = 0.0
    """Weight of the progress reward, which is learned from demonstrations; 0: no progress reward, so no demonstrations
    are needed."""


class TokenPPO(ChunkPPO):
    """PPO for a token policy."""

    policy: VLATokensPolicy
    config: TokenPPOConfig
    kept: ClassVar[tuple[str, ...]] = ("state", "features", "tokens")

    def __init__(
        self, policy: VLATokensPolicy, privileged: int, config: TokenPPOConfig, seed: int = 0, terms: int | None = None
    ):
        super().__init__(policy, privileged, config, seed, terms)
        self.progress: ProgressEstimate | None = None
        if config.progress:
            if terms is not None:
                raise ConfigError("progress shapes one reward, not its terms; leave out progress, or reward terms")
            self.progress = ProgressEstimate(self._widths()["features"]).to(self.device)
        self.reads_last = self.progress is not None

    def learn_progress(self, episodes: Sequence[dict[str, Tensor]], seed: int) -> float:
        """Fit the estimate of progress to successful episodes; return the estimate's RMS error."""
        assert self.progress is not None
        return self.progress.fit(self._read, episodes, torch.Generator().manual_seed(seed))

    def _read(self, observation: Observation) -> Tensor:
        return self.policy.features({k: v.to(self.device) for k, v in observation.items()}).flatten(1)

    @torch.no_grad()
    def assess(self, rollout: dict[str, Tensor], last: Observation, finals: list[Tensor]) -> dict[str, Tensor]:
        if self.progress is not None:
            potential = self.progress(rollout["features"].flatten(0, 1)).view_as(rollout["begins"])
            ends, begins = (rollout["terminated"], rollout["done"]), rollout["begins"]
            gained = shaping(potential, self.progress(self._read(last)), begins, *ends, self.config.discount)
            rollout = rollout | {"reward": rollout["reward"] + self.config.progress * gained}
        return super().assess(rollout, last, finals)

    def _trained(self) -> list[nn.Parameter]:
        return list(self.policy.decoder.parameters())

    def _decide(self, observation: Observation, rng: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        features = self.policy.features(observation)
        tokens, _ = self.policy.sample(features, self.config.temperature, rng)
        chunks = self.policy.codec.decode(tokens)[:, : self.policy.execute]
        return chunks, {"features": features.flatten(1), "tokens": tokens.float()}

    def _widths(self) -> dict[str, int]:
        encoder, codec = self.policy.config.encoder, self.policy.codec
        return {"features": encoder.readouts * encoder.width, "tokens": codec.length}

    def _log_std(self) -> Tensor:
        return torch.zeros(1, device=self.device)  # token distributions have no standard deviation

    @torch.no_grad()
    def _prepare(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        features = batch["features"].unflatten(1, (self.policy.config.encoder.readouts, -1))
        data = {"features": features, "tokens": batch["tokens"].long(), **self._critic_inputs(batch)}
        # In parts, since a rollout is large.
        old = [self._shares(f, t)[0] for f, t in zip(features.split(1024), data["tokens"].split(1024), strict=True)]
        return data | {"log_prob": torch.cat(old)}

    def _shares(self, features: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (B, L) of tokens (B, L), and entropies (B, L) of their distributions, nats."""
        shares = (self.policy.decoder(features, tokens) / self.config.temperature).log_softmax(-1)
        return shares.gather(-1, tokens[..., None])[..., 0], -(shares.exp() * shares).sum(-1)

    def _compare(self, part: dict[str, Tensor], old: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_prob, entropy = self._shares(part["features"], part["tokens"])
        change = log_prob - part["log_prob"]
        return change, entropy.mean(), estimated_divergence(change)

    def state_dict(self) -> dict[str, Any]:
        learned = {} if self.progress is None else {"progress": self.progress.state_dict()}
        return super().state_dict() | learned

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.progress is not None:
            self.progress.load_state_dict(state["progress"])
