"""Thresholds of `benchmarks/go2_velocity.py`."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The first recorded seed, which meets all thresholds."""
    monkeypatch.syspath_prepend(str(ROOT))
    rows = json.loads((ROOT / "benchmarks" / "results" / "go2_velocity.json").read_text())["rows"]
    return copy.deepcopy(rows[0])


def test_recorded_seeds_meet_all_thresholds(row: dict[str, Any]) -> None:
    from benchmarks.go2_velocity import THRESHOLDS, missed

    assert missed(row) == [] and set(THRESHOLDS) == {"mujoco", "genesis"}


@pytest.mark.parametrize(
    ("engine", "name", "value", "said"),
    [
        ("mujoco", "velocity_error", 0.16, "velocity_error in mujoco: 0.16 is not below 0.15"),
        ("mujoco", "yaw_error", 0.2, "yaw_error in mujoco: 0.2 is not below 0.2"),
        ("mujoco", "swing_height", None, "swing_height in mujoco: None is not above 0.03"),
        ("genesis", "fall_rate", 0.06, "fall_rate in genesis: 0.06 is not below 0.05"),
        ("genesis", "swing_height", 0.03, "swing_height in genesis: 0.03 is not above 0.03"),
    ],
)
def test_missed_thresholds_are_reported(
    row: dict[str, Any], engine: str, name: str, value: float | None, said: str
) -> None:
    from benchmarks.go2_velocity import missed, table

    row[engine][name] = value if name == "fall_rate" else {"mean": value, "low": value, "high": value}
    assert missed(row) == [f"seed {row['seed']}: {said}"]
    assert "> 0.03" in table([row])
