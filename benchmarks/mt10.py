"""Measure a small vision-language-action policy on Meta-World: one policy for ten tasks, distinguished by instructions.

    python -m benchmarks.mt10 --work runs/mt10 --env-python PYTHON [--tasks mt50]

The benchmark collects scripted demonstrations, trains `vla-sft` on them from scratch, and evaluates held-out episodes
of every task, with goals and objects drawn anew. Finished stages in --work are not run again. Results go to
benchmarks/results. Passed: the lower end of the interval of success over all tasks is above 0.3.

For comparison, the mean success of the four groups of all 50 tasks is 57.3 % for SmolVLA (0.45B parameters) and 47.9 %
for pi0 (3.5B) (Shukor et al. 2025, arXiv 2506.01844), which begin with a pretrained vision-language model's weights.
"""

import argparse
import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from benchmarks.suites import Stages, first_episode, versions
from robot_rl.training.run import provenance, write_json
from robot_rl.util.statistics import wilson

RESULTS = Path(__file__).parent / "results"
COUNT = {"mt10": 10, "mt50": 50}
MEDIUM = (
    "carry the block into the other bin", "drive the nail in with the hammer", "kick the ball into the goal",
    "pull the mug away from the coffee machine", "push the mug under the coffee machine",
    "push the puck around the wall to the dot", "put the ball into the basket", "put the lid onto the box",
    "put the peg into the hole from the side", "sweep the puck into the hole", "sweep the puck off the table",
)  # fmt: skip
HARD = (
    "carry the puck to the blue dot", "lift the puck out of the hole", "push the puck back to the green dot",
    "push the puck to the green dot", "put the hand into the hole", "put the ring onto the peg",
)  # fmt: skip
VERY_HARD = (
    "carry the puck over the wall to the dot", "pull the thermos with the stick", "push the thermos with the stick",
    "put the puck onto the shelf", "take the ring off the peg",
)  # fmt: skip
"""Instructions of the tasks in each group (Seo et al. 2023, arXiv 2206.14244); all other tasks are easy."""


def success(found: dict[str, Any], texts: Collection[str]) -> dict[str, Any]:
    """Return the success rate in the episodes of the instructions `texts`, with its 95 % Wilson interval."""
    count = sum(found[text]["episodes"] for text in texts)
    won = round(sum(found[text]["episodes"] * found[text]["success"] for text in texts))
    low, high = wilson(won, count)
    return {"tasks": len(texts), "episodes": count, "success": won / count, "success_low": low, "success_high": high}


def grouped(found: dict[str, Any]) -> dict[str, Any]:
    """Return the success of each group and of all tasks, and the mean over groups, from results by instruction."""
    other = {*MEDIUM, *HARD, *VERY_HARD}
    groups = {"easy": [text for text in found if text not in other], "medium": MEDIUM, "hard": HARD,
              "very hard": VERY_HARD}  # fmt: skip
    asked = {name: [text for text in texts if text in found] for name, texts in groups.items()}
    each = {name: success(found, texts) for name, texts in asked.items() if texts}
    mean = sum(group["success"] for group in each.values()) / len(each)
    return {"groups": each, "mean_of_groups": mean, "all": success(found, list(found))}


def main() -> int:
    """Run the stages and write the table; return 1 if the threshold is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/mt10"), help="folder of data and run")
    parser.add_argument("--env-python", type=Path, required=True, help="Python that has the suite")
    parser.add_argument("--tasks", choices=list(COUNT), default="mt10", help="ten of the tasks, or all 50")
    parser.add_argument("--seed", type=int, default=0, help="seed of data and training")
    parser.add_argument("--demonstrations", type=int, default=40, help="of each task")
    parser.add_argument("--updates", type=int, default=6000, help="gradient steps")
    parser.add_argument("--episodes", type=int, default=20, help="episodes of each task")
    parser.add_argument("--threads", type=int, default=0, help="of the learner; 0: as it chooses")
    parser.add_argument("--out", type=Path, help="file of the results")
    a = parser.parse_args()
    stages, data, run, count = Stages(a.work), a.work / "data", a.work / "run", COUNT[a.tasks]
    task, where, seed = f"gym:metaworld:{a.tasks}", ("--env-python", a.env_python), ("--seed", a.seed, "--resume")
    stages("collect", "collect", task, *where, "--episodes", a.demonstrations * count, "--num-envs", 10, *seed,
           "--out", data)  # fmt: skip
    stages("train", "train", task, *where, "--recipe", "vla-sft", "--dataset", data, "--training.updates", a.updates,
           "--threads", a.threads, *seed, "--out", run)  # fmt: skip
    out, published = a.out or RESULTS / f"{a.tasks}.json", RESULTS / f"{a.tasks}.json"
    first = first_episode(out, published)
    found = run / f"asked-{first}.json"
    stages(f"evaluate-{first}", "evaluate", run, *where, "--episodes", a.episodes * count, "--num-envs", 20, "--seed",
           first, "--out", found)  # fmt: skip
    each = json.loads(found.read_text())["by_instruction"]
    made = json.loads((data / "meta" / "dataset.json").read_text())
    result = grouped(each) | {
        "each": each,
        "data": {key: made.get(key) for key in ("episodes", "frames", "success_of_demonstrator")},
        "options": vars(a) | {"work": "", "out": "", "env_python": ""},
        "seconds": stages.seconds,
        "suite": versions("metaworld", a.env_python),
        "provenance": provenance(),
    }
    write_json(out, result)
    line = "{success:.3f} [{success_low:.3f}, {success_high:.3f}]"
    for name, group in {**result["groups"], "all": result["all"]}.items():
        sys.stdout.write(f"{name}: {line.format(**group)}\n")
    return int(result["all"]["success_low"] <= 0.3)


if __name__ == "__main__":
    sys.exit(main())
