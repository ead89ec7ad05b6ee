"""A bound on the divergence of a policy from the old one in every state of a rollout: the second phase of FixPO,
Zentner et al. 2023, "Guaranteed Trust Region Optimization via Two-Phase KL Penalization" (arXiv 2312.05405).

After an update, gradient steps reduce the divergence in the states beyond the bound until there are none. If they do
not suffice, the weights go back towards the old ones, half of the way at a time.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

STEPS = 20
"""Largest number of gradient steps."""


def fix_up(
    divergences: Callable[[], Tensor], parameters: Sequence[nn.Parameter], old: Sequence[Tensor], bound: float,
    lr: float,
) -> dict[str, float]:  # fmt: skip
    """Change `parameters` until no divergence exceeds `bound`; return metrics.

    Args:
        divergences: function that returns the divergence (B,), nats, in each state; 0 for the parameters `old`.
        lr: learning rate of the gradient steps (Adam).
    """
    optimizer = torch.optim.Adam(parameters, lr)
    for step in range(STEPS + 1):
        found = divergences()
        beyond = found[found > bound]
        if not len(beyond) or step == STEPS:
            break
        optimizer.zero_grad(set_to_none=True)
        beyond.mean().backward()
        optimizer.step()
    with torch.no_grad():
        back, largest = 0, divergences().max()
        while not bool(largest <= bound) and back <= STEPS:
            weight = 1.0 if back == STEPS else 0.5
            for parameter, before in zip(parameters, old, strict=True):
                parameter.lerp_(before, weight)
            back, largest = back + 1, divergences().max()
    return {"ppo/fix_steps": float(step), "ppo/fix_back": float(back), "ppo/max_kl": float(largest)}
