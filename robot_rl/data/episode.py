"""Check an episode against its dataset's features before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from robot_rl.data.lerobot import DEFAULT_FEATURES, DatasetError, Feature, numpy_dtype

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class EpisodeData:
    """One episode to add."""

    columns: Mapping[str, Any]
    """Every feature over time: arrays or tensors (T, *shape), numbers also (T,); cameras are uint8."""
    task: str | Sequence[str]
    """The instruction, in words; T of them where it changes."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """Further values to store: numbers, strings and flat lists, for example `{"randomization/cube_mass": 0.05}`."""


def frame_tasks(episode: EpisodeData, length: int) -> list[str]:
    """Return the instruction of each frame; raise DatasetError unless there is one per frame."""
    told = [episode.task] * length if isinstance(episode.task, str) else list(episode.task)
    if len(told) != length:
        raise DatasetError(f"the episode has {length} frames and {len(told)} instructions; give one for each frame")
    return told


def check_columns(columns: Mapping[str, Any], features: Mapping[str, Feature]) -> dict[str, Array]:
    """Return an episode's columns as arrays (T, *shape) of the features' dtypes; raise if one does not fit."""
    wanted = [key for key in features if key not in DEFAULT_FEATURES]
    for key in columns:
        if key in DEFAULT_FEATURES:
            raise DatasetError(f"column '{key}' is filled by the writer; leave it out")
        if key not in wanted:
            raise DatasetError(f"column '{key}' is not a feature of the dataset; it has {', '.join(wanted)}")
    missing = [key for key in wanted if key not in columns]
    if missing:
        raise DatasetError(f"the episode lacks {', '.join(missing)}; give every feature of the dataset")
    values = {key: _check_column(key, columns[key], features[key]) for key in wanted}
    lengths = {key: len(array) for key, array in values.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise DatasetError(f"columns must have the same number of frames, at least one; they have {lengths}")
    return values


def default_columns(length: int, fps: float, episode: int, start: int, tasks: Sequence[int]) -> dict[str, Array]:
    """Return the columns that every dataset has, (T, 1), with the index of each frame's task."""
    frame = np.arange(length, dtype=np.int64).reshape(-1, 1)
    return {
        "timestamp": (frame / fps).astype(np.float32),
        "frame_index": frame,
        "episode_index": np.full_like(frame, episode),
        "index": frame + start,
        "task_index": np.array(tasks, np.int64).reshape(-1, 1),
    }


def _check_column(key: str, value: Any, feature: Feature) -> Array:
    """Return one column as (T, *shape)."""
    if hasattr(value, "detach"):  # a tensor
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    array = np.asarray(value)
    if array.shape[1:] != feature.shape and not (feature.shape == (1,) and array.ndim == 1):
        sizes = ", ".join(map(str, feature.shape))
        raise DatasetError(f"column '{key}' has shape {array.shape}; its feature needs (T, {sizes})")
    dtype = np.dtype(np.uint8) if feature.is_video else numpy_dtype(feature)
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise DatasetError(f"column '{key}' is {array.dtype}; its feature needs {dtype}, so convert it first")
    array = array.reshape(len(array), *feature.shape)
    with np.errstate(over="ignore"):
        cast = array.astype(dtype, copy=False)
    if dtype.kind == "f":
        good = np.isfinite(cast)
    elif cast.dtype != array.dtype:
        good = cast == array
    else:
        return cast
    if not good.all():
        frame = int(np.argwhere(~good)[0][0])
        raise DatasetError(
            f"column '{key}' is no finite {dtype} at frame {frame}; correct the value, then add the episode"
        )
    return cast
