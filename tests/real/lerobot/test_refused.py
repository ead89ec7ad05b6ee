"""Arms of LeRobot that `robot-rl robot` does not hold, and what it says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from robot_rl.cli.main import main
from tests.real.lerobot.conftest import command
from tests.real.lerobot.servos import GOAL, TORQUE, Servos


def refused(words: list[str], status: int = 1) -> str:
    """Return what a command that must fail says, in one line."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status and "Traceback" not in done.stderr, done.stderr
    return " ".join(done.stderr.split())


@pytest.mark.parametrize("change", ["missing", "other"])
def test_an_arm_that_is_not_calibrated_keeps_its_torque(servos: Servos, calibration: Path, change: str) -> None:
    file = calibration / "mine.json"
    if change == "missing":
        file.unlink()
    else:
        entries = json.loads(file.read_text())
        entries["elbow_flex"]["homing_offset"] += 1
        file.write_text(json.dumps(entries))
    said = refused(command(servos, calibration))
    assert f"lerobot-calibrate --robot.type=so101_follower --robot.port={servos.port} --robot.id=mine" in said
    assert not servos.written & {TORQUE, GOAL}


def test_a_missing_servo_is_named(servos: Servos, calibration: Path) -> None:
    servos.all[4].silent = True
    assert "Missing motor IDs: - 4" in refused(command(servos, calibration))


def test_an_arm_far_beyond_its_limits_is_not_moved(servos: Servos, calibration: Path) -> None:
    servos.all[3].position = 3900
    assert "beyond its limits (elbow_flex" in refused(command(servos, calibration))


def test_a_port_that_does_not_exist_is_named(servos: Servos, calibration: Path) -> None:
    words = command(servos, calibration)
    words[words.index(servos.port)] = "/dev/none"
    assert "there is no serial port /dev/none; there are: " in refused(words, 2)


@pytest.mark.parametrize("name", ["", "other"])
def test_calibrations_of_other_arms_are_listed(servos: Servos, calibration: Path, name: str) -> None:
    words = command(servos, calibration)
    at = words.index("--id")
    words[at : at + 2] = ["--id", name] if name else []
    missing = f"there is no calibration '{name}'" if name else "no --id is given"
    assert f"{missing}, and in {calibration} are those of mine: name the arm's by --id" in refused(words)


@pytest.mark.parametrize(("words", "said", "status"), [
    (["so101"], "robot-rl robot so101 --port DEVICE", 2),
    (["so101", "--port", "/dev/null", "--lerobot-python", "/no/python"], "cannot start /no/python: No such file", 1),
    (["so101", "--port", "/dev/null", "--lerobot-python", sys.executable], "has no module lerobot; install LeRobot", 1),
    (["so101", "--port", "/dev/null", "--lerobot-python", "/bin/true"],
     "/bin/true ended with status 0 and said nothing; --lerobot-python must name a Python with LeRobot", 1),
])  # fmt: skip
def test_wrong_options_are_named(words: list[str], said: str, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["robot", *words]) == status
    assert said in " ".join(capsys.readouterr().err.split())
