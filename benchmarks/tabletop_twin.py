"""Measure a vision-language-action policy on the twin, over the robot's topics, against simulation.

    python -m benchmarks.tabletop_twin runs/vla --work runs/tabletop-twin

Each instruction is asked in --episodes episodes: in simulation as in training; on a plain twin, whose dynamics are in
the middle of the training ranges, and in simulation with these dynamics; and on the twin of `robot-rl twin`, whose
servos and delays are beyond the training ranges, and in simulation with these dynamics. Twins run in real time, so the
machine must have no other load: `machine` in the results shows whether it had. On twins, success is judged by the true
object poses, not the tracker's. In further episodes, a second instruction, by which success is judged, comes while the
arm is on its way. Chunks of the policy behind `robot-rl serve` are compared with the local policy's. Finished stages in
--work are not run again. Results: benchmarks/results/tabletop_twin.json. Passed: success on each twin at most 10 points
below simulation with its dynamics; most changed instructions followed on the plain twin; served and local chunks equal.
"""

import argparse
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from policies.bundle import load_bundle
from policies.execution import ChunkExecutor
from real.bus import open_node
from real.twin.arm import TRUTH_TOPIC, ArmTwin, HiddenArm
from robot_rl.cli.launch import private_domain
from robot_rl.cli.remote import open_policy
from robot_rl.evaluation import evaluate
from robot_rl.robots import robots
from robot_rl.training.run import provenance, write_json
from robot_rl.util.files import file_name
from robot_rl.util.statistics import wilson
from sim.env import TaskEnv
from sim.randomization.ranges import with_values
from sim.tasks.base import Task
from sim.tasks.tabletop import TASK

RESULTS = Path(__file__).parent / "results" / "tabletop_twin.json"
ASKED = (
    "touch the green ball", "touch the yellow cube", "lift the red cube", "lift the blue cylinder",
    "push the red cube to the left", "push the yellow cube to the right",
)  # fmt: skip
CHANGES = (
    ("touch the red cube", "touch the green ball"), ("touch the yellow cube", "lift the red cube"),
    ("push the red cube to the left", "touch the green ball"), ("lift the red cube", "lift the blue cylinder"),
)  # fmt: skip
CHANGED_AFTER = 1.0
"""Time in an episode at which the instruction changes, s; the arm is then halfway to the first object."""
SEEDS = 900_000
"""Seed of the first episode; these seeds are not held out."""
ROBOT_RL = [sys.executable, "-m", "robot_rl.cli.main"]
PLAIN = HiddenArm({
    "robot.action_delay": 0.03, "robot.joint_friction": 0.2, "<object>.mass": 0.06, "sensor.object_noise": 0.001,
    "sensor.object_delay": 0.03, "sensor.joint_noise": 0.0003,
})  # fmt: skip
"""Dynamics of the plain twin, in the middle of the ranges that training randomizes."""


def twin_of(task: Task, hidden: HiddenArm) -> Task:
    """Return the task with the dynamics and objects of a twin, nominal appearance, and object places as in training.
    The tracker has no constant error: policies on the twin read the true poses."""
    return with_values(task, {name: v for name, v in hidden.of(task).items() if ".bias_" not in name})


def counted(won: int, episodes: int) -> dict[str, Any]:
    """Return a success rate with its 95 % Wilson interval."""
    low, high = wilson(won, episodes)
    return {"episodes": episodes, "success": won / max(1, episodes), "success_low": low, "success_high": high}


