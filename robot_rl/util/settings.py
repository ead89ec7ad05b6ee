"""Compare the settings of a resumed run or dataset with its settings file."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from robot_rl.util import strict_json
from robot_rl.util.errors import ConfigError


def as_json(config: Any) -> Any:
    """Return settings after a JSON round trip: paths become strings, tuples become lists."""
    return json.loads(strict_json.dumps(config))


def with_larger(before: Mapping[str, Any], now: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return `before` with the number at a path like "config.training.steps" replaced by the number in `now`, if that
    is larger."""
    name, _, rest = path.partition(".")
    old, new = before.get(name), now.get(name)
    if rest and isinstance(old, dict) and isinstance(new, dict):
        return {**before, name: with_larger(old, new, rest)}
    larger = isinstance(old, int | float) and isinstance(new, int | float) and new > old
    return {**before, name: new} if larger else dict(before)


def check_same(what: Path, before: Mapping[str, Any], now: Mapping[str, Any], may_differ: Collection[str] = ()) -> None:
    """Raise ConfigError if `what` was started with different settings; `before` and `now` are results of `as_json`."""
    different = [k for k in now if k not in may_differ and k in before and before[k] != now[k]]
    if different:
        was = "; ".join(f"{k} was {_short(before[k], now[k])}" for k in different)
        raise ConfigError(
            f"{what} was started with different settings ({', '.join(different)}): {was}; resume with the same"
        )


def _short(before: Any, now: Any) -> str:
    """Return the value `before` as text; for nested settings, only the entries that differ from `now`."""
    if isinstance(before, dict) and isinstance(now, dict):
        inner = (k for k in before if before[k] != now.get(k))
        return ", ".join(f"{k} {_short(before[k], now.get(k))}" for k in inner) or "without what is given now"
    return json.dumps(before)
