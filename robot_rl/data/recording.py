"""Columns of datasets recorded in simulation or on a robot, and recorded episodes as learners read them."""

import hashlib
import json
import logging
import math
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from robot_rl.data.dataset import Dataset, by_file
from robot_rl.data.lerobot import DEFAULT_FEATURES, DatasetError, Feature, WrongDataset
from robot_rl.data.video import packets
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import IMAGES, LANGUAGE, LANGUAGE_FIELD, ObservationSpec, picture_field
from robot_rl.interface.spec import Field, VectorSpec
from robot_rl.util.errors import ConfigError
from robot_rl.util.registry import DATASET

logger = logging.getLogger(__name__)
STATE, ACTION = "observation.state", "action"
DemoSelection = Literal["successes", "all", "best"]
"""Episodes of a dataset that a method reads; best: the quarter with the largest return of the task's reward."""
MARKS = ("next.success", "next.reward")
"""Columns that may mark success; the first of them that a dataset has is used."""
INTERVENTIONS = ("intervention", "complementary_info.is_intervention", "is_intervention")
"""Names that different programs give to the column of interventions."""
RATE_TOLERANCE = 0.01
"""Relative tolerance of a dataset's frame rate: a camera of 29.97 Hz fits a task of 30 Hz."""
FAR, SHARE = 10.0, 0.05
"""A component counts as having other units than the task if more than the share `SHARE` of its values are more than
`FAR` half ranges away from the middle of the task's limits. Degrees in place of radians give a factor of 57,
millimetres in place of metres a factor of 1000."""
LEAST_RANGE = 1e-3
"""Half range given to a constant component, relative to the component's absolute value, or to 1 if 1 is larger."""
TRUNCATED = "next.truncated"
"""Column that marks an end by a time limit or a stop. Without this column every failed episode counts as truncated."""
SHIELD, STATE_AGE = "shield", "state_age"
"""Columns of robots' tasks: why the goal was changed, as bits in the order of `shield.REASONS`, 0: it was not; and the
age of the joint state at the observation, s, in simulation its delay. Datasets of earlier versions lack them."""
READ = (STATE, ACTION, *MARKS, "next.done", TRUNCATED, *INTERVENTIONS, "task_index")
"""Columns that learners read if the dataset has them."""


def info_of(dataset: Dataset, reads_instructions: bool = False) -> EnvInfo:
    """Derive an `EnvInfo` from a dataset, for training without a task.

    The limits are the ranges of the recorded values, so actions map to [-1, 1]; units are unknown. A policy reads
    observation.state and all cameras, and the instruction if there are several instructions or `reads_instructions`.
    """
    if not dataset.num_frames:
        raise WrongDataset(f"{dataset.root} holds no episode to learn from; record some")
    for key in (STATE, ACTION):
        feature = dataset.features.get(key)
        if feature is None or len(feature.shape) != 1:
            fault = "has no" if feature is None else f"has a table {feature.shape} as"
            raise WrongDataset(
                f"{dataset.root} {fault} {key}; it has {', '.join(dataset.features)}: name the column to read with "
                f"--rename COLUMN={key}"
            )
    cameras = [key for key in dataset.cameras if key.startswith(IMAGES.split(".")[0])]
    others = {key: picture_field(*dataset.features[key].shape[:2]) for key in cameras}
    tasks = {task for episode in dataset.episodes for task in episode.tasks if task.strip()}
    others |= {LANGUAGE: LANGUAGE_FIELD} if len(tasks) > 1 or (tasks and reads_instructions) else {}
    state, actions = _spec(dataset, STATE), _spec(dataset, ACTION)
    return EnvInfo(task_of(dataset.root), state, actions, float(dataset.fps), ObservationSpec.of(**others))


def task_of(root: Path) -> str:
    """Return the task name of a policy that is trained on a dataset alone."""
    return f"{DATASET}{root.resolve().name}"


