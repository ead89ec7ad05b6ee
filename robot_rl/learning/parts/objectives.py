"""Losses of actors and critics, and the gradient step.

    loss = -Q(s, T(u)) + alpha log pi(u) + l2 |u - u_start|^2 + imitation [person acted] |u - u_person|^2

Each term is 0 where its weight is 0.
"""

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from policies.actor import ActorPolicy
from policies.base import Observation
from robot_rl.data.replay import NEXT, Batch

Pooling = Literal["mean", "min", "first"]
"""Ensemble value that the actor maximizes: REDQ and RLPD take the mean, SAC the minimum, TD3 the first."""


def next_observation(batch: Batch) -> Observation:
    """Return a batch's columns `next.*` under their plain names."""
    return {k.removeprefix(NEXT): v for k, v in batch.items() if k.startswith(NEXT)}


def gradient_step(
    loss: Tensor, optimizer: torch.optim.Optimizer, clipped: Iterable[Tensor] = (), limit: float | None = None
) -> Tensor:
    """Take an optimizer step on a loss; return the gradient norm of the parameters `clipped`. Their norm is clipped to
    `limit` before the step; None: no limit."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(list(clipped), limit or math.inf)
    optimizer.step()
    return norm


def pooled(values: Tensor, how: Pooling) -> Tensor:
    """Return one value (B,) for an ensemble's values (E, B)."""
    if how == "first":
        return values[0]
    return values.mean(0) if how == "mean" else values.amin(0)


def scaled(q: Tensor) -> Tensor:
    """Return the mean of values (B,), divided by their mean absolute value (Fujimoto and Gu 2021, equation 5)."""
    return q.mean() / q.detach().abs().mean().clamp_min(1e-6)


def expectile_error(error: Tensor, tau: float) -> Tensor:
    """Return |tau - [error < 0]| error^2, which the tau-expectile minimizes; half the squared error at tau 0.5."""
    return (tau - (error < 0).float()).abs() * error.square()


def annealed(start: float, done: int, updates: int) -> float:
    """Return an expectile that falls linearly from `start` to 0.5 over `updates`, after `done` of them."""
    return 0.5 if done >= updates else start + (0.5 - start) * done / updates


def masked_mean(errors: Tensor, batch: Batch) -> Tensor:
    """Return the mean of errors (B, horizon * A) over the actions within the episode."""
    if "valid" not in batch:
        return errors.mean()
    valid = batch["valid"].repeat_interleave(errors.shape[1] // batch["valid"].shape[1], 1)
    return (errors * valid).sum() / valid.sum().clamp_min(1)


def imitation_loss(policy: ActorPolicy, mean: Tensor, batch: Batch) -> Tensor | None:
    """Return the squared distance (B,) of the actor's mean u from the u of a person's actions. Actions of the policy
    count 0. None if u has no effect on the action."""
    target, person = policy.invert(batch["action"], batch), batch["intervention"]
    if target is None:
        return None
    if person.ndim == 1:
        return person * (mean - target).square().sum(-1)
    errors = (mean - target).square().unflatten(1, (person.shape[1], -1)).sum(-1)
    return (errors * (person & batch["valid"])).sum(-1)


@torch.no_grad()
def average_(average: torch.nn.Module, latest: torch.nn.Module, weight: float) -> None:
    """Move averaged parameters by `weight` towards the latest ones."""
    torch._foreach_lerp_(list(average.parameters()), list(latest.parameters()), weight)
