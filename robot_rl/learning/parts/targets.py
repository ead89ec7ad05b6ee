"""Backup targets of a critic's outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from robot_rl.learning.parts.heads import Head


def pessimistic(head: Head, out: Tensor, subset: int, rng: torch.Generator) -> Tensor:
    """Return the outputs (B, outputs) of the least-valued of `subset` random members of (E, B, outputs) (Fujimoto et
    al. 2018, clipped double Q; Chen et al. 2021, REDQ, for random subsets)."""
    if subset < len(out):
        out = out[torch.randperm(len(out), generator=rng)[:subset].to(out.device)]
    if len(out) == 1:
        return out[0]
    least = head.mean(out).argmin(0)
    return out[least, torch.arange(out.shape[1], device=out.device)]