def _spec(dataset: Dataset, key: str) -> VectorSpec:
    """Return the names and ranges of a column's components."""
    values, names = dataset.column(key).double(), dataset.features[key].names
    finite(dataset, key, values)
    known = isinstance(names, list) and len(set(names)) == values.shape[1]
    dims = tuple(map(str, names)) if known and names else tuple(map(str, range(values.shape[1])))
    low, high = values.amin(0), values.amax(0)
    more = LEAST_RANGE * low.abs().clamp_min(1.0) * (low == high)
    low, high = low - more, high + more
    return VectorSpec((Field("" if known else key, dims, "", tuple(low.tolist()), tuple(high.tolist())),))


def features(info: EnvInfo, images: Mapping[str, tuple[int, int]] | None = None) -> dict[str, Feature]:
    """Return the columns of a task's recorded datasets, one row per control period; actions are in physical units.

    `images`: (height, width) by camera name.
    """
    state, actions = info.state, info.actions
    columns = {
        STATE: Feature("float32", (state.size,), state.names),
        ACTION: Feature("float32", (actions.size,), actions.names),
        "action.policy": Feature("float32", (actions.size,), actions.names),
        "next.reward": Feature("float32", (1,)),
    }
    columns |= {name: Feature("bool", (1,)) for name in ("next.success", "next.done", "intervention")}
    if info.interface is not None:
        columns |= {SHIELD: Feature("int64", (1,)), STATE_AGE: Feature("float32", (1,))}
    for camera, (height, width) in (images or {}).items():
        columns[f"observation.images.{camera}"] = Feature("video", (height, width, 3), ["height", "width", "channels"])
    return columns


def frames_per_second(info: EnvInfo) -> int:
    """Return a dataset's frame rate, Hz, one frame per control period. ConfigError unless it is a whole number."""
    if info.rate != round(info.rate):
        runs = f"task {info.task!r} runs at {info.rate:g} Hz"
        raise ConfigError(f"a dataset has a whole number of frames per second, and {runs}")
    return round(info.rate)


def check(dataset: Dataset, info: EnvInfo) -> None:
    """Raise WrongDataset with a table of the differences if a dataset does not fit a task."""
    close = abs(dataset.fps - info.rate) <= RATE_TOLERANCE * info.rate
    rows = [] if close else [("rate", f"{dataset.fps:g} Hz", f"{info.rate:g} Hz")]
    named = _other_names(dataset, info)
    for key, field in info.extra_inputs.items():
        if field.kind == "text":  # stored as the episode's task, not as a column
            continue
        feature = dataset.features.get(key)
        if feature is None or not feature.is_camera or feature.shape != field.shape:
            rows.append((key, "absent" if feature is None else _size(feature), _pixels(field.shape)))
    for key, spec in ((STATE, info.state), (ACTION, info.actions)):
        feature = dataset.features.get(key)
        if feature is None:
            rows.append((key, "absent", f"{spec.size} numbers"))
        elif feature.names is not None and feature.names != spec.names:
            rows.append((key, *_names(feature.names, spec.names)))
        elif feature.shape != (spec.size,):
            rows.append((key, _size(feature), f"{spec.size} numbers"))
    if rows:
        how = " --policy BUNDLE" if info.interface is None and not info.demonstrator else ""
        record = "" if info.task.startswith(DATASET) else f", or record one with `robot-rl collect {info.task}{how}`"
        table = [("column", "in the dataset", "in the task"), *rows]
        widths = [max(len(row[k]) for row in table) for k in (0, 1)]
        raise WrongDataset(
            f"{dataset.root}: the dataset does not fit task {info.task!r}; "
            + (f"where only a name differs, add {' '.join(f'--rename {pair}' for pair in named)}; " if named else "")
            + f"name another{record}. They differ in:"
            + "".join(f"\n  {a:{widths[0]}}  {b:{widths[1]}}  {c}" for a, b, c in table)
        )


