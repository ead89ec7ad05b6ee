"""The bars of `benchmarks/go2_velocity.py`: each of them can be missed, and is said."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A seed that misses nothing: the first of those on record."""
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
        ("mujoco", "fall_rate", 0.03, "fall_rate in mujoco: 0.03 is not below 0.02"),
        ("mujoco", "foot_slip", 0.11, "foot_slip in mujoco: 0.11 is not below 0.1"),
        ("mujoco", "swing_height", 0.029, "swing_height in mujoco: 0.029 is not above 0.03"),
        ("mujoco", "swing_height", None, "swing_height in mujoco: None is not above 0.03"),
        ("genesis", "velocity_error", 0.31, "velocity_error in genesis: 0.31 is not below 0.3"),
        ("genesis", "fall_rate", 0.06, "fall_rate in genesis: 0.06 is not below 0.05"),
        ("genesis", "foot_slip", 0.1, "foot_slip in genesis: 0.1 is not below 0.1"),
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


def test_the_table_of_the_readme_has_the_falls_on_record() -> None:
    rows = json.loads((ROOT / "benchmarks" / "results" / "go2_velocity.json").read_text())["rows"]
    readme = (ROOT / "README.md").read_text().splitlines()
    for engine, start in (("mujoco", "| falls |"), ("genesis", "| falls in Genesis |")):
        cells = []
        for row in rows:
            seen = row[engine]
            low, high = (f"{100 * seen[f'fall_rate_{end}']:.1f} %" for end in ("low", "high"))
            cells.append(f"{round(seen['fall_rate'] * seen['episodes'])} of {seen['episodes']} [{low}, {high}]")
        assert f"{start} {' | '.join(cells)} |" in readme


def test_the_controller_alone_stands_beside_the_seeds(
    row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured once, in MuJoCo, over as many episodes."""
    from benchmarks import go2_velocity

    said = []

    def robot_rl(*words: str) -> None:
        said.append(words)
        if words[0] == "evaluate":
            seen = {name: row["mujoco"][name] for name in ("device", "action_change", *go2_velocity.MEASURES)}
            seen |= {"episodes": int(words[5]), "success": 1.0, "success_low": 0.9, "success_high": 1.0}
            Path(words[-1]).parent.mkdir(exist_ok=True)
            Path(words[-1]).write_text(json.dumps(seen))

    monkeypatch.setattr(go2_velocity, "robot_rl", robot_rl)
    monkeypatch.setattr("sys.argv", ["go2_velocity", "--seeds", "2", "--out", str(tmp_path / "out.json")])
    assert go2_velocity.main() == 0
    measured = [(words[1].split(":")[0], *words[3:8:2]) for words in said if words[0] == "evaluate"]
    both = [("mujoco", "1000", "250"), ("genesis", "200", "100")]
    assert measured[0] == ("zero", *both[0]) and [words[1:] for words in measured[1:]] == 2 * both
    out = json.loads((tmp_path / "out.json").read_text())
    assert out["zero"]["episodes"] == 1000 and len(out["rows"]) == 2 and "zero" not in out["rows"][0]
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()].count("zero") == 1
