"""`robot-rl bundle`: make a bundle of a run's newest checkpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import tyro


@dataclass
class MakeBundle:
    """Make a bundle from the newest checkpoint of a run that is running, was stopped or has crashed."""

    run_folder: tyro.conf.Positional[Path]
    """Run folder of `robot-rl train`."""
    out: Path | None = None
    """Folder of the bundle; default RUN/bundle."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Make the bundle; return the exit status."""
        from policies.bundle import save_bundle
        from robot_rl.cli.console import show
        from robot_rl.recipes import recipes
        from robot_rl.recipes.job import open_job
        from robot_rl.training.checkpoint import load_state
        from robot_rl.training.run import configured, provenance
        from robot_rl.util.errors import ConfigError
        from robot_rl.util.registry import check_trusted_task

        try:
            settings = json.loads((self.run_folder / "config.json").read_text())
            check_trusted_task(settings["task"])
            recipe = configured(recipes.get(recipes.vet(settings["recipe"]))(), settings["config"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise ConfigError(f"{self.run_folder} is not a run folder of `robot-rl train`; name one") from None
        checkpoint = self.run_folder / "checkpoint.safetensors"
        if not hasattr(recipe, "build") or not checkpoint.is_file():
            raise ConfigError(f"{self.run_folder} holds no checkpoint of `robot-rl train` yet")
        matter = ("base", "contract", *["dataset"] * recipe.reads_instructions)  # whose words its policy knows
        here = settings | {"device": "cpu"}  # wherever it was trained
        job = open_job(here, None, lambda *_: None, began=settings.get("inputs"), check=matter)
        env = job.make_env(1) if "environment" in recipe.needs else None
        agent = recipe.build(job, env)
        if env is not None:
            env.close()
        saved = load_state(checkpoint)
        agent.load_state_dict(saved["state"]["agent"])
        bundle = job.bundle(agent)
        del settings["config"]
        bundle.provenance = provenance() | settings | {"step": saved["step"], "seconds": saved["elapsed"]}
        out = self.out or self.run_folder / "bundle"
        save_bundle(bundle, out)
        show({"bundle": str(out), "task": bundle.task, "step": saved["step"]}, self.json, "bundle")
        return 0
