"""Settings of a run or dataset, as its file has them: what is resumed goes on with the same."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from robot_rl.util import strict_json
from robot_rl.util.errors import Misfit


def settled(config: Any) -> Any:
    """Settings as they come back from their file: paths are text, tuples are lists."""
    return json.loads(strict_json.dumps(config))


def grown(before: Mapping[str, Any], now: Mapping[str, Any], path: str) -> dict[str, Any]:
    """`before` with the number at a path like "config.training.steps" as it is now, if it is larger now."""
    name, _, rest = path.partition(".")
    old, new = before.get(name), now.get(name)
    if rest and isinstance(old, dict) and isinstance(new, dict):
        return {**before, name: grown(old, new, rest)}
    larger = isinstance(old, int | float) and isinstance(new, int | float) and new > old
    return {**before, name: new} if larger else dict(before)


def check_same(what: Path, before: Mapping[str, Any], now: Mapping[str, Any], may_differ: Collection[str] = ()) -> None:
    """Refuse to go on with `what`, begun with other settings; both as `settled` gives them."""
    different = [k for k in now if k not in may_differ and k in before and before[k] != now[k]]
    if different:
        said = "; ".join(f"{k} was {_short(before[k], now[k])}" for k in different)
        raise Misfit(f"{what} was begun with other settings ({', '.join(different)}): {said}; resume with the same")


def _short(before: Any, now: Any) -> str:
    """What was, for a nest of settings only where it differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        inner = (k for k in before if before[k] != now.get(k))
        return ", ".join(f"{k} {_short(before[k], now.get(k))}" for k in inner) or "without what is given now"
    return json.dumps(before)
