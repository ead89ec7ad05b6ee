"""What a dataset's own features say about a robot and its cameras, for policies that are trained without a task."""

from __future__ import annotations

from pathlib import Path

from robot_rl.data.dataset import Dataset
from robot_rl.data.lerobot import WrongDataset
from robot_rl.data.recording import ACTION, STATE, finite
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.observation_spec import IMAGES, LANGUAGE, LANGUAGE_FIELD, ObservationSpec, picture_field
from robot_rl.interface.spec import Field, VectorSpec
from robot_rl.util.registry import DATASET

LEAST_RANGE = 1e-3
"""Half the range of a number that never changes, as a share of its size, at least of 1."""


def info_of(dataset: Dataset, reads_instructions: bool = False) -> EnvInfo:
    """Return the facts of a dataset in place of a task's.

    Ranges are those of its numbers, so that actions become [-1, 1]; units are not known. A policy reads
    observation.state and every camera; instructions where there are several, or with `reads_instructions`.
    """
    if not dataset.num_frames:
        raise WrongDataset(f"{dataset.root} holds no episode to learn from; record some")
    for key in (STATE, ACTION):
        feature = dataset.features.get(key)
        if feature is None or len(feature.shape) != 1:
            found = "has no" if feature is None else f"has a table {feature.shape} as"
            raise WrongDataset(
                f"{dataset.root} {found} {key}; it has {', '.join(dataset.features)}: name the column to read with "
                f"--rename COLUMN={key}"
            )
    cameras = [key for key in dataset.cameras if key.startswith(IMAGES.split(".")[0])]
    others = {key: picture_field(*dataset.features[key].shape[:2]) for key in cameras}
    told = {task for episode in dataset.episodes for task in episode.tasks if task.strip()}
    others |= {LANGUAGE: LANGUAGE_FIELD} if len(told) > 1 or (told and reads_instructions) else {}
    state, actions = _spec(dataset, STATE), _spec(dataset, ACTION)
    return EnvInfo(task_of(dataset.root), state, actions, float(dataset.fps), ObservationSpec.of(**others))


def task_of(root: Path) -> str:
    """Return what the task of a policy is called that is trained on a dataset alone."""
    return f"{DATASET}{root.resolve().name}"


def _spec(dataset: Dataset, key: str) -> VectorSpec:
    """Return the names and ranges of a column."""
    values, names = dataset.column(key).double(), dataset.features[key].names
    finite(dataset, key, values)
    known = isinstance(names, list) and len(set(names)) == values.shape[1]
    dims = tuple(map(str, names)) if known and names else tuple(map(str, range(values.shape[1])))
    low, high = values.amin(0), values.amax(0)
    more = LEAST_RANGE * low.abs().clamp_min(1.0) * (low == high)
    low, high = low - more, high + more
    return VectorSpec((Field("" if known else key, dims, "", tuple(low.tolist()), tuple(high.tolist())),))
