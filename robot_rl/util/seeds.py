"""Disjoint ranges of seeds for learning, held-out evaluation and development."""

import re

from robot_rl.util.errors import ConfigError

HELD_OUT = 1_000_000_000
"""First seed of held-out episodes, used for published results; learning uses smaller seeds."""
DEVELOPMENT = 1_500_000_000
"""First seed of development episodes, used to choose settings; held-out seeds are smaller."""
LEARNING = HELD_OUT - 2**20
"""Upper limit of seeds for learning; environment i has seed + i, for up to a million environments."""


def training_seed(seed: int, recorded: int = 0) -> int:
    """Return the seed of environment 0 for learning or collecting with a user's seed; user seed 0 gives 0.

    Different user seeds have disjoint environment seeds: results for adjacent user seeds are at least 7,654,321 apart,
    results for the first 5,000 user seeds at least 125,067. A collection that continues after `recorded` episodes gets
    new seeds.
    """
    return (7_654_321 * seed + 1_000_003 * recorded) % LEARNING


def evaluation_seed(published: bool) -> int:
    """Return the first evaluation seed: of held-out episodes for published results, else of development episodes."""
    return HELD_OUT if published else DEVELOPMENT


def seed_list(text: str) -> list[int]:
    """Parse seeds written as `0..4` or `0,2,5`; ConfigError for other text."""
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,18})(?:\.\.(\d{1,18}))?", part.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
        if not 0 <= last - first < 1000:
            raise ConfigError(f"--seeds is {text!r}; it must be like 0..4 or 0,2,5, up to 1000 of them")
        seeds += range(first, last + 1)
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds {text} names a seed twice")
    return seeds
