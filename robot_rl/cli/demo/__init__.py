"""`robot-rl demo`: from training to the twin of a robot; each stage is a command."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import tyro

from robot_rl.util.limits import Seed


@dataclass
class Demo:
    """Run a demonstration and write report.html. Two CPU cores take 11 minutes (panda-lift), 9 (go2) or 25 (vla).

    panda-lift: a Panda learns to lift a cube, then is deployed and corrected on the twin. go2: a Go2 learns to walk,
    is evaluated in Genesis and on the twin, and is steered, stopped and reset. vla: a small vision-language-action
    policy is cloned, improved by reinforcement learning, and given instructions on the twin."""

    name: tyro.conf.Positional[str] = "panda-lift"
    """Demonstration: panda-lift, go2 or vla."""
    quick: bool = False
    """Run small stages, three minutes in total, and check that the policy learned."""
    seed: Seed = 0
    """Seed of everything random, except the held-out episodes, which never change."""
    out: Path | None = None
    """Folder; default runs/<date>-<time>-demo."""
    robot: bool = True
    """Include the stages on the twin."""
    stages: dict[str, Any] = field(default_factory=dict, init=False)

    def run(self) -> int:
        """Run all stages; return the exit status of the first that fails."""
        from robot_rl.cli.console import console
        from robot_rl.cli.demo.journeys import JOURNEYS, Options
        from robot_rl.cli.launch import private_domain
        from robot_rl.util.errors import ConfigError, UnknownName

        if self.name not in JOURNEYS:
            raise UnknownName("demo", self.name, JOURNEYS)
        journey = JOURNEYS[self.name]
        folder = self.out or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-demo"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise ConfigError(f"{folder} exists; choose another --out") from None
        stages = journey.stages(Options(folder, self.seed, self.quick, self.robot))
        stages.append(("report", ["report", str(folder), "--out", str(folder / "report.html")]))
        environment = private_domain() | os.environ  # the user's setting wins
        begin = time.monotonic()
        for number, (stage, command) in enumerate(stages, 1):
            console.rule(f"[bold]{number}. {stage}", align="left")
            line = "$ robot-rl " + shlex.join(command)  # unwrapped, for copy and paste
            console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)
            start = time.monotonic()
            code = _finish([sys.executable, "-m", "robot_rl.cli.main", *command], environment)
            now = time.monotonic()
            self.stages[stage] = {"seconds": round(now - start, 1), "since_start": round(now - begin, 1)}
            (folder / "demo.json").write_text(json.dumps(self.stages, indent=2))
            if code:
                console.print(f"stage {stage} failed with status {code}; earlier results are in {folder}")
                return code
        console.rule(f"[bold]done in {(time.monotonic() - begin) / 60:.1f} minutes", align="left")
        if self.quick:
            learned = journey.check(folder)
            console.print("the policy learned" if learned else "the policy did not learn")
            return 0 if learned else 1
        return 0


def _finish(command: list[str], environment: dict[str, str]) -> int:
    """Run a stage to its end, even after a signal, so that it saves its work; return its exit status.

    Signals raise no exception here: between the stage's end and the record of its status, the status would be lost.
    """
    stage: subprocess.Popen[bytes] | None = None
    received: set[int] = set()

    def on_signal(number: int, frame: object) -> None:
        received.add(number)
        if stage and number == signal.SIGTERM:  # a terminal sends SIGINT to the stage itself
            stage.terminate()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        stage = subprocess.Popen(command, env=environment)
        if signal.SIGTERM in received:  # during the start
            stage.terminate()
        return stage.wait() or (128 + min(received) if received else 0)  # the stage may have finished despite a signal
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
