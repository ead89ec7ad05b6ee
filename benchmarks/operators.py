"""Correct a policy on the twin for ten minutes, with operators who err as people do, and measure it before and after.

    python -m benchmarks.operators runs/demo --work runs/operators

`runs/demo` is a folder of `robot-rl demo`: the policy is its improve/, the demonstrations are those that it was cloned
from. Each session is one `robot-rl launch finetune … teleop:=scripted operator:=KIND` in lockstep; then the policy is
deployed on the twin for held-out episodes without an operator. Stages that are done are not repeated, so that several
processes may share --work if they have different --kinds. Results: benchmarks/results/operators.json. Passed, for
each kind: the lower bound of success over all sessions is above 0.8, and the operator took over less often in the last
third of the sessions than in the first.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.suites import Stages, private_bus
from robot_rl.operators.scripted import PEOPLE
from robot_rl.training.run import provenance, write_json
from robot_rl.util.statistics import wilson

RESULTS = Path(__file__).parent / "results" / "operators.json"
FLOOR = 0.8
"""Success that the lower bound must exceed."""


def counted(folders: list[Path]) -> dict[str, Any]:
    """Return success over the episodes of deployments, with its 95 % Wilson interval."""
    found = [json.loads((folder / "evaluation.json").read_text()) for folder in folders]
    episodes = sum(f["episodes"] for f in found)
    won = round(sum(f["success"] * f["episodes"] for f in found))
    low, high = wilson(won, episodes)
    return {"episodes": episodes, "success": won / episodes, "success_low": low, "success_high": high}


def takeovers(session: Path) -> list[float]:
    """Return the mean number of takeovers per episode in the thirds of a session."""
    rows = [json.loads(line) for line in (session / "episodes.jsonl").read_text().splitlines()]
    ends = [round(k * len(rows) / 3) for k in range(4)]
    thirds = [rows[a:b] for a, b in zip(ends, ends[1:], strict=False)]
    return [sum(row["takeovers"] for row in third) / max(1, len(third)) for third in thirds]


def study(options: argparse.Namespace, kind: str, before: Path) -> dict[str, Any]:
    """Run the sessions of one kind of operator and deploy their policies; return the figures."""
    stage, sessions, after = Stages(options.work / kind), [], []
    base = [f"policy:={options.run / 'improve'}", f"dataset:={options.run / 'collect' / 'dataset'}"]
    for seed in range(options.sessions):
        session, twin = (options.work / kind / f"{name}-{seed}" for name in ("session", "twin"))
        stage(f"correct {seed}", "launch", "finetune", *base, "robot:=panda", "twin:=true", "camera:=false",
              "teleop:=scripted", f"operator:={kind}", f"recipe:={options.recipe}", f"minutes:={options.minutes:g}",
              f"seed:={seed}", f"out:={session}")  # fmt: skip
        stage(f"deploy {seed}", "deploy", session, "--twin", "--robot", "panda", "--episodes", options.episodes,
              "--video-episodes", 0, "--out", twin)  # fmt: skip
        sessions.append(session)
        after.append(twin)
    thirds = [takeovers(session) for session in sessions]
    first, last = (sum(each[k] for each in thirds) / len(thirds) for k in (0, 2))
    row = {"before": counted([before]), "after": counted(after), "sessions": [counted([each]) for each in after]}
    row |= {"takeovers_per_episode": thirds, "passed": row["after"]["success_low"] > FLOOR and last < first}
    sys.stderr.write(f"{kind}: {json.dumps(row)}\n")
    return row


def main() -> int:
    """Study each kind of operator; return 1 if one misses the floor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of `robot-rl demo`")
    parser.add_argument("--work", type=Path, default=Path("runs/operators"), help="folder of the sessions")
    parser.add_argument("--kinds", nargs="+", default=["slow", "beside", "tired"], choices=list(PEOPLE))
    parser.add_argument("--recipe", default="hil-serl", help="recipe that learns")
    parser.add_argument("--sessions", type=int, default=3, help="sessions per kind, with different seeds")
    parser.add_argument("--minutes", type=float, default=10.0, help="length of a session, minutes of the twin")
    parser.add_argument("--episodes", type=int, default=60, help="episodes of each deployment")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    options = parser.parse_args()
    private_bus()
    before = options.work / "before"
    Stages(options.work)("deploy before", "deploy", options.run / "improve", "--twin", "--robot", "panda",
                         "--episodes", options.episodes, "--video-episodes", 0, "--out", before)  # fmt: skip
    rows = {kind: study(options, kind, before) for kind in options.kinds}
    settings = {"recipe": options.recipe, "minutes": options.minutes, "sessions": options.sessions}
    write_json(options.out, settings | {"kinds": rows, "provenance": provenance()})
    return 0 if all(row["passed"] for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
