"""Results as tables and as JSON."""

import json
import re
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from robot_rl.cli import console
from robot_rl.cli.console import show
from robot_rl.evaluation import Evaluation


def test_mean_is_shown_with_its_interval(capsys: pytest.CaptureFixture[str]) -> None:
    show({"height": {"mean": 0.31234, "low": 0.3, "high": 0.33}, "episodes": 5}, False)
    shown = capsys.readouterr().out
    assert "0.3123 [0.3, 0.33]" in shown and "5" in shown


def test_markup_in_names_is_shown_literally(capsys: pytest.CaptureFixture[str]) -> None:
    show({"[/x]": "runs/[bold]walk[/bold]/:wave:"}, False)
    assert capsys.readouterr().out.split() == ["[/x]", "runs/[bold]walk[/bold]/:wave:"]


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_of_finetune_fits_80_columns(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    file, text = StringIO(), "s, 112 episodes: 10/10 won, 10 helped, v12000"
    monkeypatch.setattr(console, "console", Console(file=file, width=80, force_terminal=terminal, color_system=None))
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=iter(range(0, 100, 20)).__next__))
    with console.bar("finetune") as update:
        update(1200, 1800, text)
    shown = re.sub(r"\x1b\[[?0-9]*[a-zA-Z]", "", file.getvalue()).splitlines()
    (line,) = {line.strip() for line in shown if "episodes" in line}
    assert line.startswith("finetune") and line.endswith(text) and "1200" in line
    assert len(f"[finetune] {line}" if not terminal else line) <= 80


@pytest.mark.parametrize("values", [[], [0.3], [float("nan")]])
def test_metric_without_interval_is_shown_and_valid_json(capsys: Any, values: list[float]) -> None:
    summary = Evaluation([True], [10], [0.0], {"height": values}).summary()
    show(summary, False)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert next(row for row in rows if row[:1] == ["height"]) == ["height", "0.3" if values == [0.3] else "?"]

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    show({"speed": float("nan"), "rows": [1.0, float("inf")]}, False)
    assert "nan" not in capsys.readouterr().out
    show(summary | {"speed": float("nan"), "rows": (1.0, float("inf"))}, True)
    again = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert again["height"]["low"] is again["speed"] is None and again["rows"] == [1.0, None]
