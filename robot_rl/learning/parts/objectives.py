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


def scaled(q: Tensor) -> Tensor:
    """Return the mean of values (B,), divided by their mean size (Fujimoto and Gu 2021, equation 5)."""
    return q.mean() / q.detach().abs().mean().clamp_min(1e-6)


def expectile_error(error: Tensor, tau: float) -> Tensor:
    """Return |tau - [error < 0]| error^2: its minimum is the tau-expectile, and half the squared error at 0.5."""
    return (tau - (error < 0).float()).abs() * error.square()


def annealed(start: float, done: int, updates: int) -> float:
    """Return the expectile after `done` of `updates` in which it falls linearly from `start` to 0.5."""
    return 0.5 if done >= updates else start + (0.5 - start) * done / updates


def masked_mean(errors: Tensor, batch: Batch) -> Tensor:
    """Return the mean of errors (B, horizon * A) over the actions that belong to an episode."""
    if "valid" not in batch:
        return errors.mean()
    valid = batch["valid"].repeat_interleave(errors.shape[1] // batch["valid"].shape[1], 1)
    return (errors * valid).sum() / valid.sum().clamp_min(1)


def imitation_loss(policy: ActorPolicy, mean: Tensor, batch: Batch) -> Tensor | None:
    """Return the squared distance (B,) of the actor's mean u from the u of a person's actions, without those that no
    person executed; None where the transform lets u have no effect."""
    target, person = policy.invert(batch["action"], batch), batch["intervention"]
    if target is None:
        return None
    if person.ndim == 1:
        return person * (mean - target).square().sum(-1)
    errors = (mean - target).square().unflatten(1, (person.shape[1], -1)).sum(-1)
    return (errors * (person & batch["valid"])).sum(-1)


def temperature_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """Return the loss of the temperature that holds the entropy at its target (Haarnoja et al. 2018b, section 5)."""
    return -(log_alpha.exp() * (log_prob.detach() + target_entropy)).mean()


def average_(average: list[Tensor], latest: list[Tensor], weight: float) -> None:
    """Move averaged parameters by `weight` towards the latest ones."""
    torch._foreach_lerp_(average, latest, weight)
