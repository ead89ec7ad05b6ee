"""A policy on an SO-101 through the launch file: LeRobot's own code moves the servos."""

import json
import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.franka.tracker import Tracker
from policies.bundle import save_bundle
from robot_rl.cli.bench.loop import acting
from robot_rl.robots import robots
from robot_rl.robots.so101 import SO101
from tests.real.lerobot.conftest import LEROBOT, RANGES, TICK
from tests.real.lerobot.servos import Servos

pytestmark = [pytest.mark.realtime, pytest.mark.timeout(180)]


def test_a_policy_turns_the_arm(
    servos: Servos, calibration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LEROBOT.exists(), "make sims"
    bundle = acting(robots.get("so101"), None)
    with torch.no_grad():
        bundle.policy.actor[-1].bias[1] = 0.2  # type: ignore[index,union-attr]
    save_bundle(bundle, tmp_path / "bundle")
    own = tmp_path / "lerobot" / "robots" / "so_follower"  # where LeRobot looks for it
    own.mkdir(parents=True)
    shutil.copy(calibration / "mine.json", own)
    for k, (home, (low, high)) in enumerate(zip(SO101.home, RANGES, strict=False), 1):
        servos.all[k].position = (low + high) / 2 + (home + 0.05) / TICK
    monkeypatch.setenv("ROS_DOMAIN_ID", str(random.SystemRandom().randint(200, 229)))
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    variables = {"LEROBOT_PYTHON": str(LEROBOT), "HF_LEROBOT_CALIBRATION": str(tmp_path / "lerobot")}
    tracker, ended = Tracker("target", lambda seed: None), threading.Event()

    def track() -> None:
        while not ended.wait(1 / 30):
            tracker.publish((0.22, 0.0, 0.1))

    thread = threading.Thread(target=track)
    thread.start()
    words = ["launch", "arm", f"policy:={tmp_path / 'bundle'}", "robot:=so101", f"port:={servos.port}", "id:=mine"]
    words += ["episodes:=1", "seconds:=2", "camera:=false", f"out:={tmp_path / 'run'}"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "robot_rl.cli.main", *words], env=os.environ | variables, capture_output=True,
            text=True, timeout=150, check=False,
        )  # fmt: skip
    finally:
        ended.set()
        thread.join()
        tracker.node.close()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    seen = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert seen["stopped"] == "" and seen["steps"] == 40
    pan = np.array([written[1] for _, written in servos.goals]) - (RANGES[0][0] + RANGES[0][1]) / 2
    assert pan.min() * TICK < -0.15, "to the left, which is negative"
    assert servos.all[1].torque
