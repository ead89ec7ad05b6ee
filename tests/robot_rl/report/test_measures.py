"""What a task measures, in the report."""

from __future__ import annotations

from pathlib import Path

from robot_rl.report.folders import RunFolder
from robot_rl.report.instructions import instructions_section
from robot_rl.report.results import measures_section


def run(*evaluations: dict[str, object]) -> RunFolder:
    return RunFolder(Path("runs/walk"), "walk", evaluations=list(evaluations))


def test_each_evaluation_has_a_row_with_intervals_and_units() -> None:
    error = {"mean": 0.1234, "low": 0.11, "high": 0.13}
    rows = [
        {"label": "in MuJoCo", "where": "simulation", "engine": "mujoco", "velocity_error": error, "success": 0.9},
        {"where": "simulation", "engine": "genesis", "power": {"mean": 80.0, "low": None, "high": None}},
    ]
    page = str(measures_section([run(*rows)]))
    for text in ("in MuJoCo", "simulation, mujoco", "walk", "simulation, genesis", "0.123 [0.11, 0.13]"):
        assert text in page, text
    assert "Velocity error, m/s" in page and "Power, W" in page and "Success" not in page


def test_without_measures_there_is_no_section() -> None:
    assert measures_section([run({"label": "lift", "success": 0.9}), run()]) == []


def test_each_instruction_has_a_row_and_each_evaluation_that_asked_a_column() -> None:
    before = {"touch it": {"episodes": 40, "success": 0.25}, "lift it": {"episodes": 8, "success": 1.0}}
    after = {"lift it": {"episodes": 5, "success": 0.6}, "drop it": "damaged"}
    rows = [{"label": "before", "by_instruction": before}, {"label": "no words"}, {"by_instruction": after}]
    table, _ = instructions_section([run(*rows)])
    assert list(table.data["head"]) == ["Instruction", "before", "walk"]
    found = [[cell.replace("\u202f", " ") for cell in row] for row in table.data["rows"]]
    assert found == [["drop it", "", ""], ["lift it", "100 % (8)", "60 % (5)"], ["touch it", "25 % (40)", ""]]
    assert instructions_section([run({"label": "no words"})]) == []
