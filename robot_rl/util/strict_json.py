"""Write standard JSON: null in place of NaN and infinity."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_NUMBERS = re.compile(r"\[\n\s*((?:[^\[\]{}\"\n]+\n\s*)+)\]")
"""Pattern of an indented list of numbers; it cannot match within a JSON string, which has no line breaks."""


def dumps(data: Any, indent: int | None = None) -> str:
    """Return data as JSON text; values of types unknown to JSON, such as paths, become strings. If `indent` is set,
    lists of numbers stay on one line."""
    text = json.dumps(_strict(data), indent=indent, default=str, allow_nan=False)
    return _NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text) if indent else text


def _strict(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _strict(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_strict(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
