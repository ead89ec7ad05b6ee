"""Seeds for learning and seeds for evaluation."""

from __future__ import annotations

HELD_OUT = 1_000_000_000
"""First seed of held-out episodes; learning uses smaller ones."""
LEARNING = HELD_OUT - 2**20
"""Seeds for learning start below this: environment i has seed + i, with room for a million of them."""


def training_seed(seed: int, recorded: int = 0) -> int:
    """Return the seed of environment 0 for learning or collecting with a user's seed; 0 for 0.

    Two users' seeds share no environment: neighbours are at least 7,654,321 apart, any two of the first 5,000 at least
    125,067. A collection that continues after `recorded` episodes gets fresh ones.
    """
    return (7_654_321 * seed + 1_000_003 * recorded) % LEARNING