def _other_names(dataset: Dataset, info: EnvInfo) -> list[str]:
    """Suggest --rename arguments: OLD=NEW for columns of equal size, COLUMN/OLD=NEW for the first differing name."""
    theirs, wanted = dataset.features, {STATE: (info.state.size,), ACTION: (info.actions.size,)}
    shapes = wanted | info.extra_inputs.pictures
    free = [key for key in theirs if key not in {*shapes, *READ, *DEFAULT_FEATURES, "action.policy", SHIELD, STATE_AGE}]
    pairs = []
    for key, shape in shapes.items():
        alike = [name for name in free if theirs[name].shape == shape and theirs[name].is_camera == (key not in wanted)]
        if key not in theirs and alike:
            name = get_close_matches(key, alike, 1, 0.0)[0]
            free.remove(name)
            pairs.append(f"{name}={key}")
    for key, spec in ((STATE, info.state), (ACTION, info.actions)):
        names = theirs[key].names if key in theirs else None
        if names is not None and len(names) == spec.size:
            new = [name for name in spec.names if name not in names]
            pairs += [f"{key}/{old}={new[0]}" for old in names if old not in spec.names][:1]
    return pairs


def _size(feature: Feature) -> str:
    if len(feature.shape) == 3:
        return f"{_pixels(feature.shape)}{'' if feature.is_camera else ', no RGB'}"
    return f"{feature.shape[0]} numbers" if len(feature.shape) == 1 else f"shape {feature.shape}"


def _pixels(shape: tuple[int, ...]) -> str:
    return f"{shape[0]}x{shape[1]} pixels"


def _names(theirs: list[str], ours: list[str]) -> tuple[str, str]:
    """Describe each of two different lists of names: its size and its first names that the other list lacks."""
    if sorted(theirs) == sorted(ours):
        return f"{len(theirs)} numbers", "the same in another order"

    def described(names: list[str], other: list[str]) -> str:
        alone = [name for name in names if name not in other]
        more = f" and {len(alone) - 3} more" if len(alone) > 3 else ""
        return f"{len(names)} numbers" + (f", alone {', '.join(alone[:3])}{more}" if alone else "")

    return described(theirs, ours), described(ours, theirs)


def load_episodes(
    data: Dataset | Path | str, info: EnvInfo, reward: str = "success", successes: bool = True
) -> list[dict[str, Tensor]]:
    """Check a dataset against a task and return its episodes, see `episodes_of`.

    Failed episodes are included if `successes` is False or the task reports no success.
    """
    dataset = data if isinstance(data, Dataset) else Dataset(data)
    check(dataset, info)
    return episodes_of(dataset, info, 0, successes and info.reports_success, reward, units=True)


def successes_of(dataset: Dataset) -> Tensor | None:
    """Return the success mark of each frame, (num_frames,) bool: `next.success`, or a `next.reward` of only 0 and 1.

    None if the dataset has neither column.
    """
    if "next.success" in dataset.features:
        return dataset.column("next.success").flatten().bool()
    if "next.reward" in dataset.features:
        rewards = dataset.column("next.reward").flatten(1)
        if rewards.shape[1] == 1 and ((rewards == 0) | (rewards == 1)).all():
            return rewards[:, 0].bool()
    return None


