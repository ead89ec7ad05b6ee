"""What the process that holds an arm says about itself. It may import neither torch nor the bus."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Report:
    """Whether the arm moves, and why it does not."""

    reason: str
    """Reason for which goals are not followed; empty while they are."""
    latched: bool
    """Goals are followed again only after a recovery by the operator."""
