"""Write JSON that every reader accepts: null in place of NaN and infinity."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def dumps(data: Any, indent: int | None = None) -> str:
    """Return dicts, sequences and values as JSON; types that JSON lacks, such as paths, become strings."""
    return json.dumps(_strict(data), indent=indent, default=str, allow_nan=False)


def _strict(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _strict(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_strict(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
