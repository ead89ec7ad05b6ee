"""Floating-point and thread settings of learning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["highest", "high", "medium"]
MOST_THREADS = 4
"""Default maximum number of learner threads; small networks do not use more."""


def learner_threads(alone: bool) -> int:
    """Return the default number of threads: 1 beside a running simulation, else torch's, at most `MOST_THREADS`."""
    return min(MOST_THREADS, torch.get_num_threads()) if alone else 1


@contextmanager
def learning_floats(precision: Precision = "medium") -> Iterator[None]:
    """Set the float32 matmul precision and flush denormals to zero within the context; restore both on exit.

    Optimizer moments of weights without gradients decay to denormals, which take a fifth of an update's time.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_float32_matmul_precision(before)
