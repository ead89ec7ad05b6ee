"""kill -9 of one process of `launch finetune` on the twin: recorded episodes stay, and no process is left running."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.faults.commands import prepare
from benchmarks.faults.kills import counted
from robot_rl.cli.launch import private_domain

VICTIMS = ("launch", "finetune", "learner", "twin")
START, LONGEST = 60.0, 12.0
"""Longest time until the first episode is recorded, and from then until the kill, s."""


def processes(out: Path) -> dict[int, str]:
    """Return ids and command lines of a session's processes, found by a variable in their environment."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                mine = f"FAULTS_SESSION={out}".encode() in (folder / "environ").read_bytes().split(b"\0")
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:  # gone, or of another user
                continue
            if mine and line:
                found[int(folder.name)] = line
    return found


def victim(found: dict[int, str], name: str) -> int | None:
    """Return the id of the process that runs the command `name`; None if there is none."""
    pattern = r"cli[./]learner" if name == "learner" else rf"cli\.main {name}\b|robot-rl {name}\b"
    return next((pid for pid, line in sorted(found.items()) if re.search(pattern, line)), None)


def attempt(work: Path, number: int) -> tuple[int, str]:
    """Kill one process of a session at a random moment; return the number of episodes before that, and the outcome."""
    rng, made, out = random.Random(number), prepare(work), work / "session"
    name = VICTIMS[number % len(VICTIMS)]
    before: list[str] = []
    shutil.rmtree(out, ignore_errors=True)
    words = [
        sys.executable, "-m", "robot_rl.cli.main", "launch", "finetune", "robot:=panda", "twin:=true",
        "lockstep:=false",
        "task:=panda-lift", "teleop:=scripted", f"policy:={made['base']}", f"dataset:={made['demos']}", f"out:={out}",
        "minutes:=2",
    ]  # fmt: skip
    log = (work / "session.log").open("w")
    environment = os.environ | private_domain() | {"FAULTS_SESSION": str(out)}
    session = subprocess.Popen(words, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        end = time.monotonic() + START
        while not counted(out / "dataset") and session.poll() is None and time.monotonic() < end:
            time.sleep(0.5)
        time.sleep(rng.uniform(0, LONGEST))
        before = counted(out / "dataset")
        if (pid := victim(processes(out), name)) is None:
            return len(before), f"failure: no process {name}: {Path(log.name).read_text()[-600:]}"
        os.kill(pid, signal.SIGKILL)
        if name == "learner":  # the robot goes on without it
            time.sleep(3)
            session.send_signal(signal.SIGINT)
        end = time.monotonic() + 40
        while processes(out) and time.monotonic() < end:
            session.poll()
            time.sleep(0.1)
        if left := processes(out):
            return len(before), f"failure: after the end of {name}: {list(left.values())}"[:600]
        kept = counted(out / "dataset")[: len(before)] == before
        return len(before), "nothing lost" if kept else "failure: episodes are lost"
    except AssertionError as error:
        return len(before), f"failure: {error}"
    finally:
        for pid in processes(out):
            os.kill(pid, signal.SIGKILL)
        session.wait()
        log.close()