def total(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the success rate over the episodes of all `rows`."""
    return counted(round(sum(r["success"] * r["episodes"] for r in rows)), sum(r["episodes"] for r in rows))


def simulated(run: Path, task: Task, episodes: int) -> dict[str, Any]:
    """Return the success of each instruction in simulation, in `episodes` episodes each on average."""
    count = episodes * len(ASKED)
    env = TaskEnv(task, min(count, 100))
    texts = [each.text for each in task.interface.instructions]
    env.episodes.sampler.instruction_ids = [k for k, text in enumerate(texts) if text in ASKED]
    found = evaluate(load_bundle(run).policy, env, count, SEEDS).summary()
    env.close()
    each = {
        text: counted(round(r["success"] * r["episodes"]), r["episodes"]) for text, r in found["by_instruction"].items()
    }
    return total(list(each.values())) | {"steps_of_successes": found["steps_of_successes"], "each": each}


def serve() -> None:
    """Run the plain twin until SIGTERM."""
    torch.set_num_threads(1)
    with open_node("twin") as node:
        twin = ArmTwin(node, TASK, hidden=PLAIN)
        signal.signal(signal.SIGTERM, lambda *_: twin.close())
        sys.stdout.write("the plain twin is up\n")
        sys.stdout.flush()
        twin.run()


HIDDEN = {"plain": PLAIN, "hidden": HiddenArm()}
TWINS = {
    "plain": [sys.executable, "-m", "benchmarks.tabletop_twin", "--serve"],
    "hidden": [*ROBOT_RL, "twin", "panda", "--task", TASK.name],
}


@contextmanager
def process(*command: object, environment: dict[str, str], ready: str) -> Iterator[re.Match[str]]:
    """Run a command in the background; yield the match of the pattern `ready` in its output."""
    started = subprocess.Popen(
        [*map(str, command)], env=environment, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    said = ""
    try:
        for line in started.stdout:
            said += line
            if found := re.search(ready, line):
                yield found
                break
        else:
            raise RuntimeError(f"{command} ended: {said}")
    finally:
        started.terminate()
        started.communicate(timeout=60)


def deployed(
    policy: object, out: Path, text: str, episodes: int, environment: dict[str, str], *more: object
) -> dict[str, Any]:
    """Run a policy on the running twin; return its success and the timing of the control loop."""
    ros, remaps = robots.get(TASK.interface.robot).driver, []
    for thing in TASK.scene.objects:
        remaps += ["-r", f"{ros.object_pose.format(object=thing.name)}:={TRUTH_TOPIC.format(object=thing.name)}"]
    if not (out / "evaluation.json").exists():
        words = ["deploy", policy, "--robot", "panda", "--instruction", text, "--episodes", episodes, "--seed", SEEDS]
        command = [*ROBOT_RL, *words, "--video-episodes", 2, "--out", out, *more, "--ros-args", *remaps]
        subprocess.run([*map(str, command)], env=environment, check=True)
    seen, loop = (json.loads((out / f"{name}.json").read_text()) for name in ("evaluation", "loop"))
    machine = {name: loop[name] for name in ("late_share", "shield")} | {"inference_ms": loop["inference_ms"]["p99"]}
    machine["held_share"] = seen.get("held_share", 0.0)
    rows = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
    found = counted(sum(row["success"] for row in rows), len(rows))
    return found | {"steps_of_successes": seen["steps_of_successes"], "machine": machine, "rows": rows}


def changed(policy: Path, out: Path, first: str, second: str, episodes: int, environment: Any) -> dict[str, Any]:
    """Return how many changes came after success in the first instruction, and the success in all other episodes."""
    words = (*ROBOT_RL, "tell", first, second, "--after", CHANGED_AFTER)
    longer = ("--seconds", CHANGED_AFTER + TASK.interface.horizon / TASK.interface.controller.rate)
    with process(*words, environment=environment, ready="tells"):
        found = deployed(policy, out, first, episodes, environment, *longer)
    in_time = [row["success"] for row in found["rows"] if row["instruction"] == second]
    told = {"first": first, "second": second, "too_late": episodes - len(in_time)}
    return told | counted(sum(in_time), len(in_time)) | {"machine": found["machine"]}


def served(run: Path, chunks: int) -> dict[str, Any]:
    """Return how many chunks of a served policy equal the local policy's, along simulated episodes."""
    torch.set_num_threads(1)
    local, count = load_bundle(run).policy, 4
    words = (*ROBOT_RL, "serve", run, "--port", 0, "--threads", 1)
    with process(*words, environment=dict(os.environ), ready=r"(ws://\S+);") as found:
        there = open_policy(Path(found[1]), "torch")
        env = TaskEnv(TASK, count, seed=SEEDS)
        here, far = (torch.Generator().manual_seed(0) for _ in range(2))
        runner, equal, compared = ChunkExecutor(local, count), 0, 0
        observation, _ = env.reset(seed=SEEDS)
        while compared < chunks:
            one, other = (p.infer(observation, r).actions for p, r in ((local, here), (there.policy, far)))
            equal, compared = equal + int(torch.equal(one, other)), compared + 1
            for _ in range(local.execute):
                observation, *_ = env.step(runner.act(observation, torch.Generator().manual_seed(compared)))
        env.close()
        there.close()
    return {"chunks": compared, "robots": count, "equal": equal}


def on_twin(name: str, hidden: HiddenArm, run: Path, work: Path, simulations: int, episodes: int) -> dict[str, Any]:
    """Return success on a twin, in simulation with the twin's dynamics, and on the twin with changing instructions."""
    task, environment = twin_of(TASK, hidden), os.environ | private_domain()
    result = {"properties": dataclasses.asdict(hidden)}
    result["simulation"] = once(work / f"{name}.json", partial(simulated, run, task, simulations))
    with process(*TWINS[name], environment=environment, ready="is up"):
        found = {t: deployed(run, work / name / file_name(t), t, episodes, environment) for t in ASKED}
        told = [
            changed(run, work / f"{name}-changed" / str(k), *pair, max(1, episodes // 2), environment)
            for k, pair in enumerate(CHANGES)
        ]
    for each in found.values():
        del each["rows"]
    result["twin"] = total(list(found.values())) | {"each": found}
    return result | {"changed": total(told) | {"each": told}}


def once(file: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a JSON file's content, creating it if it is missing."""
    if not file.exists():
        write_json(file, make())
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def main() -> int:
    """Run the stages and write the table; return 1 if a threshold is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="run of vla-sft on the tabletop")
    parser.add_argument("--work", type=Path, default=Path("runs/tabletop-twin"), help="folder of the results")
    parser.add_argument("--simulated", type=int, default=50, help="episodes of each instruction in simulation")
    parser.add_argument("--episodes", type=int, default=20, help="episodes of each instruction on the twin")
    parser.add_argument("--chunks", type=int, default=50, help="chunks of the server that are compared")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.serve:
        serve()
        return 0
    a.work.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"options": {k: v for k, v in vars(a).items() if isinstance(v, int)}}
    measure = partial(once, a.work / "simulation.json")
    result["simulation"] = measure(partial(simulated, a.run, TASK, a.simulated))
    result["served"] = once(a.work / "served.json", partial(served, a.run, a.chunks))
    for name, hidden in HIDDEN.items():
        result[name] = on_twin(name, hidden, a.run, a.work, a.simulated, a.episodes)
        write_json(a.out, result | {"provenance": provenance()})
    line = "{}: {success:.2f} [{success_low:.2f}, {success_high:.2f}]\n"
    sys.stdout.write(line.format("simulation", **result["simulation"]))
    for name in HIDDEN:
        for what, found in result[name].items():
            sys.stdout.write(line.format(f"{name} {what}", **found) if "success" in found else "")
    equal = result["served"]["equal"]
    sys.stdout.write(f"served chunks equal to local ones: {equal} of {a.chunks}\n")
    gaps = [result[name]["simulation"]["success"] - result[name]["twin"]["success"] for name in HIDDEN]
    return int(max(gaps) > 0.1 or equal < result["served"]["chunks"] or result["plain"]["changed"]["success"] < 0.5)


if __name__ == "__main__":
    sys.exit(main())
