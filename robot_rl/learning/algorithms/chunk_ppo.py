"""PPO whose decisions are chunks of actions, with one advantage per chunk.

`gae_lambda` weights the advantages after a chunk. Within a chunk the weight is 1, so that the values of states between
the chunk's first and last cancel.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from policies.base import Observation
from robot_rl.learning.algorithms.ppo import PPO, PPOConfig
from robot_rl.learning.parts.chunking import ActionQueue
from robot_rl.util.limits import NonNegativeInt


@dataclass(frozen=True)
class ChunkPPOConfig(PPOConfig):
    critic_only: NonNegativeInt = 2
    """Number of initial updates in which only the critic learns."""


class ChunkPPO(PPO):
    """PPO for a policy that plans chunks of actions."""

    policy: Any
    config: ChunkPPOConfig

    def __init__(self, policy: Any, privileged: int, config: ChunkPPOConfig, seed: int = 0, terms: int | None = None):
        super().__init__(policy, privileged, config, seed, terms=terms)
        self.queue, self.updates = ActionQueue(policy.execute), 0

    @abstractmethod
    def _decide(self, observation: Observation, rng: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """Return exploring chunks (k, execute, A) in [-1, 1] for k observations, and the update's columns, named in
        `_widths`."""

    @torch.no_grad()
    def act(self, observation: Observation, rng: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """Return exploring actions (n, A) in [-1, 1], and columns for the update. The columns are valid in environments
        where `begins` is true."""
        state = self.state(observation)
        due = self.queue.due(len(state))
        rows = {name: state.new_zeros(len(state), width) for name, width in self._widths().items()}
        chunks = state.new_zeros(len(state), self.policy.execute, self.policy.size.action)
        if due.any():
            chunks[due], decided = self._decide({k: v[due] for k, v in observation.items()}, rng)
            for name, values in decided.items():
                rows[name][due] = values
        return self.queue.step(chunks), {"state": state, **rows, "begins": due.to(self.device)}

    @property
    def reads_next(self) -> Tensor:  # type: ignore[override]
        """Return (n,) bool: which environments begin a chunk at the next observation."""
        return self.queue.used >= self.queue.length

    def reset(self, ids: Tensor | None = None) -> None:
        """Drop the chunks of environments `ids`, or if None of all: their next step starts an episode."""
        self.queue.reset(ids)

    def _weight(self, rollout: dict[str, Tensor]) -> Tensor:
        after = torch.cat([rollout["begins"][1:], rollout["begins"][:1]])  # the last step's weight has no effect
        return torch.where(after, self.config.gae_lambda, 1.0)

    def assess(self, rollout: dict[str, Tensor], last: Observation, finals: list[Tensor]) -> dict[str, Tensor]:
        """Return the rows of `PPO.assess` at which a chunk begins."""
        begins = rollout["begins"].flatten()
        return {name: x[begins] for name, x in super().assess(rollout, last, finals).items()}

    def update(self, batch: dict[str, Tensor]) -> dict[str, float]:
        metrics = super().update(batch)
        self.updates += 1
        return metrics

    def _critic_inputs(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the inputs (B, 1, ...) of the critic's loss, and the advantages (B, 1), which are 0 in critic-only
        updates."""
        learns = float(self.updates >= self.config.critic_only)
        return {
            "state": self.critic.normalizer(batch["state"])[:, None],
            "value": batch["value"][:, None],
            "target": batch["target"][:, None],
            "advantage": learns * self._scaled(batch["advantage"])[:, None],
        }

    def _normalize(self, batch: dict[str, Tensor]) -> None:
        self.critic.normalizer.update(batch["state"])  # the base keeps its own

    def _bound(self) -> None:
        pass

    def memory(self) -> dict[str, Any]:
        """Return the chunks being executed, for a checkpoint."""
        return self.queue.state_dict()

    def load_memory(self, memory: dict[str, Any]) -> None:
        """Restore the result of `memory`."""
        self.queue.load_state_dict(memory, self.device)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.updates = state["updates"]


def estimated_divergence(change: Tensor) -> Tensor:
    """Return the policy's divergence from the old policy, nats, estimated from log-ratios `change` (Schulman 2020,
    "Approximating KL")."""
    change = change.detach()
    return (change.exp() - 1 - change).mean()
