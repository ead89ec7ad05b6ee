"""Objectives of actors against their critics.

    loss = -Q(s, T(u)) + alpha log pi(u) + l2 |u - u_start|^2 + imitation [person acted] |u - u_person|^2

Each term is 0 at its weight 0.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from policies.actor import ActorPolicy
from robot_rl.data.replay import Batch

Pooling = Literal["mean", "min", "first"]
"""Ensemble value that the actor maximizes: REDQ and RLPD take the mean, SAC the minimum, TD3 the first."""


def pooled(values: Tensor, how: Pooling) -> Tensor:
    """Return one value (B,) of an ensemble's (E, B)."""
    if how == "first":
        return values[0]
    return values.mean(0) if how == "mean" else values.amin(0)


def imitation_loss(policy: ActorPolicy, mean: Tensor, batch: Batch) -> Tensor | None:
    """Return the squared distance (B,) of the actor's mean u from the u of a person's action, 0 in rows
    that no person executed; None where the transform lets u have no effect."""
    target = policy.invert(batch["action"], batch)
    return None if target is None else batch["intervention"] * (mean - target).square().sum(-1)


def temperature_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """Return the loss of the temperature that holds the entropy at its target (Haarnoja et al. 2018b, section 5)."""
    return -(log_alpha.exp() * (log_prob.detach() + target_entropy)).mean()


def average_(average: list[Tensor], latest: list[Tensor], weight: float) -> None:
    """Move averaged parameters by `weight` towards the latest ones."""
    torch._foreach_lerp_(average, latest, weight)
