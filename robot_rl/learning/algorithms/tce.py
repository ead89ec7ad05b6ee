"""PPO on segments of movements that are drawn once per episode: Li, Zhou et al. 2024, "Open the Black Box: Step-based
Policy Updates for Temporally-Correlated Episodic Reinforcement Learning" (TCE, arXiv 2401.11437).

A movement of weights w is cut into K segments, from step t_k to t_k+1. A segment's likelihood is that of the movement's
positions at both ends, a Gaussian since they are linear in w (M_k: the map; noise keeps it regular at the start)::

    p_k   = N(M_k w; M_k mean(s_0), M_k Sigma M_k^T + noise^2)
    A_k   = sum of discounted rewards in the segment + discount^length V(s at t_k+1) - V(s at t_k)
    actor:  -mean over episodes and k of p_k(new) / p_k(old) A_k

New means are projected into a trust region about the old means, and those of the network are drawn to the projected
ones; Sigma is projected after every gradient step. With one segment, p is the density of all weights, as in black-box
RL (Otto et al. 2022, arXiv 2210.09622).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from policies.base import Observation
from policies.movement import MovementPolicy
from robot_rl.learning.algorithms.chunk_ppo import ChunkPPO, ChunkPPOConfig, estimated_divergence
from robot_rl.learning.algorithms.ppo import PPO
from robot_rl.learning.parts.projection import (
    covariance_divergence,
    mean_divergence,
    project_covariance,
    project_mean,
)
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeFloat, PositiveFloat, PositiveInt


@dataclass(frozen=True)
class TCEConfig(ChunkPPOConfig):
    """Hyperparameters of the update. `gae_lambda` weights the advantages of later segments."""

    segments: PositiveInt = 12
    """Number K of segments of a movement; 1: one likelihood and one advantage per episode."""
    credit: Literal["segments", "episode"] = "segments"
    """Rewards by which a segment is judged: its own, or those of the whole episode."""
    mean_bound: PositiveFloat = 0.5
    """Bound on the divergence of a state's mean weights from the old ones in an update, nats."""
    covariance_bound: PositiveFloat = 0.05
    """Bound on the divergence of the covariance from the old one in an update, nats."""
    attraction: NonNegativeFloat = 10.0
    """Weight of the divergence of the network's means from the projected ones."""
    noise: PositiveFloat = 1e-3
    """Standard deviation that is added to positions, in units of what the largest action moves in a movement."""


