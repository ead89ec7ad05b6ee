"""`robot-rl classifier`: fit and show success classifiers."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from robot_rl.cli.options import Json
from robot_rl.rewards.fitting import FitConfig
from robot_rl.util.limits import PositiveInt


@dataclass
class Fit:
    """Fit a success classifier to the marked frames of a dataset with successes and failures, and measure it on
    held-out episodes. Exit status 1 if it is below the required precision and must not provide rewards."""

    dataset: tyro.conf.Positional[Path]
    """Dataset folder with pictures, from `robot-rl collect` or `robot-rl record` with --keep-failures."""
    out: Path | None = None
    """Classifier folder; default classifiers/<name of the dataset>."""
    config: Annotated[FitConfig, tyro.conf.arg(name="")] = field(default_factory=FitConfig)
    device: str = "auto"
    """Torch device: cpu, cuda, cuda:1, mps and the like, or auto for cuda if available."""
    threads: PositiveInt = 1
    """Number of threads."""
    json: Json = False

    def run(self) -> int:
        import time

        import torch

        from robot_rl.cli.console import bar, show
        from robot_rl.data import Dataset
        from robot_rl.rewards.classifier import save_classifier
        from robot_rl.rewards.fitting import fit
        from robot_rl.training.run import provenance
        from robot_rl.util.devices import find_device
        from robot_rl.util.errors import ConfigError

        out = self.out or Path("classifiers") / self.dataset.resolve().name
        if out.exists() and not (out / "classifier.json").is_file():
            raise ConfigError(f"{out} is there and is no classifier, so it is not replaced; choose another --out")
        torch.set_num_threads(self.threads)
        data, begin = Dataset(self.dataset), time.monotonic()
        with bar("classifier") as update:
            classifier = fit(data, self.config, find_device(self.device), update)
        facts: dict[str, Any] = {"path": str(self.dataset.resolve()), "episodes": data.num_episodes}
        classifier.provenance = provenance() | {"dataset": facts, "config": asdict(self.config)}
        save_classifier(classifier, out)
        summary = {"classifier": str(out)} | classifier.summary()
        show(summary | {"seconds": round(time.monotonic() - begin, 1)}, self.json, "classifier")
        if not classifier.reaches_bar:
            sys.stderr.write(f"robot-rl: {classifier.refusal}\n")
        return int(not classifier.reaches_bar)


@dataclass
class ShowClassifier:
    """Show a success classifier's inputs and held-out metrics, and whether it may provide rewards."""

    folder: tyro.conf.Positional[Path]
    """Classifier folder."""
    json: Json = False

    def run(self) -> int:
        from robot_rl.cli.console import show
        from robot_rl.rewards.classifier import read_classifier

        classifier = read_classifier(self.folder)
        summary = {"classifier": str(self.folder)} | classifier.summary()
        origin = {k: v for k, v in classifier.provenance.items() if k in ("dataset", "commit")}
        show(summary | origin, self.json, "classifier")
        return 0
