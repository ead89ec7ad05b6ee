"""Servos of an SO-101 behind a pseudo-terminal, and a robot process before them, with LeRobot's own code between."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from real.bus import open_node
from tests.real.franka.conftest import Bench as FrankaBench
from tests.real.lerobot.servos import HIGH, LOW, OFFSET, Servos

ROOT = Path(__file__).parents[3]
LEROBOT = Path(os.environ.get("LEROBOT_PYTHON", ROOT / ".venv-lerobot" / "bin" / "python"))
MOTORS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
RANGES = ((800, 3300), (900, 3250), (950, 3150), (850, 3200), (0, 4095), (2000, 3500))
"""Calibrated range of each motor, ticks, all with other middles."""
TICK = 2 * np.pi / 4095
"""As LeRobot counts, rad."""


class Bench(FrankaBench):
    """A robot process, and a plain node that commands it."""

    @property
    def q(self) -> list[float]:
        """Return the newest joint positions of the arm, rad."""
        assert self.states.latest
        return list(self.states.latest.msg.position[:5])

    @property
    def width(self) -> float:
        """Return the newest distance between the jaws, m."""
        assert self.states.latest
        return float(self.states.latest.msg.position[5])


@pytest.fixture
def servos() -> Iterator[Servos]:
    """Calibrated servos without torque, near home."""
    servos = Servos()
    for k, (low, high) in enumerate(RANGES, 1):
        servo = servos.all[k]
        servo.put(LOW, low)
        servo.put(HIGH, high)
        servo.put(OFFSET, 100 + k)
        servo.position = (low + high) / 2 + 50 * k
    yield servos
    servos.unplug()


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    """LeRobot's calibration of the arm "mine", as these servos have it."""
    entries = {
        name: {"id": k, "drive_mode": 0, "homing_offset": 100 + k, "range_min": low, "range_max": high}
        for k, (name, (low, high)) in enumerate(zip(MOTORS, RANGES, strict=True), 1)
    }
    (tmp_path / "mine.json").write_text(json.dumps(entries))
    return tmp_path


def command(servos: Servos, calibration: Path, *options: str) -> list[str]:
    assert LEROBOT.exists(), "make sims"
    words = ["robot", "so101", "--port", servos.port, "--id", "mine", "--calibration-dir", str(calibration)]
    return [sys.executable, "-m", "robot_rl.cli.main", *words, "--lerobot-python", str(LEROBOT), *options]


@pytest.fixture
def hold(servos: Servos, calibration: Path) -> Iterator[Callable[..., Bench]]:
    """Start a robot process with options."""
    opened = []

    def start(*options: str) -> Bench:
        domain = str(random.SystemRandom().randint(200, 229))
        environment = {"ROS_DOMAIN_ID": domain, "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
        words = command(servos, calibration, *options)
        process = subprocess.Popen(
            words, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            node = open_node("plain")
        opened.append((process, node))
        bench = Bench(node, process)
        bench.environment = environment
        bench.until(lambda: bench.states.latest and bench.reports and bench.commands.matched, 40)
        return bench

    yield start
    for process, node in opened:
        node.close()
        process.terminate()
        process.communicate(timeout=20)
