"""Thresholds of `benchmarks/go2_velocity.py`."""

import copy
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_recorded_seeds_meet_all_thresholds_and_misses_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.go2_velocity import THRESHOLDS, missed, table

    first = json.loads((ROOT / "benchmarks" / "results" / "go2_velocity.json").read_text())["rows"][0]
    assert missed(first) == [] and set(THRESHOLDS) == {"mujoco", "genesis"}
    cases = (("mujoco", "yaw_error", 0.2), ("mujoco", "swing_height", None), ("genesis", "fall_rate", 1))
    for engine, name, value in cases:
        row = copy.deepcopy(first)
        row[engine][name] = value if name == "fall_rate" else {"mean": value, "low": value, "high": value}
        (message,) = missed(row)
        assert message.startswith(f"seed {row['seed']}: {name} in {engine}: {value} is not ")
        assert "> 0.03" in table([row])
