"""Base class of off-policy learners without an actor, whose policy follows from the values of action bins.

The learners share replay columns, exploration, the order of an update, and an averaged network, which computes the
targets, acts and is deployed. A subclass adds its loss.
"""

import copy
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from policies.base import Observation
from policies.networks.bins import BinsPolicy
from robot_rl.data.replay import DEMONSTRATION, NEXT, Batch, Column, Sampling
from robot_rl.learning.agent import LearningPhase, restore, states_of
from robot_rl.learning.algorithms.actor_critic import UNLIMITED, Limits
from robot_rl.learning.parts.explore import ExplorationConfig, Noise, explored
from robot_rl.learning.parts.objectives import average_, gradient_step, next_observation
from robot_rl.util.limits import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt


@dataclass(frozen=True)
class ValueBasedConfig:
    """Hyperparameters that value-based methods share."""

    lr: PositiveFloat = 3e-4
    """Learning rate of the value network (AdamW)."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay (AdamW)."""
    tau: Fraction = 0.02
    """Polyak rate of the averaged network, per update."""
    discount: Fraction = 0.99
    """Discount per environment step."""
    n_step: PositiveInt = 1
    """Number of rewards summed in a target before it bootstraps from the averaged network."""
    noise: NonNegativeFloat = 0.01
    """Standard deviation of exploration noise on the action; the noisy action is then rounded to a bin."""
    grad_clip: PositiveFloat | None = 10.0
    """Largest gradient norm; None: no limit."""
    exploration: ExplorationConfig = ExplorationConfig(warmup_noise=None, noise_memory=0.0)
    """Warm-up actions and correlation of the noise."""


class ValueBased:
    """Agent whose policy follows from the values of action bins; methods as in `Agent`."""

    def __init__(self, policy: BinsPolicy, config: ValueBasedConfig, seed: int = 0, value_limits: Limits = UNLIMITED):
        """`value_limits` has no effect: the value network limits its values itself, or they are not limited."""
        self.policy, self.config = policy, config
        self.device = next(policy.network.parameters()).device
        self.online = copy.deepcopy(policy.network)
        """Network that the optimizer updates; the policy's network is its average."""
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
        """Do nothing, since the policy has no state per environment."""

    # ---- learning ----------------------------------------------------------------------------------------------
    def update(self, batch: Batch, phase: LearningPhase = LearningPhase.LEARN) -> dict[str, Tensor]:
        """Take a gradient step; return metrics. `batch` holds B rows of `columns`; reward and discount over n steps,
        where the discount is 0 after a termination; and `next.*`, the observed columns after the n steps."""
        encoder = self.policy.encoder
        batch = encoder.augment(encoder.augment(batch, self.rng), self.rng, NEXT)
        with torch.no_grad():
            after = self.policy.features(next_observation(batch))
        loss, metrics = self._loss(batch, self.policy.features(batch), after)
        norm = gradient_step(loss, self.optimizer, self.parameters, self.config.grad_clip)
        self.updates += 1
        average_(self.policy.network, self.online, self.config.tau)
        return {"values/loss": loss.detach(), "values/grad_norm": norm} | metrics

    @abstractmethod
    def _loss(self, batch: Batch, features: Tensor, after: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return loss and metrics. `features` (B, F) encode the observations, `after` (B, F) the next observations."""

    def finish(self) -> None:
        """Do nothing, since the policy's network already is the averaged one."""

    # ---- checkpoints -------------------------------------------------------------------------------------------
    def value_state(self) -> dict[str, Tensor]:
        return self.online.state_dict()

    def memory(self) -> dict[str, Any]:
        return {"noise": self.noise.value}

    def load_memory(self, memory: dict[str, Any], observation: Observation) -> None:
        self.noise.value = None if memory["noise"] is None else memory["noise"].to(self.device)

    def _parts(self) -> dict[str, Any]:
        return {"policy": self.policy, "online": self.online, "optimizer": self.optimizer}

    def state_dict(self) -> dict[str, Any]:
        return states_of(self._parts()) | {"rng": self.rng.get_state(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restore(self._parts(), state)
        self.rng.set_state(state["rng"])
        self.updates = state["updates"]


def over_demonstrations(loss: Tensor, batch: Batch) -> Tensor:
    """Return the mean of a loss (B,) over the rows of demonstrations, or 0 if the batch has no such rows."""
    demonstrated = batch[DEMONSTRATION].to(loss.dtype)
    return (loss * demonstrated).sum() / demonstrated.sum().clamp_min(1)
