"""Behaviour cloning of any policy that has a loss on demonstrated chunks: regression, flow matching, denoising.

The weights that are deployed are averaged over updates (as Chi et al. 2023 do for diffusion policies).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from policies.actor import ActorPolicy
from policies.base import Policy
from robot_rl.data.replay import Batch
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat


@dataclass(frozen=True)
class CloningConfig:
    """Hyperparameters of the update."""

    lr: PositiveFloat = 1e-3
    """Peak learning rate, after which it follows half a cosine to 0."""
    warmup: NonNegativeInt = 100
    """Gradient steps of linear warm-up."""
    weight_decay: NonNegativeFloat = 1e-4
    """Decoupled weight decay (AdamW)."""
    ema_decay: Fraction = 0.999
    """Weight of the past, per update, in the averaged weights that are deployed."""
    grad_clip: PositiveFloat = 1.0
    """Largest gradient norm."""


class Cloning:
    """Fit a policy's trainable parameters to demonstrated chunks."""

    def __init__(self, policy: Policy, config: CloningConfig, updates: int):
        """`updates` is the length of the learning rate's schedule."""
        from diffusers.optimization import get_scheduler
        from diffusers.training_utils import EMAModel

        if not hasattr(policy, "loss"):
            raise TypeError(f"{type(policy).__name__} has no loss to clone it by")
        if isinstance(policy, ActorPolicy) and policy.grasps:
            raise ConfigError("cloning learns no values of the gripper; leave out grasp")
        self.policy, self.config = policy, config
        self.parameters = [p for p in policy.parameters() if p.requires_grad]
        self.device = self.parameters[0].device
        self.optimizer = torch.optim.AdamW(self.parameters, config.lr, weight_decay=config.weight_decay, fused=True)
        self.schedule: Any = get_scheduler(
            "cosine", self.optimizer, num_warmup_steps=config.warmup, num_training_steps=updates
        )
        self.average: Any = EMAModel(
            self.parameters, decay=config.ema_decay, use_ema_warmup=True, power=0.75, foreach=True
        )

    def weights(self, columns: dict[str, Tensor]) -> Tensor | None:
        """Return how often each demonstrated row (N,) is drawn, in any unit; None: all alike."""
        return None

    def update(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """Take one gradient step on observed columns (B, ...) and action chunks (B, horizon, A); return metrics."""
        loss = self._loss(batch, rng).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.config.grad_clip)
        self.optimizer.step()
        self.schedule.step()
        self.average.step(self.parameters)
        return {"bc/loss": loss.detach(), "bc/lr": loss.new_tensor(self.schedule.get_last_lr()[0])}

    def _loss(self, batch: Batch, rng: torch.Generator) -> Tensor:
        """Return the loss (B,) of a batch."""
        loss: Tensor = self.policy.loss(batch, batch["action"], rng)  # type: ignore[operator]
        return loss

    def finish(self) -> None:
        """Leave the averaged weights in the policy."""
        self.average.copy_to(self.parameters)
        self.policy.eval()

    def value_state(self) -> dict[str, Tensor]:
        """Return nothing: there are no critics."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": {k: v for k, v in self.schedule.state_dict().items() if isinstance(v, int | float | list)},
            "average": self.average.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.average.load_state_dict(state["average"])