class TCE(ChunkPPO):
    """PPO for a policy that draws a whole movement."""

    policy: MovementPolicy
    config: TCEConfig
    kept: ClassVar[tuple[str, ...]] = ("state", "frames", "weights", "segment")

    def __init__(
        self, policy: MovementPolicy, privileged: int, config: TCEConfig, seed: int = 0, terms: int | None = None
    ):
        super().__init__(policy, privileged, config, seed, terms=terms)
        if config.segments > policy.horizon:
            raise ConfigError(
                f"agent.segments is {config.segments}, and a movement has {policy.horizon} actions; lower it"
            )
        ends = torch.linspace(0, policy.horizon, config.segments + 1, device=self.device).round().long()
        self.segment_of = torch.full((policy.horizon,), -1, device=self.device)
        """(horizon,) index of the segment that begins at each step; -1: none"""
        self.segment_of[ends[:-1]] = torch.arange(config.segments, device=self.device)
        pairs = torch.cat([policy.at(ends[:-1]), policy.at(ends[1:])], 1)
        one = torch.eye(policy.weights, device=self.device)[None]
        self.maps = pairs if config.segments > 1 else one
        """(K, M, W) maps from weights to the positions at both ends of a segment, or to the weights"""
        self.factor = policy.factor.detach().clone()
        """(W, W) Cholesky factor of the old covariance"""
        self.strayed = torch.zeros((), device=self.device)
        """Divergence of the network's means from the projected ones in the last gradient step, nats."""

    def _trained(self) -> list[nn.Parameter]:
        return [*self.policy.actor.parameters(), self.policy.scale]

    def _decide(self, observation: Observation, rng: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        state = observation["observation.state"]
        weights = self.policy.sample(self.policy.mean(state), rng)
        return self.policy.movement(weights), {"frames": state, "weights": weights}

    def _log_std(self) -> Tensor:
        return 0.5 * self.policy.factor.square().sum(1).log()

    def _widths(self) -> dict[str, int]:
        return {"frames": self.policy.size.observation, "weights": self.policy.weights, "segment": 1}

    def assess(self, rollout: dict[str, Tensor], last: Observation, finals: list[Tensor]) -> dict[str, Tensor]:
        """Return the rows of `PPO.assess` at which a segment begins, in movements that begin in the rollout. The old
        policy has not drawn the others."""
        step = torch.arange(len(rollout["begins"]), device=self.device)[:, None]
        start = torch.where(rollout["begins"], step, -1).cummax(0).values
        segment = self.segment_of[(step - start).clamp_max(self.policy.horizon - 1)]
        begins = (start >= 0) & (segment >= 0)
        if not begins.any():
            raise ConfigError("no movement begins in a rollout; make --training.rollout at least the episode's length")
        drawn = {}
        for name in ("frames", "weights"):  # `act` has them where the movement begins
            drawn[name] = rollout[name].gather(0, start.clamp_min(0)[..., None].expand_as(rollout[name]))
        whole = rollout | drawn | {"begins": begins, "segment": segment[..., None]}
        rows = PPO.assess(self, whole, last, finals)
        if self.config.credit == "episode":
            count = begins.shape[1]
            row_of_start = start.clamp_min(0) * count + torch.arange(count, device=self.device)
            rows["advantage"] = rows["advantage"][row_of_start.flatten()]
        return {name: x[begins.flatten()] for name, x in rows.items()}

    def _weight(self, rollout: dict[str, Tensor]) -> Tensor:
        weight = super()._weight(rollout)  # 1 within a segment
        return torch.ones_like(weight) if self.config.credit == "episode" else weight

    @torch.no_grad()
    def _prepare(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        self.factor = self.policy.factor.detach().clone()
        mean = self.policy.mean(batch["frames"])
        data = {
            "features": self.policy.normalizer(batch["frames"]),
            "weights": batch["weights"],
            "segment": batch["segment"].squeeze(1).long(),
            "mean": mean,
            **self._critic_inputs(batch),
        }
        return data | {"log_prob": self._log_prob(data, mean, self.factor)}

    def _log_prob(self, part: dict[str, Tensor], mean: Tensor, factor: Tensor) -> Tensor:
        """Return the log-likelihoods (B, 1) of segments, up to a constant, for mean weights (B, W) and the Cholesky
        factor (W, W) of their covariance."""
        spread = (self.maps @ factor).double()
        noise = self.config.noise**2 * torch.eye(self.maps.shape[1], dtype=spread.dtype, device=self.device)
        root = torch.linalg.cholesky(spread @ spread.mT + noise)
        whiten = torch.linalg.solve_triangular(root, self.maps.double(), upper=False).to(mean)
        k = part["segment"]
        apart = (whiten[k] @ (part["weights"] - mean)[..., None]).squeeze(-1)
        volume = root.diagonal(dim1=1, dim2=2).log().sum(1).to(mean)
        return (-0.5 * apart.square().sum(1) - volume[k])[:, None]

    def _compare(self, part: dict[str, Tensor], old: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        own, factor = self.policy.actor(part["features"]), self.policy.factor
        mean = project_mean(own, part["mean"], self.factor, self.config.mean_bound)
        self.strayed = mean_divergence(own, mean.detach(), self.factor).mean()
        change = self._log_prob(part, mean, factor) - part["log_prob"]
        return change, factor.diagonal().log().sum(), estimated_divergence(change)

    def _loss(self, part: dict[str, Tensor], old: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss, metrics = super()._loss(part, old)
        return loss + self.config.attraction * self.strayed, metrics | {"tce/strayed": self.strayed.detach()}

    @torch.no_grad()
    def _bound(self) -> None:
        factor = project_covariance(self.policy.factor, self.factor, self.config.covariance_bound)
        self.policy.scale.copy_(factor.tril(-1) + factor.diagonal().log().diag())

    def update(self, batch: dict[str, Tensor]) -> dict[str, float]:
        metrics = super().update(batch)
        moved = covariance_divergence(self.policy.factor.detach(), self.factor)
        return metrics | {"tce/covariance_kl": float(moved)}

    def _normalize(self, batch: dict[str, Tensor]) -> None:
        super()._normalize(batch)
        self.policy.normalizer.update(batch["frames"])
