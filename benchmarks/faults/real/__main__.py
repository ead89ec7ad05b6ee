"""Inject each fault into each robot while a policy moves it, and compare what happens with the documented state.

    make sims
    python -m benchmarks.faults.real --robots fr3 ur5e go2

A fault is met if the robot is in the documented state within the documented time, if no command on the way was a jump,
and if all that was recorded before can be read. Results go to benchmarks/results/real_faults.json.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

from benchmarks.faults.real.documented import DOCUMENTED, Cell
from benchmarks.faults.real.judge import MOVES, WATCHED, damped, jump, met, settled
from benchmarks.faults.real.policy import save
from benchmarks.faults.real.stands import LONGEST, PROGRAM, STANDS, Stand
from real.bus import open_node
from robot_rl.cli.launch import private_domain
from robot_rl.training.run import provenance, write_json

RESULTS = Path(__file__).parents[2] / "results" / "real_faults.json"
ENDS = 2.0
"""Time for a policy's process to end after a fault, s."""
TRIES = 3
"""Attempts to get a robot moving."""
class NotMovingError(Exception):
    """The robot did not come so far as the fault: on a busy machine a Go2's guard damps late commands."""


def inject(stand: Stand, cell: Cell, policy: subprocess.Popen[bytes], closers: ExitStack) -> float:
    """Inject the fault; return its time, s."""
    if cell.kind in ("SIGKILL", "SIGSTOP"):
        pid = policy.pid if cell.what == "policy" else stand.pid(cell.what)
        begin = time.time()
        os.kill(pid, getattr(signal, cell.kind))
        if cell.kind == "SIGSTOP":
            closers.callback(lambda: os.kill(pid, signal.SIGCONT))
    elif cell.kind == "tell":
        begin = time.time()
        stand.tell(cell.what)
    else:
        begin = time.time()
        for each in stand.interfere(cell.what):
            closers.enter_context(closing(each))
    return begin


def attempt(kind: type[Stand], fault: str, cell: Cell, bundle: Path, folder: Path) -> dict[str, Any]:
    """Deploy the policy on a fresh robot, inject the fault, and return what happened."""
    out, log = folder / "run", folder / "deploy"
    with ExitStack() as opened:
        node = opened.enter_context(open_node("watch"))
        stand = opened.enter_context(closing(kind(node, folder)))
        words = ["--robot", kind.robot, "--episodes", "1", "--seconds", "600", "--video-episodes", "0"]
        words += ["--profile", "ur_robot_driver"] if kind.robot == "ur5e" else []
        policy = subprocess.Popen(
            [*PROGRAM, "deploy", str(bundle), *words, "--out", str(out)],
            stdout=log.open("wb"), stderr=subprocess.STDOUT,
        )  # fmt: skip
        opened.callback(policy.kill)
        record = out / "events.jsonl"
        until(lambda: record.exists() and '"running"' in record.read_text(), policy, log)
        time.sleep(1.5)
        now = time.time()
        moves = [each for each in stand.trace if each[0] > now - 0.5]
        if not moves or not moves[-1][2] or (kind.robot != "go2" and jump(moves, now - 0.5, kind.robot) < MOVES):
            raise NotMovingError(f"{kind.robot} does not move before the fault")
        before = record.read_text()
        with ExitStack() as closers:
            begin = inject(stand, cell, policy, closers)
            time.sleep(WATCHED)
            trace = list(stand.trace)
        with suppress(subprocess.TimeoutExpired):  # a stopped process goes on
            policy.wait(ENDS)
        later = [each for each in stand.trace if each[0] > begin + WATCHED]
        status, events = policy.poll(), record.read_text()
        policy.send_signal(signal.SIGINT)
        policy.wait(LONGEST)
        seconds = damped(trace, begin) if kind.robot == "go2" else settled(trace, begin)
        kept = record.read_text().startswith(before) and all(map(json.loads, record.read_text().splitlines()))
        stops = [event for event in map(json.loads, events.splitlines()) if event.get("event") == "stop"]
        found = {
            "fault": fault, "robot": kind.robot, "documented": cell.state, "within": cell.within,
            "seconds": None if seconds is None else round(seconds, 3),
            "speed": round(jump(trace + later, begin, kind.robot), 2),
            "status": status, "said": said_last(log, folder), "stops": stops[-1:], "kept": kept,
        }  # fmt: skip
    found["met"] = met(cell, found)
    return found


def tried(kind: type[Stand], fault: str, cell: Cell, bundle: Path) -> dict[str, Any]:
    """Return the row of a fault; try again if the robot does not come so far."""
    os.environ.update(private_domain())
    cpus = os.sched_getaffinity(0)
    row: dict[str, Any] = {}
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory() as folder:
            try:
                return attempt(kind, fault, cell, bundle, Path(folder))
            except NotMovingError as error:
                row = {"fault": fault, "robot": kind.robot, "met": False, "said": str(error)}
            finally:
                os.sched_setaffinity(0, cpus)
    return row


def said_last(log: Path, folder: Path) -> str:
    """Return the last line of a log, without the folder's name."""
    return "".join(log.read_text().strip().splitlines()[-1:]).replace(str(folder), "").strip()


def until(holds: Any, policy: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + LONGEST
    while not holds():
        said = [each.read_text()[-800:] for each in (log, *log.parent.glob("*-*"))]
        if policy.poll() is not None or time.monotonic() > end:
            raise NotMovingError(f"the policy has not begun (status {policy.poll()}): {said}")
        time.sleep(0.02)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robots", nargs="+", default=[kind.robot for kind in STANDS], help="robots")
    parser.add_argument("--faults", nargs="+", default=list(DOCUMENTED), help="faults")
    parser.add_argument("--again", action="store_true", help="only rows of the file that are not met")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    a = parser.parse_args()
    rows = {(row["fault"], row["robot"]): row for row in json.loads(a.out.read_text())["rows"]} if a.again else {}
    with tempfile.TemporaryDirectory() as root:
        bundles = {kind.robot: save(kind.robot, Path(root) / kind.robot) for kind in STANDS if kind.robot in a.robots}
        for fault in a.faults:
            for kind in STANDS:
                cell = DOCUMENTED[fault].get(kind.robot)
                known = rows.get((fault, kind.robot), {})
                if kind.robot not in a.robots or cell is None or known.get("met"):
                    continue
                row = rows[fault, kind.robot] = tried(kind, fault, cell, bundles[kind.robot])
                print(json.dumps(row), flush=True)
                write_json(a.out, {"rows": list(rows.values()), "provenance": provenance()})
    kept = [row["met"] for row in rows.values()]
    print(f"{sum(kept)} of {len(kept)} as documented")
    return int(not all(kept))


if __name__ == "__main__":
    sys.exit(main())
