"""Cloning with a joint-embedding predictive loss: Vujinovic and Kovacevic 2025, "ACT-JEPA: Novel Joint-Embedding
Predictive Architecture for Efficient Policy Representation Learning" (arXiv 2501.14622).

    z    = f(o_t)                        f: the policy's encoder, on which the actions depend too
    y_k  = layer_norm(f_avg(o_{t+k}))    f_avg: averaged weights of f, without gradients
    loss = L_act + weight * mean over k of smooth L1(g(z)_k - y_k)

The second term reads no action, so it also learns from episodes whose actions are unknown or bad. Nothing but the
averaging, the predictor g and L_act keeps f from constant features; the metric `jepa/std`, their spread, tells.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, smooth_l1_loss

from policies.base import EncodingPolicy, Observation, mlp
from robot_rl.data.replay import Batch
from robot_rl.data.sources import LATER, SEEN
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.learning.parts.objectives import average_
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeFloat, PositiveFraction, PositiveInt


@dataclass(frozen=True)
class PredictiveConfig(CloningConfig):
    jepa: NonNegativeFloat = 1.0
    """Weight of the predictive loss; 0: plain cloning."""
    ahead: tuple[PositiveInt, ...] = (4,)
    """Steps ahead of the predicted observations."""
    target: Literal["features", "pictures"] = "features"
    """What is predicted: features of the averaged encoder, or pictures in [-1, 1], the simple way without averaging."""
    tau: PositiveFraction = 0.01
    """Share of the encoder's weights that the target encoder takes over in each update."""
    predictor: tuple[PositiveInt, ...] = (256,)
    """Widths of the predictor's hidden layers."""


class Predictor(nn.Module):
    """Predict targets (B, K, outputs) of K later observations from features (B, F)."""

    def __init__(self, features: int, ahead: int, outputs: int, hidden: tuple[int, ...]):
        super().__init__()
        self.ahead, self.net = ahead, mlp([features, *hidden, ahead * outputs], nn.ReLU, norm=True)

    def forward(self, features: Tensor) -> Tensor:
        return self.net(features).unflatten(1, (self.ahead, -1))


class PredictiveCloning(Cloning):
    """Cloning whose encoder also predicts its own, averaged, features of later observations."""

    config: PredictiveConfig
    policy: EncodingPolicy

    def _modules(self) -> Sequence[nn.Module]:
        policy = self.policy
        if not isinstance(policy, EncodingPolicy):
            raise ConfigError(f"{type(policy).__name__} has no encoder that could predict its own features")
        if not self.config.jepa:
            return [policy]
        if not self.config.ahead:
            raise ConfigError("--agent.ahead names no step to predict; name one, or take --agent.jepa 0")
        config, device, pictures = self.config, next(policy.parameters()).device, policy.size.pictures
        if config.target == "pictures" and not pictures:
            raise ConfigError("--agent.target pictures: the task shows none; leave it at features")
        outputs = policy.encoder.size if config.target == "features" else sum(map(math.prod, pictures.values()))
        predictor = Predictor(policy.encoder.size, len(config.ahead), outputs, config.predictor)
        self.predictor = predictor.to(device)
        self.target = copy.deepcopy(policy.encoder).requires_grad_(False)
        return [policy, self.predictor]

    def update(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        metrics = super().update(batch, rng)
        if not self.config.jepa:
            return metrics
        average_(self.target, self.policy.encoder, self.config.tau)
        return metrics | self.predictive

    def _loss(self, batch: Batch, rng: torch.Generator) -> Tensor:
        loss = super()._loss(batch, rng)
        if not self.config.jepa:
            return loss
        error, features = self.predictive_loss(batch, rng)
        self.predictive = {"jepa/loss": error.detach(), "jepa/std": features.detach().std(0).mean()}
        return loss + self.config.jepa * error

    def predictive_loss(self, batch: Batch, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the mean error of predicted features, and the features (B, F), of a batch of `Observed`."""
        seen, later = self.moved(batch, rng)
        features = self.policy.features(seen)
        return smooth_l1_loss(self.predictor(features), self.targets(later)), features

    def moved(self, batch: Batch, rng: torch.Generator) -> tuple[Observation, Observation]:
        """Return the seen observations (B, ...) and the later ones (B, K, ...), augmented alike: with a random shift of
        its own in each, features of where things are could not be predicted."""
        seen, later = ({k.removeprefix(p): v for k, v in batch.items() if k.startswith(p)} for p in (SEEN, LATER))
        shapes = self.policy.size.pictures
        # One picture (B, H, W, (1 + K) * 3) per sample, since a shift treats all channels alike.
        stacks = {k: torch.cat([seen[k][:, None], later[k]], 1).permute(0, 2, 3, 1, 4).flatten(3) for k in shapes}
        both = self.policy.encoder.augment(seen | stacks, rng)
        parts = {k: both[k].unflatten(3, (-1, 3)).permute(0, 3, 1, 2, 4) for k in shapes}
        return both | {k: v[:, 0] for k, v in parts.items()}, later | {k: v[:, 1:] for k, v in parts.items()}

    @torch.no_grad()
    def targets(self, later: Observation) -> Tensor:
        """Return the targets (B, K, ...) of later observations (B, K, ...): normalized features, or pictures."""
        if self.config.target == "pictures":
            return torch.cat([later[key].flatten(2) for key in self.policy.size.pictures], 2).float() / 127.5 - 1
        rows = {name: values.flatten(0, 1) for name, values in later.items()}
        features = self.target(self.policy.normalizer(rows["observation.state"]), rows)
        return layer_norm(features, features.shape[-1:]).unflatten(0, (-1, len(self.config.ahead)))

    def state_dict(self) -> dict[str, Any]:
        if not self.config.jepa:
            return super().state_dict()
        return super().state_dict() | {"predictor": self.predictor.state_dict(), "target": self.target.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.config.jepa:
            self.predictor.load_state_dict(state["predictor"])
            self.target.load_state_dict(state["target"])
