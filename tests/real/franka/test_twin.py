"""Twin of an FR3: the driver of the real arm follows it, and hears its reports."""

import json
from pathlib import Path

import pytest

from policies.bundle import save_bundle
from robot_rl.cli.bench.loop import acting
from robot_rl.cli.main import main
from robot_rl.robots import robots


def test_policy_drives_the_twin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_bundle(acting(robots.get("fr3"), None), tmp_path / "bundle")
    words = ["deploy", tmp_path / "bundle", "--robot", "fr3", "--twin", "--episodes", 1, "--seconds", 1]
    words += ["--video-episodes", 0, "--out", tmp_path / "run", "--json"]
    assert main([str(word) for word in words]) == 0, capsys.readouterr().err
    seen = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert seen["stopped"] == "" and seen["steps"] == 20
