"""Losses of actors and critics, and the gradient step.

    loss = -Q(s, T(u)) + alpha log pi(u) + l2 |u - u_start|^2 + imitation [person acted] |u - u_person|^2

A term whose weight is 0 is left out.
"""

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from policies.actor import ActorPolicy
from policies.base import Observation
from robot_rl.data.replay import NEXT, Batch
from robot_rl.util.ranks import average_gradients

Pooling = Literal["mean", "min", "first"]
"""Value of a critic ensemble that the actor maximizes: REDQ and RLPD take the mean, SAC the minimum, and TD3 the first
critic's value."""


def next_observation(batch: Batch) -> Observation:
    """Return a batch's columns `next.*` under their names without `next.`."""
    return {k.removeprefix(NEXT): v for k, v in batch.items() if k.startswith(NEXT)}


def compute_gradients(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Set an optimizer's gradients to those of a loss, or of its mean over the ranks that learn together."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    average_gradients(optimizer)


def gradient_step(
    loss: Tensor, optimizer: torch.optim.Optimizer, clipped: Iterable[Tensor] = (), limit: float | None = None
) -> Tensor:
    """Take an optimizer step on a loss; return the gradient norm of the parameters `clipped`. Before the step this norm
    is clipped to `limit`; None: no limit."""
    compute_gradients(loss, optimizer)
    norm = torch.nn.utils.clip_grad_norm_(list(clipped), limit or math.inf)
    optimizer.step()
    return norm


def pooled(values: Tensor, how: Pooling) -> Tensor:
    """Return one value per row (B,) for an ensemble's values (E, B)."""
    if how == "first":
        return values[0]
    return values.mean(0) if how == "mean" else values.amin(0)


def scaled(q: Tensor) -> Tensor:
    """Return the mean of values (B,), divided by their mean absolute value (Fujimoto and Gu 2021, equation 5)."""
    return q.mean() / q.detach().abs().mean().clamp_min(1e-6)


def expectile_error(error: Tensor, tau: float) -> Tensor:
    """Return |tau - [error < 0]| error^2, whose mean the tau-expectile minimizes. At tau 0.5 it is half the squared
    error."""
    return (tau - (error < 0).float()).abs() * error.square()


def annealed(start: float, done: int, updates: int) -> float:
    """Return the expectile after `done` updates; it falls linearly from `start` to 0.5 over `updates` updates."""
    return 0.5 if done >= updates else start + (0.5 - start) * done / updates


def masked_mean(errors: Tensor, batch: Batch) -> Tensor:
    """Return the mean of errors (B, horizon * A) over the actions within the episode."""
    if "valid" not in batch:
        return errors.mean()
    valid = batch["valid"].repeat_interleave(errors.shape[1] // batch["valid"].shape[1], 1)
    return (errors * valid).sum() / valid.sum().clamp_min(1)


def imitation_loss(policy: ActorPolicy, mean: Tensor, batch: Batch) -> Tensor | None:
    """Return the squared distance (B,) of the actor's output `mean` from the output u that gives the person's action;
    0 for actions of the policy. None if u has no effect on the action, or is not unique."""
    target, person = policy.invert(batch["action"], batch), batch["intervention"]
    if target is None:
        return None
    if person.ndim == 1:
        return person * (mean - target).square().sum(-1)
    errors = (mean - target).square().unflatten(1, (person.shape[1], -1)).sum(-1)
    return (errors * (person & batch["valid"])).sum(-1)


@torch.no_grad()
def average_(average: torch.nn.Module, latest: torch.nn.Module, weight: float) -> None:
    """Move the parameters of `average` towards those of `latest` by the share `weight` of their distance."""
    torch._foreach_lerp_(list(average.parameters()), list(latest.parameters()), weight)
