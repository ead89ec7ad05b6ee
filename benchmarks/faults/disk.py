"""Fill the disk during each writing command: the command must report this in one sentence, and continue once there is
space.

Each command writes to a small tmpfs in its own mount namespace. This needs no root rights if the kernel lets users
create namespaces (`unshare --user --map-root-user --mount`), as usual on Ubuntu before 24.04, Debian and Fedora.
"""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.faults.commands import COLLECT, loops, prepare, run
from benchmarks.faults.kills import counted, weights

UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]


def available(work: Path) -> bool:
    """Return whether a small disk can be mounted here."""
    (work / "mount").mkdir(parents=True, exist_ok=True)
    words = [*UNSHARE, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(work / "mount")]
    return (
        shutil.which("unshare") is not None and subprocess.run(words, capture_output=True, check=False).returncode == 0
    )


def writers(work: Path) -> dict[str, list[str | Path]]:
    """Return the commands that write files, without their --out."""
    made = prepare(work)
    found: dict[str, list[str | Path]] = {"collect": [*COLLECT, "--episodes", "6"]}
    found |= loops(work)
    found["evaluate"] = ["evaluate", made["base"], "--episodes", "2", "--num-envs", "2"]
    found["report"] = ["report", made["base"]]
    return found


def attempt(name: str, work: Path, seed: int) -> str:
    """Run a writing command on a full disk in a new mount namespace; return the outcome."""
    (work / "mount").mkdir(parents=True, exist_ok=True)
    words = [*UNSHARE, sys.executable, "-m", "benchmarks.faults.disk", name, str(work), str(seed)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        return f"failure: {done.stderr[-800:]}"
    return str(json.loads(done.stdout.splitlines()[-1])["result"])


def inside(name: str, work: Path, rng: random.Random) -> str:
    """Run a writing command on a disk of a random size, then again with enough space; return the outcome."""
    argv, disk, log = writers(work)[name], work / "mount", work / "disk.log"
    single = name in ("evaluate", "report")
    sizes = work / "sizes.json"
    known: dict[str, int] = json.loads(sizes.read_text()) if sizes.exists() else {}
    reference = work / f"reference-{name.replace(', ', '-').replace(' ', '-')}"
    target = reference / "out" if single else reference
    if name not in known:
        shutil.rmtree(reference, ignore_errors=True)
        assert run([*argv, "--out", target], log) == 0, log.read_text()[-1000:]
        known[name] = sum(-(-f.stat().st_size // 4096) * 4096 for f in reference.rglob("*") if f.is_file())
        sizes.write_text(json.dumps(known))
    size = int(known[name] * rng.uniform(0, 1)) // 4096 * 4096
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size + 4096}", "tmpfs", disk], check=True)
    (disk / "other").write_bytes(b"0" * 4096)  # a tmpfs has at least one page, and a small file fits in it
    out = disk / "out"
    log.unlink(missing_ok=True)
    code = run([*argv, "--out", out], log)
    said = log.read_text() if log.exists() else ""
    if code == 0:
        return "it fitted"
    sentence = [line for line in said.splitlines() if line.startswith("robot-rl: ")]
    if "Traceback" in said or "defect" in said or len(sentence) != 1 or "pace" not in sentence[0] + said:
        return f"failure: status {code} with {size} bytes of {known[name]}: {said[-600:]}"
    subprocess.run(["mount", "-o", "remount,size=1g", disk], check=True)
    begun = (out / "config.json").exists() or (out / "meta" / "info.json").exists()
    log.unlink()
    if run([*argv, "--out", out, *(["--resume"] if begun else [])], log):
        return f"failure: does not go on: {log.read_text()[-600:]}"
    if name == "collect":
        assert len(counted(out)) == len(counted(target))
    elif not single and "human" not in name and weights(out) != weights(target):
        return "failure: other weights than on a large disk"
    return "said so, went on with space"


if __name__ == "__main__":
    try:
        result: Any = inside(sys.argv[1], Path(sys.argv[2]), random.Random(" ".join(sys.argv[1::2])))
    except Exception as error:
        result = f"failure: {type(error).__name__}: {error}"
    sys.stdout.write("\n" + json.dumps({"result": result}) + "\n")
