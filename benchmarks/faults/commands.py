"""The commands under test, small enough for hundreds of runs, and how one runs in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
from pathlib import Path
from typing import Any

NETWORK = ["--training.batch", "16", "--agent.hidden", "16", "16"]
COLLECT = ["collect", "panda-lift", "--num-envs", "2", "--skill", "STEADY", "--image-size", "32"]
BASE = [
    "train", "panda-lift", "--recipe", "diffusion-bc", "--training.updates", "400", "--training.batch", "16",
    "--training.checkpoint-every", "40", "--training.log-every", "10", "--policy.hidden", "32", "--policy.layers", "1",
    "--threads", "1",
]  # fmt: skip
OFF_POLICY = [
    "train", "panda-lift", "--recipe", "resfit", "--training.steps", "640", "--training.num-envs", "4",
    "--training.checkpoint-every", "64", "--training.log-every", "32", "--training.warmup", "128",
    "--training.learning-starts", "64", "--training.capacity", "600", *NETWORK,
]  # fmt: skip
ON_POLICY = [
    "train", "go2-velocity", "--recipe", "ppo", "--training.num-envs", "8", "--training.steps", "4000",
    "--training.checkpoint-every", "400", "--threads", "1",
]  # fmt: skip
HUMAN = [
    "train", "panda-lift", "--recipe", "hil-serl", "--training.steps", "400", "--training.publish-every", "20",
    *NETWORK,
]  # fmt: skip
PRELOAD = [
    "torch", "diffusers.optimization", "diffusers.training_utils", "sim.collect", "sim.engines.mujoco", "tyro",
    "torch.utils.tensorboard", "robot_rl.recipes.resfit", "robot_rl.recipes.hil_serl", "robot_rl.recipes.ppo",
    "robot_rl.cli.collect", "robot_rl.cli.train", "robot_rl.cli.evaluate", "plotly.offline",
]  # fmt: skip
"""Imports of the server that processes are forked from: they start in milliseconds."""

_server: Any = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(PRELOAD)


def _command(argv: list[str], log: str) -> None:
    os.setsid()
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    from robot_rl.cli.main import main

    sys.exit(main(argv))


def start(argv: list[str | Path], log: Path) -> Any:
    """Start a robot-rl command; its output goes to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    process = _server.Process(target=_command, args=([str(word) for word in argv], str(log)))
    process.start()
    return process


def run(argv: list[str | Path], log: Path, seconds: float = 600) -> int:
    """Run a command to its end; return its exit status."""
    process = start(argv, log)
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError(f"{argv} took longer than {seconds:g} s")
    return int(process.exitcode)


def prepare(work: Path) -> dict[str, Path]:
    """Return demonstrations and a cloned policy, made once."""
    demos, base = work / "demos", work / "base"
    if not (base / "bundle" / "policy.json").exists():
        for folder in (demos, base):
            shutil.rmtree(folder, ignore_errors=True)
        assert run([*COLLECT, "--episodes", "6", "--out", demos], work / "prepare.log") == 0
        assert run([*BASE, "--dataset", demos, "--out", base], work / "prepare.log") == 0
    return {"demos": demos, "base": base}


def loops(work: Path) -> dict[str, list[str | Path]]:
    """Return the training command of each loop, without --out."""
    made = prepare(work)
    data: list[str | Path] = ["--dataset", made["demos"]]
    improve = [*data, "--base", made["base"]]
    return {
        "train, supervised": [*BASE, *data],
        "train, off-policy": [*OFF_POLICY, *improve],
        "train, on-policy": [*ON_POLICY],
        "train, human in the loop": [*HUMAN, *improve],
    }
