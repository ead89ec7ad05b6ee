"""Summary and exit status of the benchmark `go2_twin`."""

import json
from pathlib import Path
from typing import Any

import pytest


def row(**changes: Any) -> dict[str, Any]:
    events: dict[str, Any] = {"events": {}, "guard": {}, "fell_lying_down": False, "stopped": "", "late_share": 0.0}
    figures = {"seed": 0, "status": 0, "falls": 0, "standing": True, "velocity_error": 0.1, "yaw_error": 0.2}
    return events | figures | {"seconds": 60.0} | changes


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))


def test_summary_counts_every_run() -> None:
    from benchmarks.go2_twin import summary, table

    stalled = row(standing=False, falls=1, stopped="the robot is not where the policy expects it")
    operator = row(standing=False, stopped="operator", velocity_error=9.0)
    rows = [row(), row(velocity_error=0.2), stalled, operator, {"seed": 4, "status": 1}]
    total = summary(rows)
    assert (total["runs"], total["standing"], total["falls"], total["failed"]) == (5, 2, 1, 1)
    assert total["stopped"] == {stalled["stopped"]: 1, "operator": 1}
    assert total["velocity_error"]["mean"] == pytest.approx(0.15), "of complete runs"
    assert 0.1 < total["standing_low"] < 0.4 < total["standing_high"] < 0.8
    assert "2 of 5 runs ended standing" in table(rows, total)


FELL = row(standing=False, falls=1, stopped="tilt")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([row()], []),
        ([row()] * 19 + [FELL], []),
        ([row()] * 18 + [FELL] * 2, ["only 18 of 20 runs ended standing"]),
        ([row()] * 38 + [FELL] * 3, ["only 38 of 41 runs ended standing"]),
        ([row()] * 19 + [row(standing=False, stopped="late")], ["stopped by other than a tilt: late"]),
        ([row()] * 19 + [{"seed": 19, "status": 2}], ["failed: 1 of 20 runs"]),
        ([{"seed": 0, "status": 1}], ["failed: 1 of 1 runs", "only 0 of 1 runs"]),
    ],
)
def test_exit_status(rows: list[dict[str, Any]], words: list[str], monkeypatch: Any, tmp_path: Path) -> None:
    """0 if at least 95 % of runs end standing, no process fails, and only the tilt limit stops runs."""
    from benchmarks import go2_twin

    misses = go2_twin.missed(go2_twin.summary(rows))
    assert len(misses) == len(words) and all(m.startswith(w) for m, w in zip(misses, words, strict=True))
    monkeypatch.setattr(go2_twin, "one_run", lambda index, **_: rows[index])
    out = tmp_path / "go2_twin.json"
    monkeypatch.setattr("sys.argv", ["go2_twin", "runs/walk", "--runs", str(len(rows)), "--out", str(out)])
    assert go2_twin.main() == (1 if words else 0)
    assert json.loads(out.read_text())["missed"] == misses
