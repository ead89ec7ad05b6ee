"""Success of each instruction, for policies that read what they are asked."""

from __future__ import annotations

from collections.abc import Sequence

from robot_rl.report.blocks import Block, note, table
from robot_rl.report.figures import figure, number, percent
from robot_rl.report.folders import Row, RunFolder


def instructions_section(runs: Sequence[RunFolder]) -> list[Block]:
    """Return a table with a row for each instruction and a column for each evaluation that asked several or any."""
    found = [(row.get("label") or run.name, _asked(row)) for run in runs for row in run.evaluations if _asked(row)]
    if not found:
        return []
    texts = dict.fromkeys(text for _, asked in found for text in sorted(asked))
    rows = [(text, *(_cell(asked.get(text)) for _, asked in found)) for text in sorted(texts)]
    head = ("Instruction", *(str(label) for label, _ in found))
    return [
        table("Success, and in brackets the number of episodes", head, rows, numbers=range(1, len(head))),
        note("Few episodes say little: 5 successes in 10 have a 95\u202f% interval of 24\u201376\u202f%."),
    ]


def _asked(row: Row) -> Row:
    value = row.get("by_instruction")
    return value if isinstance(value, dict) else {}


def _cell(value: object) -> str:
    """Return a success rate with its number of episodes; empty where it was not asked."""
    if not isinstance(value, dict) or number(value.get("success")) is None:
        return ""
    return f"{percent(value['success'], 0)} ({figure(value.get('episodes'))})"
