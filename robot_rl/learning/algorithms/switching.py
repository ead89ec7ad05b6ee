"""Handover between two agents on one replay: chunks act early, single steps late.

Chunks explore consistently and propagate rewards over several steps at once, so they are better early. Single steps
react to every observation, so they are better late; the learning curves of Li et al. 2025 (2507.07969) cross. The share
of episodes in which the agent of single steps acts grows from 0 to 1.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from policies.actor import ActorPolicy
from policies.base import Observation
from robot_rl.data.replay import NEXT, Batch, Sampling
from robot_rl.learning.agent import LearningPhase
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeInt


@dataclass(frozen=True)
class SwitchingConfig:
    """Hyperparameters of the agent of chunks, the agent of single steps, and the handover between them."""

    chunks: ActorCriticConfig = ActorCriticConfig()
    """Settings of the agent of chunks."""
    steps: ActorCriticConfig = ActorCriticConfig()
    """Settings of the agent of single steps."""
    first: NonNegativeInt = 10_000
    """Number of environment steps after which the agent of single steps begins to act."""
    last: NonNegativeInt = 30_000
    """Number of environment steps after which the agent of single steps acts in all episodes; between `first` and
    `last` its share of episodes grows linearly."""

    def __post_init__(self) -> None:
        if self.last < self.first:
            raise ValueError(f"last is {self.last}, before first, {self.first}; raise it")
        if self.chunks.discount != self.steps.discount:
            raise ValueError(f"chunks.discount {self.chunks.discount} and steps.discount {self.steps.discount} differ")

    @property
    def discount(self) -> float:
        """Return the discount per environment step."""
        return self.steps.discount


class Switching:
    """Agent of chunks that hands over to an agent of single steps; methods as in `Agent`."""

    def __init__(self, chunks: ActorCritic, steps: ActorCritic, config: SwitchingConfig, seed: int = 0):
        if steps.policy.horizon != 1 or steps.config.n_step != 1 or "latent" in chunks.columns | steps.columns:
            raise ConfigError("single steps take steps.n_step 1, and critics on actions: --agent.steps.n-step 1")
        self.chunks, self.steps, self.config = chunks, steps, config
        self.device = chunks.device
        steps.policy.normalizer = chunks.policy.normalizer
        self.columns = chunks.columns | steps.columns
        self.sampling = Sampling(1, config.discount, max(2, chunks.policy.horizon), sequence=True)
        self.rng = torch.Generator().manual_seed(seed)
        self.single = torch.zeros(0, dtype=torch.bool)
        """(n,) bool: environments in whose current episode the agent of single steps acts."""
        self.undecided = torch.zeros(0, dtype=torch.bool)
        """(n,) bool: environments that start an episode, for which the acting agent must be drawn."""
        self.done = 0
        """Number of environment steps so far."""

    @property
    def share(self) -> float:
        """Return the share of new episodes in which the agent of single steps acts."""
        c = self.config
        return min(1.0, max(0.0, (self.done - c.first) / max(1, c.last - c.first)))

    @property
    def deployed(self) -> ActorCritic:
        """Return the agent that acts in the majority of new episodes."""
        return self.steps if self.share > 0.5 else self.chunks

    @property
    def policy(self) -> ActorPolicy:
        return self.deployed.policy

    # ---- acting ------------------------------------------------------------------------------------------------
    def act(self, observation: Observation, rng: torch.Generator, phase: LearningPhase) -> tuple[Tensor, Observation]:
        rows = len(observation["observation.state"])
        if len(self.single) != rows:
            self.single, self.undecided = (torch.full((rows,), value) for value in (False, True))
        drawn = torch.rand(rows, generator=self.rng) < self.share
        self.single = torch.where(self.undecided, drawn, self.single)
        self.undecided = torch.zeros_like(self.undecided)
        self.done += rows
        (chunked, kept), (stepped, also) = (agent.act(observation, rng, phase) for agent in (self.chunks, self.steps))
        return torch.where(self.single[:, None].to(self.device), stepped, chunked), kept | also

    def peek(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> Observation:
        return self.chunks.peek(observation, rows, rng) | self.steps.peek(observation, rows, rng)

    def annotate(self, observation: Observation, action: Tensor, reward: Tensor, rng: torch.Generator) -> Observation:
        episode = observation, action, reward, rng
        return self.chunks.annotate(*episode) | self.steps.annotate(*episode)

    def reset(self, ids: Tensor | None = None) -> None:
        self.undecided[slice(None) if ids is None else ids.cpu()] = True
        self.chunks.reset(ids)
        self.steps.reset(ids)

    # ---- learning ----------------------------------------------------------------------------------------------
    def update(self, batch: Batch, phase: LearningPhase) -> dict[str, Tensor]:
        """Update the two agents from the same sequences; return the metrics of both."""
        metrics = {f"chunks/{k}": v for k, v in self.chunks.update(self.chunked(batch), phase).items()}
        return metrics | {f"steps/{k}": v for k, v in self.steps.update(self.stepped(batch), phase).items()}

    def chunked(self, batch: Batch) -> Batch:
        """Return the sequences (B, h, ...) as samples for the agent of chunks, equal to samples of
        `Sampling(h, discount, h)`."""
        h = self.chunks.policy.horizon
        valid, terminated = batch["valid"][:, :h], batch["terminated"][:, :h]
        factor = self.config.discount ** torch.arange(h, device=self.device)
        out = {k: v[:, 0] for k, v in batch.items() if k in self.chunks.columns}
        out |= {NEXT + k: batch[k][:, h] for k, c in self.chunks.columns.items() if c.observed}
        out |= {name: batch[name][:, :h] for name in ("action", "intervention")} | {"valid": valid}
        going = ~(valid & terminated).any(1)
        out |= {"reward": (batch["reward"][:, :h] * valid * factor).sum(1)}
        return out | {"discount": self.config.discount ** valid.sum(1) * going}

    def stepped(self, batch: Batch) -> Batch:
        """Return the first steps of the sequences as transitions, equal to samples of `Sampling(1, discount)`."""
        out = {k: v[:, 0] for k, v in batch.items() if k in self.steps.columns}
        out |= {NEXT + k: batch[k][:, 1] for k, c in self.steps.columns.items() if c.observed}
        going = ~batch["terminated"][:, 0]
        return out | {"reward": batch["reward"][:, 0], "discount": self.config.discount * going}

    def finish(self) -> None:
        self.chunks.finish()
        self.steps.finish()

    # ---- checkpoints -------------------------------------------------------------------------------------------
    def value_state(self) -> dict[str, Tensor]:
        return self.deployed.value_state()

    def memory(self) -> dict[str, Any]:
        own = {"single": self.single, "undecided": self.undecided}
        return own | {"chunks": self.chunks.memory(), "steps": self.steps.memory()}

    def load_memory(self, memory: dict[str, Any], observation: Observation) -> None:
        self.single, self.undecided = memory["single"].cpu(), memory["undecided"].cpu()
        self.chunks.load_memory(memory["chunks"], observation)
        self.steps.load_memory(memory["steps"], observation)

    def state_dict(self) -> dict[str, Any]:
        own = {"done": self.done, "rng": self.rng.get_state()}
        return own | {"chunks": self.chunks.state_dict(), "steps": self.steps.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]
        self.rng.set_state(state["rng"])
        self.chunks.load_state_dict(state["chunks"])
        self.steps.load_state_dict(state["steps"])
