"""Base class of learners from groups of a token policy's episodes (SRPO, GRAPE). Only the token decoder is trained."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from policies.base import Observation
from policies.vla.tokens import VLATokensPolicy
from robot_rl.data.sources import Trajectories
from robot_rl.learning.agent import restore, states_of
from robot_rl.learning.parts.chunking import ActionQueue
from robot_rl.learning.parts.objectives import compute_gradients
from robot_rl.util.limits import PositiveFloat, PositiveInt


@dataclass(frozen=True)
class TokenGroupsConfig:
    lr: PositiveFloat = 1e-4
    """Learning rate of the token decoder (AdamW)."""
    epochs: PositiveInt = 1
    """Number of passes over the episodes of a round."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature of tokens while exploring; the deployed policy uses its own temperature."""
    grad_clip: PositiveFloat = 1.0
    """Largest gradient norm."""


class TokenGroups:
    """Learner that explores with a token policy; a subclass adds the update."""

    def __init__(self, policy: VLATokensPolicy, config: Any, seed: int = 0):
        self.policy, self.config = policy.eval(), config
        self.parameters = list(policy.decoder.parameters())
        self.device = self.parameters[0].device
        self.optimizer = torch.optim.AdamW(self.parameters, config.lr, weight_decay=0.0, fused=True)
        self.rng = torch.Generator(self.device).manual_seed(seed ^ 0x5EED_6209)
        self.queue = ActionQueue(policy.execute)

    # ---- acting ------------------------------------------------------------------------------------------------
    def reset(self) -> None:
        """Start an episode in every environment."""
        self.queue.reset()

    @property
    def reads_next(self) -> Tensor:
        """Return (n,) bool: which environments decide on a new chunk at the next observation."""
        return self.queue.used >= self.queue.length

    @torch.no_grad()
    def act(self, observation: Observation, rng: torch.Generator) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return exploring actions (n, A) in [-1, 1]; (n,) bool, which environments decided on a new chunk; and the
        columns of these decisions."""
        policy, rows = self.policy, len(observation["observation.state"])
        due = self.queue.due(rows)
        chunks = torch.zeros(rows, policy.execute, policy.size.action, device=self.device)
        columns = {}
        if due.any():
            features = policy.features({key: values[due] for key, values in observation.items()})
            tokens, log_prob = policy.sample(features, self.config.temperature, rng)
            chunks[due] = policy.codec.decode(tokens)[:, : policy.execute]
            columns = {"features": features, "tokens": tokens, "log_prob": log_prob}
        return self.queue.step(chunks), due, columns

    # ---- learning ----------------------------------------------------------------------------------------------
    @abstractmethod
    def update(self, played: Trajectories) -> dict[str, float]:
        """Learn from the episodes of a round; return metrics."""

    def _log_prob(self, features: Tensor, tokens: Tensor) -> Tensor:
        return self.policy.log_prob(features, tokens, self.config.temperature)

    def _step(self, loss: Tensor) -> None:
        compute_gradients(loss, self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.config.grad_clip)
        if not bool((loss.detach() + norm).isfinite()):
            raise FloatingPointError("a loss or its gradient became NaN or infinite")
        self.optimizer.step()

    def finish(self) -> None:
        """Set `policy` to the policy to deploy."""
        self.policy.eval()

    def value_state(self) -> dict[str, Tensor]:
        """Return {}, since these learners have no critics."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        return states_of({"policy": self.policy, "optimizer": self.optimizer}) | {"rng": self.rng.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restore({"policy": self.policy, "optimizer": self.optimizer}, state)
        self.rng.set_state(state["rng"])
