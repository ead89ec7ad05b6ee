"""Twin of an FR3: the driver of the real arm follows it, and hears its reports."""

import json
from pathlib import Path

import pytest

from policies.bundle import save_bundle
from robot_rl.cli.bench.loop import acting
from robot_rl.cli.main import main
from robot_rl.data.motion import read_motion
from robot_rl.robots import robots


@pytest.mark.usefixtures("private_domain")
def test_policy_drives_the_twin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_bundle(acting(robots.get("fr3"), None), tmp_path / "bundle")
    words = ["deploy", tmp_path / "bundle", "--robot", "fr3", "--twin", "--episodes", 1, "--seconds", 1]
    words += ["--video-episodes", 0, "--out", tmp_path / "run", "--json"]
    assert main([str(word) for word in words]) == 0, capsys.readouterr().err
    seen = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert seen["stopped"] == "" and seen["steps"] == 20
    motion = read_motion(tmp_path / "run")
    assert motion.facts["task"] and motion.facts["whole"] and len(motion.setpoint) >= 100, "1 s and the way home"


@pytest.mark.usefixtures("private_domain")
def test_run_with_a_fault_says_so_and_doctor_finds_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_bundle(acting(robots.get("fr3"), None), tmp_path / "bundle")
    files = [str(tmp_path / "bundle"), "--out", str(tmp_path / "run")]
    words = ["deploy", *files, *["--robot", "fr3", "--episodes", "1", "--seconds", "1", "--video-episodes", "0"]]
    words += ["--fault", "velocity-noise=0.5"]
    assert main(words) == 2 and "--fault is of the twin" in capsys.readouterr().err
    assert main([*words, "--twin"]) == 0, capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["twin_faults"] == "velocity-noise=0.5"
    assert main(["doctor", "--log", str(tmp_path / "run")]) == 1
    assert "velocity-noise" in capsys.readouterr().out
