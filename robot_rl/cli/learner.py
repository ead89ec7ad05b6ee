"""Run the learner process of `robot-rl finetune`: `python -m robot_rl.cli.learner RUN`.

`python -m robot_rl.cli.learner RUN --ray ADDRESS` runs that process on a node of a Ray cluster instead. The robot's
process does not notice: its episodes are copied to the node, and the weights back. With `--lockstep` the robot waits
for the learner, which then does not yield to the robot's processes.
"""

import json
import os
import select
import signal
import sys
import threading
from pathlib import Path


def _orphaned() -> bool:
    """Return whether standard input is closed, which happens when the parent `finetune` process ends."""
    return bool(select.select([0], [], [], 0)[0]) and os.read(0, 1) == b""


def learn(folder: Path, yields: bool = True) -> int:
    """Learn with the settings in the run folder's config.json until SIGTERM, SIGINT or the parent's end. `yields`: to
    the robot's processes; in lockstep, they wait."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    from real.control.timing import yield_to_robot

    if yields:
        yield_to_robot()
    import torch

    from policies.bundle import load_bundle
    from robot_rl.recipes import recipes
    from robot_rl.recipes.inputs import open_dataset
    from robot_rl.training.run import Run, configured, learning_floats

    torch.set_num_threads(1)
    settings = json.loads((folder / "config.json").read_text())
    recipe = configured(recipes.get(recipes.vet(settings["recipe"]))(), settings["config"])
    data = open_dataset(Path(settings["dataset"]), settings, settings.get("inputs", {}))
    learner = recipe.learner(load_bundle(settings["base"]), data, folder, settings["seed"])
    with Run(folder / "learner", {k: settings[k] for k in ("recipe", "seed")}, resume=True) as run, learning_floats():
        learner.run(run, lambda: stop.is_set() or _orphaned(), stop.wait)
    return 0


def learn_elsewhere(folder: Path, address: str) -> int:
    """Run the learner of a run folder on a node of a Ray cluster until SIGTERM, SIGINT or the parent's end."""
    from robot_rl.cluster.remote import Cluster, RemoteCommand, require_answer
    from robot_rl.training.published import WEIGHTS
    from robot_rl.util.errors import ConfigError, UserError

    try:
        require_answer(address)
    except ConfigError as error:  # not for good: `finetune` had an answer when it began
        raise UserError(str(error)) from None

    settings = json.loads((folder / "config.json").read_text())
    named = [settings["dataset"], settings["base"], settings["classifier"]]
    cluster, stop = Cluster(address), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # after joining: Ray sets a handler of its own
        signal.signal(number, lambda *_: stop.set())
    command = RemoteCommand(
        cluster, lambda: ["-m", "robot_rl.cli.learner", str(folder)], folder, [Path(name) for name in named if name],
        sends=("dataset",), returns=(WEIGHTS, "learner"),
    )  # fmt: skip
    try:
        status, said = command.run(lambda: signal.SIGTERM if stop.is_set() or _orphaned() else 0, stop.wait)
    finally:
        cluster.close()
    if status and not stop.is_set():
        sys.stderr.write(f"{said}\n")
    return 0 if stop.is_set() else status


if __name__ == "__main__":
    from robot_rl.cli.main import answer

    run, *options = sys.argv[1:]
    if "--ray" in options:
        sys.exit(answer(lambda: learn_elsewhere(Path(run), options[options.index("--ray") + 1])))
    sys.exit(answer(lambda: learn(Path(run), yields="--lockstep" not in options)))
