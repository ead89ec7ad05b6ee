"""Inputs of a run besides its settings, by sha256. The inputs must be unchanged when the run is resumed."""

import hashlib
import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from policies.bundle import bundle_folder
from robot_rl.data.dataset import Dataset
from robot_rl.data.recording import numbers_digest, pictures_digest
from robot_rl.data.view import DatasetView
from robot_rl.interface.environment import EnvInfo
from robot_rl.rewards.classifier import DESCRIPTION
from robot_rl.rewards.written.file import read_reward
from robot_rl.training.run import MAY_DIFFER, SEED
from robot_rl.util.errors import ConfigError, UserError
from robot_rl.util.files import description_sha256
from robot_rl.util.settings import as_json

Inputs = dict[str, Any]
INPUTS = ("dataset", "base", "classifier", "reward", "contract", "task")


def settings_before(folder: Path, seeds: bool = False) -> dict[str, Any]:
    """Return the content of config.json of the run in `folder`; {} if there is no run. If `seeds` is true, runs with
    other seeds in the same parent folder also count."""
    for run in [folder, *(sorted(folder.parent.glob(f"{SEED}*")) if seeds else [])]:
        with suppress(OSError, ValueError, KeyError, TypeError):
            before: dict[str, Any] = json.loads((run / "config.json").read_bytes())
            if dict(before["inputs"]):
                return before
    return {}


def inputs_before(before: Mapping[str, Any], settings: Mapping[str, Any]) -> Inputs:
    """Return the inputs with which the run of config.json `before` began; {} if there is no run, or if its settings
    differ from `settings`, which `Run` reports."""
    now = {k: v for k, v in as_json(settings).items() if k in before and k not in {"seed", *MAY_DIFFER}}
    return dict(before.get("inputs", {})) if all(before[name] == value for name, value in now.items()) else {}


def open_dataset(path: Path, settings: Mapping[str, Any], began: Inputs) -> Dataset:
    """Return a run's training data: the episodes with which the run began, without held-out episodes."""
    if known := began.get("dataset"):
        return Dataset(path, DatasetView.of(settings, known["episodes"]))
    count, share = Dataset(path).num_episodes, settings.get("held_out", 0.0)
    held_out = max(1, round(share * count)) if share and count > 1 else 0
    if held_out == count > 0:
        raise ConfigError(f"--held-out {share:g} leaves none of the {count} episodes of {path} to learn from; lower it")
    return Dataset(path, DatasetView.of(settings, count - held_out))


def dataset_inputs(data: Dataset, info: EnvInfo, began: Inputs) -> Inputs:
    """Return the number of training episodes, the number of all episodes at the run's start, and digests of the
    training episodes' content."""
    return {
        "episodes": data.num_episodes,
        "of": began.get("dataset", {}).get("of", data.info["total_episodes"]),
        "numbers": numbers_digest(data),
        "pictures": pictures_digest(data, list(info.extra_inputs.pictures)),
    }


def file_inputs(settings: Mapping[str, Any], info: EnvInfo, simulated: bool) -> Inputs:
    """Return the sha256 of each input of a run, by name, without the dataset. If `simulated`, the task's files (code
    and robot model) are included."""
    contract = info.interface.to_json() | {"robot": info.robot} if info.interface else info.to_json()
    inputs = {"contract": _sha256(json.dumps(contract, sort_keys=True).encode())}
    if settings.get("base"):
        inputs["base"] = description_sha256(bundle_folder(settings["base"]) / "policy.json")
    if settings.get("classifier"):
        inputs["classifier"] = description_sha256(Path(settings["classifier"]) / DESCRIPTION)
    if settings.get("reward"):
        inputs["reward"] = read_reward(settings["reward"]).sha256
    if simulated:
        from sim.make import files_of

        with suppress(UserError):  # the engine reports a missing robot model
            files = files_of(settings["task"], settings["mjcf"])
            inputs["task"] = _sha256(*(path.read_bytes() for path in files))
    return inputs


def check_inputs(settings: Mapping[str, Any], began: Inputs, now: Inputs, of: Collection[str]) -> None:
    """Raise ConfigError if an input named in `of` differs between `began`, the run's start, and `now`."""
    task = settings["task"]
    called = {
        "dataset": f"the first {began.get('dataset', {}).get('episodes')} episodes of {settings.get('dataset')} are",
        "base": f"the policy in {settings.get('base')} is",
        "classifier": f"the classifier {settings.get('classifier')} is",
        "reward": f"the reward {settings.get('reward')} is",
        "contract": f"what policies of {task} see, or what their actions do, is",
        "task": f"the code of {task}, or the model of its robot, is",
    }
    for name in of:
        if name in began and began[name] != now.get(name):
            raise ConfigError(f"{called[name]} not what this run began with; restore it, or take another --out")


def _sha256(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()
