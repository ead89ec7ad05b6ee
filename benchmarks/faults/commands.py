"""The commands under test, small enough for hundreds of runs, each in a separate process."""

import multiprocessing
import os
import shutil
import sys
from pathlib import Path
from typing import Any

PUSH = "testbed:push"
NETWORK = ["--training.batch", "16", "--agent.hidden", "16", "16"]
COLLECT = ["collect", "panda-lift", "--num-envs", "2", "--skill", "STEADY", "--image-size", "32"]
CLONE = [
    "--recipe", "diffusion-bc", "--training.batch", "16", "--training.log-every", "10", "--policy.hidden", "32",
    "--policy.layers", "1", "--threads", "1",
]  # fmt: skip
BASE = ["train", "panda-lift", *CLONE, "--training.updates", "200"]
SUPERVISED = ["train", PUSH, *CLONE, "--training.updates", "1000", "--training.checkpoint-every", "50"]
OFF_POLICY = [
    "train", PUSH, "--recipe", "rlpd", "--training.offline-updates", "200", "--training.steps", "800",
    "--training.num-envs", "4", "--training.checkpoint-every", "80", "--training.log-every", "40",
    "--training.warmup", "80", "--training.learning-starts", "80", "--training.capacity", "600", *NETWORK,
]  # fmt: skip
"""Training by rlpd with offline updates and environment steps, and with a replay buffer that overflows."""
ON_POLICY = [
    "train", PUSH, "--recipe", "ppo", "--training.num-envs", "16", "--training.steps", "12000",
    "--training.checkpoint-every", "800", "--threads", "1",
]  # fmt: skip
HUMAN = [
    "train", "panda-lift", "--recipe", "hil-serl", "--training.steps", "160", "--training.publish-every", "20",
    "--training.checkpoint-every", "20", *NETWORK,
]  # fmt: skip
PRELOAD = [
    "torch", "torch._dynamo", "sim.collect", "sim.engines.mujoco", "tyro",
    "torch.utils.tensorboard", "robot_rl.recipes.rlpd", "robot_rl.recipes.hil_serl", "robot_rl.recipes.ppo",
    "robot_rl.cli.collect", "robot_rl.cli.train", "robot_rl.cli.evaluate", "plotly.offline", "sim.testbeds.push",
]  # fmt: skip
"""Modules that the fork server imports, so that the commands' processes start in milliseconds."""

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
    """Start a robot-rl command whose output goes to the file `log`; return the process."""
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
    """Return folders of arm demonstrations, testbed demonstrations and a cloned arm policy; make them if missing."""
    demos, push, base, log = work / "demos", work / "push", work / "base", work / "prepare.log"
    if not (base / "bundle" / "policy.json").exists():
        for folder in (demos, push, base):
            shutil.rmtree(folder, ignore_errors=True)
        commands = (
            [*COLLECT, "--episodes", "6", "--out", demos],
            ["collect", PUSH, "--num-envs", "2", "--episodes", "6", "--out", push],
            [*BASE, "--dataset", demos, "--out", base],
        )
        for argv in commands:
            assert run(argv, log) == 0, log.read_text()[-1000:]
    return {"demos": demos, "push": push, "base": base}


def loops(work: Path) -> dict[str, list[str | Path]]:
    """Return the command, without --out, for each kind of training loop."""
    made = prepare(work)
    return {
        "train, supervised": [*SUPERVISED, "--dataset", made["push"]],
        "train, off-policy": [*OFF_POLICY, "--dataset", made["push"]],
        "train, on-policy": [*ON_POLICY],
        "train, human in the loop": [*HUMAN, "--dataset", made["demos"], "--base", made["base"]],
    }
