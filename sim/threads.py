"""Torch settings of environments, independent of their caller's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def single_threaded() -> Iterator[None]:
    """Run on one torch thread, without gradients and outside inference mode.

    Tensors of a thousand rows are too short for several threads: on busy cores steps took ten times as long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode(False), torch.no_grad():
            yield
    finally:
        torch.set_num_threads(threads)