def episodes_of(
    dataset: Dataset, info: EnvInfo, first: int, successes: bool, reward: str = "success", units: bool = False,
    physical: bool = False,
) -> list[dict[str, Tensor]]:
    """Return episodes from number `first` on: observation.state (T, D), the task's pictures uint8 (T, H, W, 3),
    instruction uint8 (T, bytes), action (T, A) in [-1, 1], reward (T,), intervention (T,) and terminated (T,).

    Pictures are decoded once and kept in memory: 27 KB for 96x96 pixels, 55 MB for 1,000 steps of two cameras.

    A dataset of another program may lack columns. Without success marks (`successes_of`), every episode succeeds in its
    last frame, with a warning. Without a column of `INTERVENTIONS`, no step is an intervention.

    Args:
        successes: leave out episodes without success.
        reward: "success": 1 on success, else 0; "task": the task's reward, recorded in simulation.
        units: raise WrongDataset for numbers far outside the task's limits.
        physical: return actions in physical units, as recorded.

    `terminated` marks success if success ends the task's episodes, and failure if the dataset has `TRUNCATED`.
    """
    ends = ["next.done", TRUNCATED] if {"next.done", TRUNCATED} <= dataset.features.keys() else []
    corrected = [name for name in INTERVENTIONS if name in dataset.features][:1]
    rewards = ["next.reward"] if reward == "task" else []
    language = ["task_index"] if LANGUAGE in info.extra_inputs else []
    marks = [name for name in MARKS if name in dataset.features][:1]
    columns = dataset.columns(dict.fromkeys([STATE, ACTION, *marks, *rewards, *ends, *corrected, *language]))
    success = successes_of(dataset)
    if success is None:
        success = torch.zeros(dataset.num_frames, dtype=torch.bool)
        success[[episode.start + episode.length - 1 for episode in dataset.episodes]] = True
        logger.warning(
            "%s marks no success, by next.success or by a next.reward of 0 and 1: all %d episodes are taken as "
            "successes", dataset.root, dataset.num_episodes,
        )  # fmt: skip
    columns |= {name: columns[name].float() for name in (STATE, ACTION, *rewards)}
    flags = {name: columns[name].flatten().bool() for name in (*ends, *corrected)}
    terminated = success & info.success_terminates
    if ends:
        terminated = terminated | flags["next.done"] & ~flags[TRUNCATED]
    intervention = flags[corrected[0]] if corrected else torch.zeros_like(success)
    for key in (STATE, ACTION, *rewards):
        finite(dataset, key, columns[key])
    if units and not info.task.startswith(DATASET):  # such a task's limits come from the dataset itself
        _check_units(dataset, STATE, columns[STATE], info.state, info.task)
        _check_units(dataset, ACTION, columns[ACTION], info.actions, info.task)
    values = {
        STATE: columns[STATE], "action": columns[ACTION] if physical else info.actions.to_unit(columns[ACTION]),
        "reward": columns[rewards[0]].flatten() if rewards else success.float(), "intervention": intervention,
        "terminated": terminated,
    }  # fmt: skip
    kept = [slice(episode.start, episode.start + episode.length) for episode in dataset.episodes[first:]]
    kept = [rows for rows in kept if not successes or bool(success[rows].any())]
    if not kept and first == 0:
        what = f"successful episode among {dataset.num_episodes}, by {' or '.join(marks)}" if successes else "episode"
        raise WrongDataset(f"{dataset.root} holds no {what}; collect more")
    pictures = _pictures(dataset, list(info.extra_inputs.pictures), kept)
    texts = _texts(dataset, columns["task_index"].flatten(), kept) if language else [{}] * len(kept)
    return [
        {key: column[rows] for key, column in values.items()} | images | text
        for rows, images, text in zip(kept, pictures, texts, strict=True)
    ]


def _texts(dataset: Dataset, indices: Tensor, episodes: list[slice]) -> list[dict[str, Tensor]]:
    """Return the instruction of each frame of episodes, uint8 (T, bytes), from task indices (num_frames,)."""
    used, places = torch.cat([indices[rows] for rows in episodes] or [indices[:0]]).unique(return_inverse=True)
    table = encode([dataset.tasks[int(k)] for k in used])
    return [{LANGUAGE: text} for text in table[places].split([rows.stop - rows.start for rows in episodes])]


def _pictures(dataset: Dataset, keys: list[str], episodes: list[slice]) -> list[dict[str, Tensor]]:
    """Return the pictures (T, H, W, 3) of each episode by camera key; ConfigError if memory is too small."""
    rows = [row for episode in episodes for row in range(episode.start, episode.stop)]
    try:
        frames = {key: dataset.frames(key, rows) for key in keys}
    except MemoryError:
        size = sum(math.prod(dataset.features[key].shape) for key in keys) * len(rows) / 1e9
        raise ConfigError(
            f"{dataset.root}: {len(rows)} steps with pictures take {size:.1f} GB of memory, which is not there; take "
            "fewer episodes or smaller pictures"
        ) from None
    lengths = [episode.stop - episode.start for episode in episodes]
    parts = {key: torch.split(values, lengths) for key, values in frames.items()}
    return [{key: values[k] for key, values in parts.items()} for k in range(len(episodes))]


