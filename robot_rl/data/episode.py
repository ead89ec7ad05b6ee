"""Episodes before they are written: collect their rows, and check them against the dataset's features."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.data.lerobot import DEFAULT_FEATURES, DatasetError, Feature
from robot_rl.data.recording import ACTION, SHIELD, STATE, STATE_AGE, TRUNCATED
from robot_rl.interface.spec import VectorSpec

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class EpisodeData:
    """Episode to be added to a dataset."""

    columns: Mapping[str, Any]
    """Values of every feature: arrays or tensors (T, *shape), also (T,) for single numbers; pictures are uint8."""
    task: str | Sequence[str]
    """Instruction in words, or T instructions, one per frame."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """Further numbers, strings and flat lists to store, for example `{"randomization/cube_mass": 0.05}`."""


class EpisodeRows:
    """Rows of the running episodes of n environments, with those columns of a dataset that `add` is given."""

    def __init__(self, actions: VectorSpec, columns: Collection[str], num_envs: int = 1):
        """Args: `columns`: columns of the dataset, which may be of an earlier version; others are left out."""
        self.actions, self.columns = actions, columns
        self._rows: list[dict[str, list[Array]]] = [{} for _ in range(num_envs)]
        self._tasks: list[list[str]] = [[] for _ in range(num_envs)]

    def add(
        self, state: Tensor, executed: Tensor, wanted: Tensor, reward: Tensor, success: Tensor, done: Tensor, *,
        intervention: Tensor | None = None, truncated: Tensor | None = None, shield: Tensor | None = None,
        state_age: Tensor | None = None, pictures: Mapping[str, Any] | None = None,
        instructions: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        """Add one control period to every episode.

        Args:
            state: (n, D) observation.state at the start of the period.
            executed: (n, A) executed actions in [-1, 1].
            wanted: (n, A) actions of the policy in [-1, 1]; NaN is recorded as 0.
            reward, success, done: (n,) results of the period.
            intervention: (n,) whether a person's action was executed; None: no interventions.
            truncated: (n,) whether a time limit or a stop ended the episode; None: it did not.
            shield: (n,) why the goal was changed, as bits; None: it was not.
            state_age: (n,) age of the state, s; None: 0.
            pictures: (n, H, W, 3) by camera at the start of the period; None if the episodes will not be kept.
            instructions: n current instructions; None: the instruction given to `take` holds for all rows.
        """
        none = torch.zeros_like(done)
        flags = {"next.success": success, "next.done": done}
        flags["intervention"] = none if intervention is None else intervention
        flags[TRUNCATED] = none if truncated is None else truncated
        flags[SHIELD] = none.long() if shield is None else shield
        flags[STATE_AGE] = none.float() if state_age is None else state_age
        columns = {
            STATE: state, ACTION: self.actions.to_physical(executed),
            "action.policy": self.actions.to_physical(wanted.nan_to_num()), "next.reward": reward.float()[:, None],
        } | {name: values[:, None] for name, values in flags.items()}  # fmt: skip
        rows: dict[str, Any] = {n: values.cpu().numpy() for n, values in columns.items() if n in self.columns}
        rows |= {f"observation.images.{camera}": frames for camera, frames in (pictures or {}).items()}
        for i, episode in enumerate(self._rows):
            for key, values in rows.items():
                episode.setdefault(key, []).append(values[i])
            if instructions is not None:
                self._tasks[i].append(instructions[i])

    def count(self, i: int = 0) -> int:
        """Return the number of rows so far of environment i's episode."""
        return len(self._rows[i].get(STATE, ()))

    def take(self, record: Mapping[str, Any], task: str, i: int = 0) -> EpisodeData:
        """End and return environment i's episode. `task` is its instruction if `add` got no `instructions`."""
        columns = {key: np.stack(values) for key, values in self._rows[i].items()}
        episode = EpisodeData(columns, self._tasks[i] or task, record)
        self.drop(i)
        return episode

    def drop(self, i: int = 0) -> None:
        """Discard the rows of environment i and begin its next episode."""
        self._rows[i], self._tasks[i] = {}, []


def frame_tasks(episode: EpisodeData, length: int) -> list[str]:
    """Return the instruction of each frame; DatasetError if a list of instructions does not have `length` entries."""
    tasks = [episode.task] * length if isinstance(episode.task, str) else list(episode.task)
    if len(tasks) != length:
        raise DatasetError(f"the episode has {length} frames and {len(tasks)} instructions; give one for each frame")
    return tasks


def check_columns(columns: Mapping[str, Any], features: Mapping[str, Feature]) -> dict[str, Array]:
    """Return an episode's columns as arrays (T, *shape) of the features' dtypes; DatasetError if they do not fit."""
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
    """Return an episode's `DEFAULT_FEATURES`, columns (T, 1); `tasks` is the task index of each frame."""
    frame = np.arange(length, dtype=np.int64).reshape(-1, 1)
    return {
        "timestamp": (frame / fps).astype(np.float32), "frame_index": frame,
        "episode_index": np.full_like(frame, episode), "index": frame + start,
        "task_index": np.array(tasks, np.int64).reshape(-1, 1),
    }  # fmt: skip


def _check_column(key: str, value: Any, feature: Feature) -> Array:
    """Return one column as an array (T, *shape) of the feature's dtype; DatasetError if the value does not fit."""
    if hasattr(value, "detach"):  # a tensor
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    array = np.asarray(value)
    if array.shape[1:] != feature.shape and not (feature.shape == (1,) and array.ndim == 1):
        sizes = ", ".join(map(str, feature.shape))
        raise DatasetError(f"column '{key}' has shape {array.shape}; its feature needs (T, {sizes})")
    dtype = np.dtype("uint8" if feature.is_video else feature.dtype)
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
        raise DatasetError(f"column '{key}' is no finite {dtype} at frame {frame}; correct it, then add the episode")
    return cast
