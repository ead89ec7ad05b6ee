"""Blocks of which sections of the page consist; `templates/blocks.html` has a macro for each kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from robot_rl.report.figures import ABSENT


@dataclass(frozen=True)
class Block:
    """Part of a section: name and data of the macro that draws the block. The template escapes text."""

    kind: str
    data: dict[str, Any] = field(default_factory=dict)


def heading(text: str) -> Block:
    """Return a heading below the section's own."""
    return Block("heading", {"text": text})


def note(text: str) -> Block:
    """Return a paragraph in small type."""
    return Block("note", {"text": text})


def table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[object]], numbers: Iterable[int] = (), code: int = -1
) -> Block:
    """Return a table. Columns in `numbers` are aligned to the right; columns from index `code` on are set as code."""
    classes = ["number" if i in numbers else "code" if 0 <= code <= i else "" for i in range(len(head))]
    return Block("table", {"caption": caption, "head": head, "rows": rows, "classes": classes})


def facts(pairs: Iterable[tuple[str, object]]) -> Block:
    """Return a definition list of short facts; facts without a value are left out."""
    return Block("facts", {"pairs": [(name, value) for name, value in pairs if value not in (None, "", ABSENT)]})


def charts(figures: Iterable[dict[str, Any] | None], summary: str = "") -> list[Block]:
    """Return charts side by side, folded away under `summary` unless it is empty; [] without a chart."""
    found = [chart for chart in figures if chart is not None]
    return [Block("charts", {"charts": found, "summary": summary})] if found else []
