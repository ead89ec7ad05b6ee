"""Commands get kill -9 at random moments, then --resume, until they finish: nothing recorded may be lost.

Training in simulation must end with the weights of an uninterrupted run. Training with a human in the loop, whose
operator starts again after a kill, must continue from its checkpoint. Demonstrations in a dataset must not change.
"""

import hashlib
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.faults.commands import COLLECT, loops, prepare, run, start

EPISODES = 6
ANEW = "train, human in the loop"
"""Case that resumes with new episodes, so that its final weights differ from those of a run without a kill."""


def weights(folder: Path) -> str:
    """Return a hash of the weights of a run's bundle, which must load."""
    from policies.bundle import load_bundle

    load_bundle(folder)
    return hashlib.sha256((folder / "bundle" / "policy.safetensors").read_bytes()).hexdigest()


def counted(folder: Path) -> list[str]:
    """Return a hash of each episode that a dataset counts. Raises AssertionError for damage that no kill explains."""
    from robot_rl.data import Dataset, verify

    if not (folder / "meta" / "info.json").exists():
        return []
    mended = ("moves it aside", "writes it anew")
    problems = [text for text in verify(folder) if not any(words in text for words in mended)]
    assert not problems, problems
    data = Dataset(folder)
    if not data.num_episodes:
        return []
    columns = data.columns(["action", "observation.state", "index"])
    rows = [slice(e.start, e.start + e.length) for e in data.episodes]
    return [hashlib.sha256(b"".join(c[at].numpy().tobytes() for c in columns.values())).hexdigest() for at in rows]


def check_collect(folder: Path, before: list[str]) -> list[str]:
    """Check that the episodes with the hashes `before` are unchanged; return the hashes of all current episodes."""
    now = counted(folder)
    assert now[: len(before)] == before, f"{len(before)} episodes were counted, and now are others"
    return now


def check_training(folder: Path, before: int) -> int:
    """Check that the checkpoint is readable and its step is not less than `before`; return its step."""
    from robot_rl.training.checkpoint import load_state

    file = folder / "checkpoint.safetensors"
    step = int(load_state(file)["step"]) if file.exists() else 0
    assert step >= before, f"the checkpoint went back from step {before} to {step}"
    return step


def check_single_publisher(group: int) -> None:
    """Check that no process of a process group outlives the first one, which is reaped a moment after its end."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    os.killpg(group, signal.SIGKILL)
    raise AssertionError("a process was left over")


def session(name: str, argv: list[str | Path], work: Path, rng: random.Random, wanted: int) -> Iterator[dict[str, Any]]:
    """Kill a command at random moments and resume it until it finishes; yield the results of up to `wanted` kills."""
    reference, out = work / "reference", work / "victim"
    took = work / "seconds"
    if not took.exists():
        shutil.rmtree(reference, ignore_errors=True)
        run(["--version"], work / "log")  # the server of processes has started
        begin = time.monotonic()
        assert run([*argv, "--out", reference], work / "log") == 0, (work / "log").read_text()[-2000:]
        took.write_text(str(time.monotonic() - begin))
    shutil.rmtree(out, ignore_errors=True)
    collects = name == "collect"
    seen: Any = [] if collects else 0
    kills = 0
    while True:
        log = work / "log"
        log.unlink(missing_ok=True)
        process = start(
            [*argv, "--out", out, *(["--resume"] if (out / "config.json").exists() or collects else [])], log
        )
        delay = rng.uniform(0, float(took.read_text())) if kills < wanted else 600.0
        process.join(delay)
        killed = process.exitcode is None
        process.kill()
        process.join()
        problem = ""
        try:
            check_single_publisher(process.pid)
            if not killed and process.exitcode:
                raise AssertionError(f"status {process.exitcode}: {log.read_text()[-800:]}")
            seen = check_collect(out, seen) if collects else check_training(out, seen)
            if not killed and not collects and name != ANEW:
                assert weights(out) == weights(reference), "other weights than without a kill"
            elif not killed:
                assert len(seen) == EPISODES if collects else weights(out)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"[:1000]
        if killed or problem:
            kills += 1
            yield {"case": f"kill: {name}", "after": round(delay, 3), "result": problem or "nothing lost"}
        if not killed or problem:
            return


def cases(work: Path) -> dict[str, list[str | Path]]:
    """Return the commands to kill, by the name of the case, without --out."""
    made = prepare(work)
    collect: list[str | Path] = [*COLLECT, "--episodes", str(EPISODES), "--seed", "5"]
    return {"collect": collect, **loops(work)} if made else {}
