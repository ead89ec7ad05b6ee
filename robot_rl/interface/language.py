"""Instructions as observations: UTF-8 bytes, so replays, batches and messages handle instructions as tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor

from robot_rl.util.errors import ConfigError

LONGEST = 128
"""Largest size of an instruction, bytes."""


def encode(texts: Sequence[str]) -> Tensor:
    """Encode n texts as UTF-8 (n, LONGEST) uint8, padded with zeros; ConfigError for an empty or too long text."""
    rows = []
    for text in texts:
        data = text.strip().encode()
        if not data or 0 in data:
            raise ConfigError(f"the instruction {text!r} says nothing; give one in words")
        if len(data) > LONGEST:
            raise ConfigError(
                f"the instruction {text[:40]!r}... has {len(data)} bytes, and at most {LONGEST} are read; shorten it"
            )
        rows.append(list(data.ljust(LONGEST, b"\0")))
    return torch.tensor(rows, dtype=torch.uint8).view(len(rows), LONGEST)


def decode(rows: Tensor) -> list[str]:
    """Return the texts of instructions (n, LONGEST); invalid UTF-8 becomes the replacement character."""
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows.cpu().numpy()]
