"""Measure a small vision-language-action policy on the tabletop, on training and held-out instructions.

    python -m benchmarks.tabletop --work runs/tabletop

The benchmark collects demonstrations and trains two `vla-sft` policies on them, of which one is blind to instructions
(`--policy.encoder.blind`). It evaluates each verb's training instructions, the held-out instructions, and changing
instructions, in --episodes episodes each. Finished stages in --work are not repeated. Results go to
benchmarks/results/tabletop.json. Passed: touch and lift each above 0.5, and above the blind policy.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.suites import Stages, first_episode, robot_rl
from robot_rl.training.run import provenance, write_json
from robot_rl.util.statistics import wilson
from sim.tasks.tabletop import HELD_OUT

RESULTS = Path(__file__).parent / "results" / "tabletop.json"
VERBS = ("touch", "lift", "push", "put")
CHANGES = 0.4
"""Share of demonstrations whose instruction changes."""
CHANGED = "changed"
"""Evaluation in which every instruction changes; an episode counts if the first instruction had not succeeded then."""


def ask(run: Path, instructions: str, episodes: int, first: int) -> dict[str, Any]:
    """Return a policy's success on `instructions`, measured if missing; a verb stands for its training instructions."""
    out = run / f"asked-{instructions}-{first}.json"
    if not out.exists():
        how = ("--changes", 1) if instructions == CHANGED else ("--instructions", instructions)
        size = ("--episodes", episodes, "--num-envs", min(episodes, 100), "--seed", first)
        robot_rl("evaluate", run, *how, *size, "--out", out)
    whole = json.loads(out.read_text())
    if instructions == CHANGED:
        changed: dict[str, Any] = whole["changed"]
        return changed
    found = whole["by_instruction"]
    if instructions in VERBS:
        found = {text: each for text, each in found.items() if text not in HELD_OUT}
    count = sum(each["episodes"] for each in found.values())
    won = round(sum(each["episodes"] * each["success"] for each in found.values()))
    low, high = wilson(won, count)
    return {"episodes": count, "success": won / count, "success_low": low, "success_high": high, "each": found}


def main() -> int:
    """Run the stages and write the table; return 1 if a threshold is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/tabletop"), help="folder of the runs")
    parser.add_argument("--seed", type=int, default=0, help="seed of data and training")
    parser.add_argument("--demonstrations", type=int, default=1000, help="episodes of the demonstrator")
    parser.add_argument("--updates", type=int, default=6000, help="gradient steps of each policy")
    parser.add_argument(
        "--episodes", type=int, default=140, help="episodes of each verb, of which a quarter ask for what is held out"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    a = parser.parse_args()
    stages, data, policies = Stages(a.work), a.work / "data", {}
    stages(
        "collect", "collect", "tabletop", "--episodes", a.demonstrations, "--num-envs", 25, "--skill", "STEADY",
        "--changes", CHANGES, "--seed", a.seed, "--out", data, "--resume",
    )  # fmt: skip
    for name, options in (("reads", ()), ("blind", ("--policy.encoder.blind",))):
        run = a.work / name
        words = ("train", "tabletop", "--recipe", "vla-sft", "--dataset", data, "--seed", a.seed, "--resume")
        stages(name, *words, "--training.updates", a.updates, *options, "--out", run)
        asked, first = (*VERBS, "training", "held-out", CHANGED), first_episode(a.out, RESULTS)
        policies[name] = {which: ask(run, which, a.episodes, first) for which in asked}
        shown = "  ".join(f"{which} {found['success']:.2f}" for which, found in policies[name].items())
        sys.stdout.write(f"{name}: {shown}\n")
        result = {"options": vars(a) | {"work": "", "out": ""}, "seconds": stages.seconds, "policies": policies}
        write_json(a.out, result | {"provenance": provenance()})
    reads, blind = policies["reads"], policies["blind"]
    good = all(reads[verb]["success"] > 0.5 for verb in ("touch", "lift"))
    good &= all(reads[verb]["success_low"] > blind[verb]["success_high"] for verb in ("touch", "lift"))
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
