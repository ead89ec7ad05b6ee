"""Correct a policy on the twin for ten minutes, with operators who err as people do, and measure it before and after.

    python -m benchmarks.operators runs/demo --work runs/operators
    python -m benchmarks.operators runs/demo-vla --policy imitate --recipe hg-dagger --kinds steady \\
        --instruction "touch the red cube" --floor 0 --out benchmarks/results/operators_vla.json --work runs/told

RUN is a folder of `robot-rl demo`: its policy is corrected, its demonstrations are learned from. Each session is one
`robot-rl launch finetune … teleop:=scripted operator:=KIND` in lockstep; then the policy is deployed on the twin for
held-out episodes without an operator. Stages that are done are not repeated; processes may share --work if they have
different --kinds. Passed, for each kind: the lower bound of success over all sessions is above --floor and above the
upper bound before, and, with a --floor, the operator took over less often in the last third of the sessions than in the
first.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.suites import Stages, private_bus
from robot_rl.operators.scripted import PEOPLE
from robot_rl.training.run import provenance, write_json
from robot_rl.util.statistics import wilson
from sim.tasks.tabletop import TASK as TABLETOP

RESULTS = Path(__file__).parent / "results" / "operators.json"


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


class Study:
    """Sessions with each kind of operator, and deployments of their policies."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.camera = [] if options.instruction else ["camera:=false"]
        self.before = self.deploy(Stages(options.work), "deploy before", options.run / options.policy, "before")

    def deploy(self, stage: Stages, name: str, policy: Path, out: str) -> Path:
        """Deploy a policy on the twin; return the folder of its evaluation."""
        o, folder = self.options, stage.file.parent / out
        words = ["deploy", policy, "--robot", "panda", "--episodes", o.episodes, "--video-episodes", 1, "--out", folder]
        if not o.instruction:
            stage(name, *words, "--twin")
            return folder
        # The test of a touch is as strict as the twin's tracker is wrong: judged by the true poses.
        names = [f"objects/{thing.name}/pose:=twin/{thing.name}/pose" for thing in TABLETOP.scene.objects]
        remaps = [word for each in names for word in ("-r", each)]
        twin = [sys.executable, "-m", "robot_rl.cli.main", "twin", "panda", "--task", TABLETOP.name, "--lockstep"]
        with subprocess.Popen([*twin, "deploy"]) as process:
            try:
                stage(name, *words, "--instruction", o.instruction, "--ros-args", "-p", "use_sim_time:=true", *remaps)
            finally:
                process.terminate()
        return folder

    def __call__(self, kind: str) -> dict[str, Any]:
        """Run the sessions of one kind of operator and deploy their policies; return the figures."""
        o, stage = self.options, Stages(self.options.work / kind)
        base = [f"policy:={o.run / o.policy}", f"dataset:={o.run / 'collect' / 'dataset'}", *self.camera]
        told = [f"instruction:={o.instruction}"] if o.instruction else []
        sessions = [o.work / kind / f"session-{seed}" for seed in range(o.sessions)]
        after = []
        for seed, session in enumerate(sessions):
            stage(f"correct {seed}", "launch", "finetune", *base, *told, "robot:=panda", "twin:=true",
                  "teleop:=scripted", f"operator:={kind}", f"recipe:={o.recipe}", f"minutes:={o.minutes:g}",
                  f"seed:={seed}", f"out:={session}")  # fmt: skip
            after.append(self.deploy(stage, f"deploy {seed}", session, f"twin-{seed}"))
        before, now, thirds = counted([self.before]), counted(after), [takeovers(session) for session in sessions]
        first, last = (sum(each[k] for each in thirds) / len(thirds) for k in (0, 2))
        better = now["success_low"] > max(o.floor, before["success_high"])
        row = {"before": before, "after": now, "sessions": [counted([each]) for each in after]}
        row |= {"takeovers_per_episode": thirds, "fewer_takeovers": last < first}
        row["passed"] = better and (last < first or not o.floor)
        sys.stderr.write(f"{kind}: {json.dumps(row)}\n")
        return row


def main() -> int:
    """Study each kind of operator; return 1 if one misses the floor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of `robot-rl demo`")
    parser.add_argument("--policy", default="improve", help="run in that folder whose policy is corrected")
    parser.add_argument("--work", type=Path, default=Path("runs/operators"), help="folder of the sessions")
    parser.add_argument("--kinds", nargs="+", default=["slow", "beside", "tired"], choices=list(PEOPLE))
    parser.add_argument("--recipe", default="hil-serl", help="recipe that learns")
    parser.add_argument("--instruction", default="", help="instruction, for a policy that reads instructions")
    parser.add_argument("--sessions", type=int, default=3, help="sessions per kind, with different seeds")
    parser.add_argument("--minutes", type=float, default=10.0, help="length of a session, minutes of the twin")
    parser.add_argument("--episodes", type=int, default=60, help="episodes of each deployment")
    parser.add_argument("--floor", type=float, default=0.8, help="success that the lower bound must exceed")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    options = parser.parse_args()
    private_bus()
    study = Study(options)
    rows = {kind: study(kind) for kind in options.kinds}
    names = ("policy", "recipe", "instruction", "minutes", "sessions", "floor")
    settings = {name: getattr(options, name) for name in names}
    write_json(options.out, settings | {"kinds": rows, "provenance": provenance()})
    return 0 if all(row["passed"] for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
