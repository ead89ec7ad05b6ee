"""Floating-point and thread settings of learning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["highest", "high", "medium"]


MOST_THREADS = 4
"""Of a learner that was not told how many: networks of a robot's size keep no more busy."""


def learner_threads(alone: bool) -> int:
    """Threads of a learner that was not told how many: one beside physics that move meanwhile, and otherwise as many
    as PyTorch would take, within reason."""
    return min(MOST_THREADS, torch.get_num_threads()) if alone else 1


@contextmanager
def learning_floats(precision: Precision = "medium") -> Iterator[None]:
    """Precision of float32 matrix products as torch names it, and no denormal numbers; as before at the end.

    Optimizer moments of weights that no longer learn decay into denormals, which cost a fifth of an update.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_float32_matmul_precision(before)
