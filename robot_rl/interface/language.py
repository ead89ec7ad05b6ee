"""Instructions as observations: UTF-8 bytes, so that replays, batches and wires carry them as they carry numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from robot_rl.util.errors import ConfigError

LONGEST = 128
"""Bytes of an instruction at most."""


def encode(texts: Sequence[str]) -> Tensor:
    """Return instructions (n, LONGEST) uint8, filled up with zeros; ConfigError for an empty or a longer one."""
    rows = []
    for text in texts:
        said = text.strip().encode()
        if not said or 0 in said:
            raise ConfigError(f"the instruction {text!r} says nothing; give one in words")
        if len(said) > LONGEST:
            raise ConfigError(
                f"the instruction {text[:40]!r}... has {len(said)} bytes, and at most {LONGEST} are read; shorten it"
            )
        rows.append(list(said.ljust(LONGEST, b"\0")))
    return torch.tensor(rows, dtype=torch.uint8).view(len(rows), LONGEST)


def decode(rows: Tensor) -> list[str]:
    """Return the texts of instructions (n, LONGEST); bytes that are no text become the replacement character."""
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows.cpu().numpy()]
