"""Run the learner process of `robot-rl finetune`: `python -m robot_rl.cli.learner RUN`."""

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


def learn(folder: Path) -> int:
    """Learn with the settings in the run folder's config.json until SIGTERM, SIGINT or the parent's end."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    from real.control.timing import yield_to_robot

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


if __name__ == "__main__":
    from robot_rl.cli.main import answer

    sys.exit(answer(lambda: learn(Path(sys.argv[1]))))
