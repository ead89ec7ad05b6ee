"""`robot-rl bench gpu` in a tiny version on the CPU."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from robot_rl.cli.main import main

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not find_spec("mujoco_warp"), reason="mujoco_warp is not installed"),
]
TINY = ["bench", "gpu", "--device", "cpu", "--engines", "warp", "--sizes", "4", "--seconds", "1", "--updates", "20"]


def test_tiny_version_measures_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "gpu.json"
    assert main([*TINY, "--walk", "8", "--walk-steps", "600", "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["device"] == "cpu" and json.loads(out.read_text())["sac"] == result["sac"]
    row = result["warp, 4"]
    assert row["steps_per_second"] > 0 and row["share"] == pytest.approx(row["steps_per_second"] / row["bare_physics"])
    assert row["share"] < 1 and row["divergences"] == 0 and result["sac"]["updates_per_second"] > 1
    walk = result["walk, 8"]
    assert walk["seconds"] is None and walk["velocity_error"] > 0.2 and walk["environment_steps"] >= 8 * 24


def test_what_fails_or_comes_too_late_is_said(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("robot_rl.cli.bench.gpu.share_of_physics", fail)
    assert main([*TINY, "--walk", "0", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["warp, 4"] == {"failed": "RuntimeError: out of memory"} and "updates_per_second" in result["sac"]
    assert main([*TINY, "--walk", "0", "--budget", "1e-9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sac"] == {"left_out": "the budget was used up"}
