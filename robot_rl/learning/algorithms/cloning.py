"""Behaviour cloning of any policy that has a loss on demonstrated chunks: regression, flow matching or denoising.

The deployed weights are averaged over updates, as by Chi et al. 2023 for diffusion policies.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from policies.actor import ActorPolicy
from policies.base import Policy
from robot_rl.data.replay import Batch
from robot_rl.learning.parts.objectives import gradient_step
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat

EMA_WARMUP = 0.75
"""Exponent with which the decay of the averaged weights rises to its value (Chi et al. 2023)."""


@dataclass(frozen=True)
class CloningConfig:
    lr: PositiveFloat = 1e-3
    """Learning rate after warm-up, from which it decays to 0 along half a cosine."""
    warmup: NonNegativeInt = 100
    """Number of gradient steps in which the learning rate rises linearly from 0."""
    weight_decay: NonNegativeFloat = 1e-4
    """Decoupled weight decay (AdamW)."""
    ema_decay: Fraction = 0.999
    """Decay per update of the averaged weights, which are deployed."""
    grad_clip: PositiveFloat = 1.0
    """Largest gradient norm."""


def _rate(update: int, warmup: int, updates: int) -> float:
    """Return the learning rate of an update as a share of its largest value."""
    if update < warmup:
        return update / warmup
    return max(0.0, 0.5 * (1 + math.cos(math.pi * (update - warmup) / max(1, updates - warmup))))


class Cloning:
    """Learner that fits a policy's trainable parameters to demonstrated chunks."""

    def __init__(self, policy: Policy, config: CloningConfig, updates: int):
        """`updates`: length of the learning rate schedule, gradient steps."""
        if not hasattr(policy, "loss"):
            raise ConfigError(f"{type(policy).__name__} has no method loss, which cloning needs; see policies/flow.py")
        if isinstance(policy, ActorPolicy) and policy.grasps:
            raise ConfigError("cloning learns no gripper values; leave out grasp")
        self.policy, self.config = policy, config
        self.parameters: list[Any] = [p for part in self._modules() for p in part.parameters() if p.requires_grad]
        self.device = self.parameters[0].device
        self.optimizer = torch.optim.AdamW(self.parameters, config.lr, weight_decay=config.weight_decay, fused=True)
        rate = partial(_rate, warmup=config.warmup, updates=updates)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, rate)
        self.average = [parameter.detach().clone() for parameter in self.parameters]
        """Averaged weights."""
        self.updates = 0

    def _modules(self) -> Sequence[nn.Module]:
        """Return the modules whose parameters are trained, the policy first."""
        return [self.policy]

    def weights(self, columns: dict[str, Tensor]) -> Tensor | None:
        """Return weights (N,), not normalized, with which the N demonstrated rows are sampled; None: uniform."""
        return None

    def update(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """Take one gradient step on observed columns (B, ...) and action chunks (B, horizon, A); return metrics."""
        loss = self._loss(batch, rng).mean()
        gradient_step(loss, self.optimizer, self.parameters, self.config.grad_clip)
        self.schedule.step()
        decay = min(self.config.ema_decay, 1 - (1 + self.updates) ** -EMA_WARMUP)
        self.updates += 1
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.parameters, 1 - decay)
        metrics = {"bc/loss": loss.detach(), "bc/lr": loss.new_tensor(self.schedule.get_last_lr()[0])}
        return metrics | dict(self.policy.metrics)

    def _loss(self, batch: Batch, rng: torch.Generator) -> Tensor:
        """Return the policy's loss (B,) on each row of a batch."""
        loss: Tensor = self.policy.loss(batch, batch["action"], rng)  # type: ignore[operator]
        return loss

    def finish(self) -> None:
        """Copy the averaged weights into the policy."""
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.average)
        self.policy.eval()

    def averaged(self) -> dict[str, Tensor]:
        """Return the averaged weights by the names of the policy's parameters."""
        average = {id(parameter): value for parameter, value in zip(self.parameters, self.average, strict=True)}
        return {name: average[id(p)] for name, p in self.policy.named_parameters() if id(p) in average}

    def value_state(self) -> dict[str, Tensor]:
        """Return {}, since cloning has no critics."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": {k: v for k, v in self.schedule.state_dict().items() if isinstance(v, int | float | list)},
            "average": {"shadow_params": self.average, "optimization_step": self.updates},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        torch._foreach_copy_(self.average, state["average"]["shadow_params"])
        self.updates = state["average"]["optimization_step"]
