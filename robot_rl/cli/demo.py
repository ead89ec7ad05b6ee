"""`robot-rl demo`: the whole journey, each stage the very command that a user would type."""

from __future__ import annotations

import json
import os
import random
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


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    demonstrations: int = 20
    updates: int = 2000
    steps: int = 40_000
    evaluations: int = 200
    robot_episodes: int = 20
    minutes: float = 3.0
    video_episodes: int = 3


QUICK = Scale(10, 500, 12_000, 100, 1, 0.2, 1)
"""Every stage in three minutes, enough to see that each one works and learns."""


@dataclass
class Demo:
    """A Panda learns to lift a cube, is deployed over ROS 2 topics, is corrected, and gets better.

    Seven stages, about ten minutes on two CPU cores; ends with report.html."""

    name: tyro.conf.Positional[str] = "panda-lift"
    """Which demonstration."""
    quick: bool = False
    """Every stage small, in three minutes, with checks that learning learned."""
    seed: int = 0
    """Seed of everything random."""
    out: Path | None = None
    """Folder; default runs/<date>-demo."""
    robot: bool = True
    """Include the stages on the twin: deploy, correct."""
    stages: dict[str, Any] = field(default_factory=dict, init=False)

    def run(self) -> int:
        """Run all stages; return the exit status of the first that fails."""
        from robot_rl.cli.console import console
        from robot_rl.errors import UnknownName
        from sim.tasks import tasks

        if self.name not in tasks.entries:
            raise UnknownName("demo", self.name, tasks.entries)
        folder = self.out or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-demo"
        folder.mkdir(parents=True)
        scale = QUICK if self.quick else Scale()
        environment = _private_domain()
        begin = time.monotonic()
        first = begin
        for number, (stage, command) in enumerate(self._commands(folder, scale), 1):
            console.rule(f"[bold]{number}. {stage}", align="left")
            console.print("$ robot-rl " + shlex.join(command), style="dim")
            start = time.monotonic()
            code = _finish([sys.executable, "-m", "robot_rl.cli.main", *command], environment)
            now = time.monotonic()
            self.stages[stage] = {"seconds": round(now - start, 1), "since_start": round(now - first, 1)}
            (folder / "demo.json").write_text(json.dumps(self.stages, indent=2))
            if code:
                console.print(f"stage {stage} failed with status {code}; what came before is in {folder}")
                return code
        console.rule(f"[bold]done in {(time.monotonic() - begin) / 60:.1f} minutes", align="left")
        return self._check(folder) if self.quick else 0

    def _commands(self, folder: Path, scale: Scale) -> list[tuple[str, list[str]]]:
        seed = ["--seed", str(self.seed)]
        task, data = self.name, str(folder / "collect" / "dataset")
        imitate, improve, tuned = (str(folder / n) for n in ("imitate", "improve", "finetune"))
        commands = [
            (
                "collect",
                ["collect", task, "--episodes", str(scale.demonstrations), "--out", data, *seed]
                + ["--log", str(folder / "collect")],
            ),
            (
                "imitate",
                ["train", task, "--recipe", "diffusion-bc", "--dataset", data, "--out", imitate, *seed]
                + ["--training.updates", str(scale.updates)],
            ),
            (
                "improve",
                ["train", task, "--recipe", "resfit", "--base", imitate, "--dataset", data, "--out", improve, *seed]
                + ["--training.steps", str(scale.steps)],
            ),
        ]
        for run, label in ((imitate, "cloned policy"), (improve, "after reinforcement learning")):
            commands.append((f"evaluate the {label}", self._evaluate(run, label, scale)))
        if self.quick:
            floor = self._evaluate(f"random:{task}", "random actions", scale, folder / "random")
            commands.append(("evaluate random actions", floor))
        if self.robot:
            twin = ["robot:=panda", "twin:=true", f"task:={task}"]
            before, after = folder / "deploy-before", folder / "deploy-after"
            episodes = f"episodes:={scale.robot_episodes}"
            commands += [
                (
                    "deploy on the twin",
                    ["launch", "arm", *twin, f"policy:={improve}", episodes, f"out:={before}"]
                    + ["label:=zero-shot on the twin"],
                ),
                (
                    "correct on the twin",
                    ["launch", "finetune", *twin, "teleop:=scripted", f"policy:={improve}", f"out:={tuned}"]
                    + [f"minutes:={scale.minutes}"],
                ),
                (
                    "deploy again",
                    ["launch", "arm", *twin, f"policy:={tuned}", episodes, f"out:={after}"]
                    + ["label:=after corrections"],
                ),
            ]
        commands.append(("report", ["report", str(folder), "--out", str(folder / "report.html")]))
        return commands

    def _evaluate(self, what: str, label: str, scale: Scale, out: Path | None = None) -> list[str]:
        folder = out or Path(what)
        video = [] if out else ["--video", str(folder / "videos" / "simulation.mp4")]
        return [
            "evaluate", what, "--label", label, "--episodes", str(scale.evaluations),
            "--out", str(folder / "evaluation.json"), *video, "--video-episodes", str(scale.video_episodes),
        ]  # fmt: skip

    def _check(self, folder: Path) -> int:
        """The quick demo's own test: cloning beats chance, reinforcement learning beats cloning."""
        from robot_rl.cli.console import console

        success = {
            n: json.loads((folder / n / "evaluation.json").read_text())["success"]
            for n in ("random", "imitate", "improve")
        }
        sound = success["random"] < success["imitate"] < success["improve"]
        console.print(("learning learned: " if sound else "learning did not learn: ") + str(success))
        return 0 if sound else 1


def _finish(command: list[str], environment: dict[str, str]) -> int:
    """Run a stage to its end, also after a signal: it saves what it has and ends by itself."""
    stage = subprocess.Popen(command, env=environment)
    before = signal.signal(signal.SIGTERM, lambda *_: stage.terminate())
    try:
        while True:
            try:
                return stage.wait()
            except KeyboardInterrupt:  # a terminal sends Ctrl-C to the stage as well
                continue
    finally:
        signal.signal(signal.SIGTERM, before)


def _private_domain() -> dict[str, str]:
    """This machine only, and a domain of its own, unless the user says otherwise."""
    environment = dict(os.environ)
    environment.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    environment.setdefault("ROS_DOMAIN_ID", str(random.SystemRandom().randint(100, 199)))
    return environment
