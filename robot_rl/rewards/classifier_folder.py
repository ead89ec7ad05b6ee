"""Write and read a success classifier's folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from policies.base import Size, from_json
from policies.errors import BundleError
from policies.weights import read_weights, require_fit, sha256
from robot_rl.rewards.classifier import Classifier, Measured, NetworkConfig, SuccessNetwork
from robot_rl.util import strict_json
from robot_rl.util.errors import ConfigError, UserError
from robot_rl.util.files import leaks, replacing_folder

FORMAT = 1
DESCRIPTION, WEIGHTS = "classifier.json", "classifier.safetensors"
_THING = "classifier"


def save_classifier(classifier: Classifier, path: Path) -> None:
    """Write a classifier; the folder appears under its name only when it is whole."""
    network, measured = classifier.network, classifier.measured
    try:
        with replacing_folder(path) as folder:
            save_file({k: v.contiguous().cpu() for k, v in network.state_dict().items()}, folder / WEIGHTS)
            meta = {
                "format": FORMAT,
                "reads": network.reads.to_json(),
                "network": asdict(network.config),
                "threshold": classifier.threshold,
                "hold": classifier.hold,
                "rate": classifier.rate,
                "instructions": list(classifier.instructions),
                "at_least": classifier.at_least,
                "measured": asdict(measured),
                "precision": measured.precision,
                "recall": measured.recall,
                "provenance": classifier.provenance,
                "sha256": {WEIGHTS: sha256((folder / WEIGHTS).read_bytes())},
            }
            (folder / DESCRIPTION).write_text(strict_json.dumps(meta, 2))
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write the classifier {path} ({error}); free space or choose another --out") from error


def read_classifier(path: Path | str) -> Classifier:
    """Read a classifier, to look at or to measure; `load_classifier` also asks whether it may pay rewards."""
    path = Path(path)
    file = path / DESCRIPTION
    if not file.is_file():
        raise ConfigError(
            f"{path} is no classifier: it has no {DESCRIPTION}; name a folder that `robot-rl classifier fit` wrote"
        )
    if fault := next(leaks(path), None):
        raise ConfigError(fault)
    try:
        meta = json.loads(file.read_text())
        if meta["format"] != FORMAT:
            raise ValueError(f"format {meta['format']}, and this robot-rl reads {FORMAT}: fit it again")
        reads, config = Size.from_json(meta["reads"]), from_json(NetworkConfig, meta["network"], "network.")
        if not reads.pictures or reads.observation < 0:
            raise ValueError("it reads no picture")
        with torch.device("meta"):  # nothing is allocated until the sizes are those of the weights
            wanted = SuccessNetwork(reads, config).state_dict()
        weights = read_weights(path / WEIGHTS, dict(meta["sha256"]), _THING, _THING)
        require_fit(weights, wanted, path / WEIGHTS, _THING, _THING)
        if not all(v.isfinite().all() for v in weights.values()):
            raise ValueError("its weights are not finite: fit it again")
        classifier = _described(SuccessNetwork(reads, config), meta, path)
    except BundleError:  # names the file of the weights
        raise
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError, UserError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise ConfigError(
            f"{file} is damaged or foreign ({reason}); copy the classifier again, or fit it again"
        ) from None
    classifier.network.load_state_dict(weights)
    classifier.network.eval()
    return classifier


def load_classifier(path: Path | str) -> Classifier:
    """Read a classifier that may pay rewards; ConfigError below its bar."""
    classifier = read_classifier(path)
    classifier.require_bar()
    return classifier


def _described(network: SuccessNetwork, meta: dict[str, Any], path: Path) -> Classifier:
    numbers = {name: meta[name] for name in ("threshold", "hold", "rate", "at_least")}
    return Classifier(
        network, **numbers, instructions=tuple(meta["instructions"]), measured=Measured(**meta["measured"]),
        provenance=dict(meta["provenance"]), folder=path,
    )  # fmt: skip
