"""What the benchmark of runs over twins makes of runs that ended early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def row(**changes: Any) -> dict[str, Any]:
    events: dict[str, Any] = {"events": {}, "guard": {}, "fell_lying_down": False, "stopped": "", "late_share": 0.0}
    figures = {"seed": 0, "status": 0, "falls": 0, "standing": True, "velocity_error": 0.1, "yaw_error": 0.2}
    return events | figures | {"seconds": 60.0} | changes


def test_every_run_counts_and_only_those_that_ended_standing_stood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    from benchmarks.go2_twin import summary, table

    stalled = row(standing=False, falls=1, stopped="the robot is not where the policy takes it to be")
    operator = row(standing=False, stopped="operator", velocity_error=9.0)
    rows = [row(), row(velocity_error=0.2), stalled, operator, {"seed": 4, "status": 1}]
    total = summary(rows)
    assert (total["runs"], total["standing"], total["falls"], total["failed"]) == (5, 2, 1, 1)
    assert total["stopped"] == {stalled["stopped"]: 1, "operator": 1}
    assert total["velocity_error"]["mean"] == pytest.approx(0.15), "of those that walked to the end"
    assert 0.1 < total["standing_low"] < 0.4 < total["standing_high"] < 0.8
    assert "2 of 5 runs ended standing" in table(rows, total)
