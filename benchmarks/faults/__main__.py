"""Inject kills, full disks and forged files; count the outcomes.

    python -m benchmarks.faults                        # all: hours on two cores; a kill takes 5 s, a full disk 15 s
    python -m benchmarks.faults --only forged --count 200

The command continues where it was stopped: each attempt is a line of WORK/attempts.jsonl. The table goes to
benchmarks/results/faults.json; the exit status is 1 if anything was lost, left half-written or answered by a traceback.
"""

import argparse
import json
import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.faults import disk, forged, kills, sessions
from benchmarks.faults.commands import prepare
from robot_rl.training.run import provenance, write_json

RESULTS = Path(__file__).parents[1] / "results" / "faults.json"
COUNTS = {"forged": 1000, "disk": 10, "kill": 40, "session": 40}
GOOD = ("read", "refused", "nothing lost", "said so", "it fitted")


def attempts(kind: str, count: int, work: Path, done: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield attempts of one kind of fault until each case has `count`, those in `done` included."""
    made = prepare(work)
    if kind == "forged":
        uses = {"dataset": (forged.use_dataset, made["demos"]), "bundle": (forged.use_bundle, made["base"] / "bundle")}
        for name, (use, valid) in uses.items():
            for number in range(done[f"forged: {name}"], count):
                yield {"case": f"forged: {name}", "result": forged.attempt(use, valid, work / "forge", number)}
    elif kind == "disk":
        if not disk.available(work):
            sys.stderr.write("full disk: skipped, for no small disk can be mounted here (`unshare` of util-linux)\n")
            return
        for name in disk.writers(work):
            for number in range(done[f"full disk: {name}"], count):
                yield {"case": f"full disk: {name}", "result": disk.attempt(name, work / "disk", number)}
    elif kind == "kill":
        for name, argv in kills.cases(work).items():
            folder = work / name.replace(", ", "-").replace(" ", "-")
            folder.mkdir(exist_ok=True)
            had, rng = done[f"kill: {name}"], random.Random(done[f"kill: {name}"])
            while had < count:
                for row in kills.session(name, argv, folder, rng, count - had):
                    had += 1
                    yield row
    else:
        for number in range(done["kill: finetune"], count):
            episodes, result = sessions.attempt(work, number)
            yield {
                "case": "kill: finetune",
                "victim": sessions.VICTIMS[number % len(sessions.VICTIMS)],
                "episodes": episodes,
                "result": result,
            }


def table(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return the number of attempts with each outcome, by case."""
    found: dict[str, Counter[str]] = {}
    for row in rows:
        result = row["result"] if row["result"].startswith(GOOD) else "failure"
        found.setdefault(row["case"], Counter())[result] += 1
    return {case: dict(counts) for case, counts in found.items()}


def main() -> int:
    """Run the missing attempts, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/faults"), help="folder for everything that is made")
    parser.add_argument("--only", choices=COUNTS, help="one kind")
    parser.add_argument("--count", type=int, default=0, help="attempts of each case; default by kind")
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    a = parser.parse_args()
    work = a.work.resolve()
    if a.fresh:
        shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    file = work / "attempts.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    made = provenance()
    for kind in [a.only] if a.only else COUNTS:
        done = Counter(row["case"] for row in rows)
        for row in attempts(kind, a.count or COUNTS[kind], work, done):
            rows.append(row)
            with file.open("a") as out:
                out.write(json.dumps(row) + "\n")
            if not row["result"].startswith(GOOD):
                sys.stderr.write(f"{row['case']}: {row['result']}\n")
            write_json(RESULTS, {"attempts": table(rows), "provenance": made})
    found = table(rows)
    for case, counts in found.items():
        sys.stdout.write(f"{case:34} " + ", ".join(f"{number} {what}" for what, number in counts.items()) + "\n")
    return int(any("failure" in counts for counts in found.values()))


if __name__ == "__main__":
    sys.exit(main())