def _check_units(dataset: Dataset, key: str, values: Tensor, spec: VectorSpec, task: str) -> None:
    """Raise WrongDataset if a column has other units than the task; warn about actions that will be clipped.

    The limits of a state are nominal, so only the state's angles and lengths are checked.
    """
    units = [field.unit for field in spec.fields for _ in field.dims]
    middle, half = (spec.high + spec.low) / 2, (spec.high - spec.low) / 2
    distance = ((values - middle) / half).abs().nan_to_num()  # 1 at the limits, 0 without limits
    limited = torch.tensor([key == ACTION or unit.split("/")[0] in ("rad", "m") for unit in units])
    share = (distance > FAR).double().mean(0) * limited
    if len(values) and share.max() > SHARE:
        worst = int(share.argmax())
        low, high = np.quantile(values[:, worst].numpy(), (0.05, 0.95))
        converted = (distance[:, worst] * math.pi / 180 > FAR).double().mean() <= SHARE
        degrees = units[worst].startswith("rad") and bool(converted)
        raise WrongDataset(
            f"{dataset.root}: {key} {spec.names[worst]!r} is between {low:.4g} and {high:.4g} in 90 % of the frames, "
            f"and in task {task!r} between {spec.low[worst]:.4g} and {spec.high[worst]:.4g} {units[worst]}: it has "
            f"other units{' (degrees?)' if degrees else ''}, or another scale; convert the dataset"
        )
    clipped = float((distance > 1.001).any(1).double().mean()) if len(values) and key == ACTION else 0.0
    if clipped > 0.001:
        message = "%s: %.1f %% of the actions exceed the task's limits and are clipped"
        logger.warning(message, dataset.root, 100 * clipped)


def finite(dataset: Dataset, key: str, values: Tensor) -> None:
    """Raise DatasetError for a non-finite value of a column; an infinite action would become the range of actions."""
    wrong = (~values.isfinite().flatten(1).all(1)).nonzero()
    if len(wrong):
        row = int(wrong[0])
        episode = next(e for e in reversed(dataset.episodes) if e.start <= row)
        raise DatasetError(
            f"{dataset.root}: {key} of episode {episode.index}, frame {row - episode.start}, is not finite; nothing "
            "can be learned from it: restore the dataset or record it again"
        )


def numbers_digest(data: Dataset) -> str:
    """Return the sha256 of the episodes' instructions and of the number columns that learners read."""
    digest = hashlib.sha256(json.dumps([[e.length, e.tasks] for e in data.episodes]).encode())
    for key, values in data.columns([key for key in READ if key in data.features]).items():
        digest.update(key.encode() + values.numpy().tobytes())
    return digest.hexdigest()


def pictures_digest(data: Dataset, cameras: list[str]) -> str:
    """Return the sha256 of the episodes' encoded pictures, independent of other episodes in the same files."""
    digest = hashlib.sha256()
    for key in cameras:
        stored = data.view.stored.get(key, key)
        if not data.features[key].is_video:
            for episode in data.episodes:
                rows = np.arange(episode.start, episode.start + episode.length)
                for picture in data.encoded(stored, episode.data_file, rows):
                    digest.update(picture or b"")
            continue
        for file, episodes in by_file(data.episodes, stored).items():
            firsts = [round(episode.videos[stored][1] * data.fps) for episode in episodes]
            spans = [(first, first + episode.length) for first, episode in zip(firsts, episodes, strict=True)]
            for packet in packets(data.video_path(file, stored), spans, data.fps):
                digest.update(packet)
    return digest.hexdigest()
