"""Off-policy learning without an actor: a network values bins of actions, and the policy is read off its values.

What the methods share: replay columns, exploration, the update's order, and the averaged network, which makes the
targets, acts and is deployed. A method adds its loss.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from policies.base import Observation
from policies.networks.bins import BinsPolicy
from robot_rl.data.replay import DEMONSTRATION, NEXT, Batch, Column, Sampling
from robot_rl.learning.agent import LearningPhase
from robot_rl.learning.parts.explore import ExplorationConfig, Noise, explored
from robot_rl.learning.parts.objectives import average_
from robot_rl.util.limits import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt


@dataclass(frozen=True)
class ValueBasedConfig:
    """Hyperparameters that value-based methods share."""

    lr: PositiveFloat = 3e-4
    """Learning rate (AdamW)."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay (AdamW)."""
    tau: Fraction = 0.02
    """Share of the new weights that moves into the averaged network per update."""
    discount: Fraction = 0.99
    """Per environment step."""
    n_step: PositiveInt = 1
    """Steps of reward before the values take over."""
    noise: NonNegativeFloat = 0.01
    """Standard deviation of exploration noise on the action, which is then snapped to the bins."""
    grad_clip: PositiveFloat | None = 10.0
    """Largest gradient norm; None: no limit."""
    exploration: ExplorationConfig = field(
        default_factory=lambda: ExplorationConfig(warmup_noise=None, noise_memory=0.0)
    )
    """What the warm-up does, and the noise's memory."""


class ValueBased:
    """An agent whose policy is read off the values of bins; see `Agent`."""

    def __init__(self, policy: BinsPolicy, config: ValueBasedConfig, seed: int = 0):
        self.policy, self.config = policy, config
        self.device = next(policy.network.parameters()).device
        self.online = copy.deepcopy(policy.network)
        """What the optimizer moves; the policy's network is its average."""
        policy.network.requires_grad_(False)
        self.parameters = [*self.online.parameters(), *policy.encoder.parameters()]
        self.optimizer = torch.optim.AdamW(self.parameters, config.lr, weight_decay=config.weight_decay, fused=True)
        self.rng = torch.Generator().manual_seed(seed)
        self.updates = 0
        self.noise = Noise(config.exploration.noise_memory, self.device)
        size = policy.size
        self.columns = {"observation.state": Column((size.observation,), observed=True)}
        extra = size.extra_inputs.items()
        self.columns |= {key: Column(field.shape, torch.uint8, observed=True) for key, field in extra}
        self.columns |= {"action": Column((size.action,)), DEMONSTRATION: Column(dtype=torch.bool)}
        self.sampling = Sampling(config.n_step, config.discount)

    # ---- acting ------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def act(self, observation: Observation, rng: torch.Generator, phase: LearningPhase) -> tuple[Tensor, Observation]:
        noise = self.noise.step(len(observation["observation.state"]), self.policy.size.action, rng)

        def noisy() -> Tensor:
            bins = self.policy.choose(self.policy.features(observation), rng, explore=True)
            return self.policy.codec.decode(bins) + self.config.noise * noise

        action = explored(self.config.exploration, phase, noisy, noise, rng)
        return self.policy.codec.snap(action), {}

    def peek(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> Observation:
        return {}

    def annotate(self, observation: Observation, action: Tensor, reward: Tensor, rng: torch.Generator) -> Observation:
        return {DEMONSTRATION: torch.ones(len(action), dtype=torch.bool, device=self.device)}

    def reset(self, ids: Tensor | None = None) -> None:
        """Do nothing: the policy has no state per environment."""

    # ---- learning ----------------------------------------------------------------------------------------------
    def update(self, batch: Batch, phase: LearningPhase = LearningPhase.LEARN) -> dict[str, Tensor]:
        """Take one step on B rows of `columns`, reward and discount over n steps (0 after a termination), and the
        observed columns after these steps as `next.*`."""
        encoder = self.policy.encoder
        batch = encoder.augment(encoder.augment(batch, self.rng), self.rng, NEXT)
        following = {k.removeprefix(NEXT): v for k, v in batch.items() if k.startswith(NEXT)}
        with torch.no_grad():
            after = self.policy.features(following)
        loss, metrics = self._loss(batch, self.policy.features(batch), after)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.config.grad_clip or math.inf)
        self.optimizer.step()
        self.updates += 1
        with torch.no_grad():
            average_(list(self.policy.network.parameters()), list(self.online.parameters()), self.config.tau)
        return {"values/loss": loss.detach(), "values/grad_norm": norm} | metrics

    @abstractmethod
    def _loss(self, batch: Batch, features: Tensor, after: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and metrics for features (B, F) of the observations and of the next ones."""

    def finish(self) -> None:
        """Do nothing: the policy's network is the averaged one already."""

    # ---- checkpoints -------------------------------------------------------------------------------------------
    def value_state(self) -> dict[str, Tensor]:
        return self.online.state_dict()

    def memory(self) -> dict[str, Any]:
        return {"noise": self.noise.value}

    def load_memory(self, memory: dict[str, Any], observation: Observation) -> None:
        self.noise.value = None if memory["noise"] is None else memory["noise"].to(self.device)

    def state_dict(self) -> dict[str, Any]:
        parts = {"policy": self.policy, "online": self.online, "optimizer": self.optimizer}
        state: dict[str, Any] = {name: part.state_dict() for name, part in parts.items()}  # type: ignore[attr-defined]
        return state | {"rng": self.rng.get_state(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.online.load_state_dict(state["online"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.rng.set_state(state["rng"])
        self.updates = state["updates"]


def over_demonstrations(loss: Tensor, batch: Batch) -> Tensor:
    """Return the mean of a loss (B,) over the rows of demonstrations, 0 without any."""
    demonstrated = batch[DEMONSTRATION].to(loss.dtype)
    return (loss * demonstrated).sum() / demonstrated.sum().clamp_min(1)
