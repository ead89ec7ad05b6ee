"""Generalized advantage estimation: Schulman et al. 2016 (arXiv 1506.02438), equations 11 to 16."""

from __future__ import annotations

import torch
from torch import Tensor


def advantages(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, done: Tensor, discount: float,
    gae_lambda: float | Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return advantages and value targets, (T, N) each, for T steps of N environments.

    `value` is V(s_t), and `next_value` is V of the state after the step, in the same episode. A truncation bootstraps
    from `next_value`, a termination does not. Advantages do not cross episodes. `gae_lambda` may vary by step (T, N)::

        delta_t = r_t + discount * [not terminated] next_value_t - value_t
        A_t     = delta_t + discount * gae_lambda * [not done] A_{t+1}
    """
    shape = reward.shape
    for name, x in {"value": value, "next_value": next_value, "terminated": terminated, "done": done}.items():
        if x.shape != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, reward {tuple(shape)}")
    delta = reward + discount * torch.where(terminated, 0.0, next_value) - value
    decay = discount * gae_lambda * (~done).to(delta.dtype)
    result = torch.empty_like(delta)
    following = torch.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        following = torch.addcmul(delta[t], decay[t], following)
        result[t] = following
    return result, result + value
