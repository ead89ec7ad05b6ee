"""The columns of our datasets, in simulation and on a robot, and how a learner reads them."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from robot_rl.data.dataset import Dataset
from robot_rl.data.lerobot import DEFAULT_FEATURES, DatasetError, Feature, WrongDataset
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import LANGUAGE
from robot_rl.interface.spec import VectorSpec
from robot_rl.util.errors import ConfigError
from robot_rl.util.registry import DATASET

logger = logging.getLogger(__name__)
STATE, ACTION = "observation.state", "action"
MARKS = ("next.success", "next.reward")
"""Columns that mark success, the first that is there."""
INTERVENTIONS = ("intervention", "complementary_info.is_intervention", "is_intervention")
"""What other programs call the column."""
RATE_TOLERANCE = 0.01
"""Relative: a camera of 29.97 Hz fits a task of 30 Hz."""
FAR, SHARE = 10.0, 0.05
"""Numbers have other units if more than this share of a component is this many times as far from the middle of the
task's limits as the limits are: degrees for radians are 57 times too large, millimetres for metres 1000 times."""
TRUNCATED = "next.truncated"
"""A time limit or a stop ended the episode, not the task. Without this column every failed episode is a time-out."""
READ = (STATE, ACTION, *MARKS, "next.done", TRUNCATED, *INTERVENTIONS, "task_index")
"""Columns that learners read, where they are there."""


def features(info: EnvInfo, images: Mapping[str, tuple[int, int]] | None = None) -> dict[str, Feature]:
    """Return the columns of a recorded control period; actions are in physical units. `images` gives (height, width) by
    camera."""
    observations, actions = info.state, info.actions
    one = {
        "next.reward": Feature("float32", (1,)),
        "next.success": Feature("bool", (1,)),
        "next.done": Feature("bool", (1,)),
        "intervention": Feature("bool", (1,)),
    }
    columns = {
        STATE: Feature("float32", (observations.size,), observations.names),
        ACTION: Feature("float32", (actions.size,), actions.names),
        "action.policy": Feature("float32", (actions.size,), actions.names),
        **one,
    }
    for camera, (height, width) in (images or {}).items():
        columns[f"observation.images.{camera}"] = Feature("video", (height, width, 3), ["height", "width", "channels"])
    return columns


def frames_per_second(info: EnvInfo) -> int:
    """Return a dataset's frame rate, one frame per control period; raise if it is not a whole number."""
    if info.rate != round(info.rate):
        raise ConfigError(
            f"a dataset has a whole number of frames per second, and task {info.task!r} runs at {info.rate:g} Hz"
        )
    return round(info.rate)


def check(dataset: Dataset, info: EnvInfo) -> None:
    """Raise WrongDataset with a table of the differences if a dataset was recorded for something else."""
    close = abs(dataset.fps - info.rate) <= RATE_TOLERANCE * info.rate
    rows = [] if close else [("rate", f"{dataset.fps:g} Hz", f"{info.rate:g} Hz")]
    named = _other_names(dataset, info)
    for key, field in info.extra_inputs.items():
        if field.kind == "text":  # every episode has its task
            continue
        found = dataset.features.get(key)
        if found is None or not found.is_camera or found.shape != field.shape:
            rows.append((key, "absent" if found is None else _size(found), _pixels(field.shape)))
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
    """Return what --rename might say of a dataset: OLD=NEW of columns, and of the first number of each, of the same
    size."""
    theirs, wanted = dataset.features, {STATE: (info.state.size,), ACTION: (info.actions.size,)}
    shapes = wanted | info.extra_inputs.pictures
    free = [key for key in theirs if key not in {*shapes, *READ, *DEFAULT_FEATURES, "action.policy"}]
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
    """Describe how two lists of names differ: their sizes and the first names that the other lacks."""
    said = []
    for names, other in ((theirs, ours), (ours, theirs)):
        alone = [name for name in names if name not in other]
        more = f" and {len(alone) - 3} more" if len(alone) > 3 else ""
        said.append(f"{len(names)} numbers" + (f", alone {', '.join(alone[:3])}{more}" if alone else ""))
    if sorted(theirs) == sorted(ours):
        return f"{len(theirs)} numbers", "the same in another order"
    return said[0], said[1]


def load_episodes(
    data: Dataset | Path | str, info: EnvInfo, reward: str = "success", successes: bool = True
) -> list[dict[str, Tensor]]:
    """Return the episodes of a dataset, see `episodes_of`; all of them if the task reports no success."""
    dataset = data if isinstance(data, Dataset) else Dataset(data)
    check(dataset, info)
    return episodes_of(dataset, info, 0, successes and info.reports_success, reward, units=True)


def successes_of(dataset: Dataset) -> Tensor | None:
    """Return where success is marked, (num_frames,) bool: by `next.success`, or by a `next.reward` of nothing but 0
    and 1; None if nothing marks it."""
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

    With `physical`, actions are as they were recorded, in physical units. Pictures are decoded once and kept in memory:
    27 KB for one of 96x96 pixels, 55 MB for 1,000 steps of two cameras.

    The reward "success" is 1 on success, which a robot can tell; "task" is the task's reward in simulation. A failure
    that ended an episode terminates it where the dataset distinguishes it from a time-out (`TRUNCATED`); success does
    where the task says so.

    With `successes`, episodes without success are left out. Where a dataset of another program does not mark success
    (`successes_of`), every episode succeeds with its last frame, and this is said; where it has no column of
    `INTERVENTIONS`, nobody intervened. With `units`, numbers far outside the task's limits are refused.
    """
    ends = ["next.done", TRUNCATED] if {"next.done", TRUNCATED} <= dataset.features.keys() else []
    corrected = [name for name in INTERVENTIONS if name in dataset.features][:1]
    rewards = ["next.reward"] if reward == "task" else []
    reads = LANGUAGE in info.extra_inputs
    told = ["task_index"] if reads else []
    marks = [name for name in MARKS if name in dataset.features][:1]
    columns = dataset.columns(dict.fromkeys([STATE, ACTION, *marks, *rewards, *ends, *corrected, *told]))
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
    if units and not info.task.startswith(DATASET):  # whose limits are its own
        _check_units(dataset, STATE, columns[STATE], info.state, info.task)
        _check_units(dataset, ACTION, columns[ACTION], info.actions, info.task)
    action = columns[ACTION] if physical else info.actions.to_unit(columns[ACTION])
    paid = columns[rewards[0]].flatten() if rewards else success.float()
    kept = []
    for episode in dataset.episodes[first:]:
        rows = slice(episode.start, episode.start + episode.length)
        if bool(success[rows].any()) or not successes:
            kept.append(rows)
    pictures = _pictures(dataset, list(info.extra_inputs.pictures), kept)
    texts = _texts(dataset, columns["task_index"].flatten(), kept) if reads else None
    out = []
    for number, rows in enumerate(kept):
        out.append(
            {
                STATE: columns[STATE][rows],
                "action": action[rows],
                "reward": paid[rows],
                "intervention": intervention[rows],
                "terminated": terminated[rows],
            }
            | pictures[number]
            | ({} if texts is None else {LANGUAGE: texts[number]})
        )
    if not out and first == 0:
        what = f"successful episode among {dataset.num_episodes}, by {' or '.join(marks)}" if successes else "episode"
        raise WrongDataset(f"{dataset.root} holds no {what}; collect more")
    return out


def _texts(dataset: Dataset, indices: Tensor, episodes: list[slice]) -> list[Tensor]:
    """Return what was asked at each frame of episodes, uint8 (T, bytes)."""
    used, places = torch.cat([indices[rows] for rows in episodes] or [indices[:0]]).unique(return_inverse=True)
    table = encode([dataset.tasks[int(k)] for k in used])
    return list(table[places].split([rows.stop - rows.start for rows in episodes]))


def _pictures(dataset: Dataset, keys: list[str], episodes: list[slice]) -> list[dict[str, Tensor]]:
    """Return the pictures (T, H, W, 3) of episodes by key; ConfigError if they are more than the memory holds."""
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
    """Raise WrongDataset for numbers so far outside the task's limits that they are no such quantity; the limits of a
    state are nominal, so only its angles and lengths are looked at. Say which share of the actions will be clipped."""
    units = [field.unit for field in spec.fields for _ in field.dims]
    middle, half = (spec.high + spec.low) / 2, (spec.high - spec.low) / 2
    distance = ((values - middle) / half).abs().nan_to_num()  # 1 at the limits, 0 where there are none
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
        said = "%s: %.1f %% of the actions exceed the task's limits and are clipped"
        logger.warning(said, dataset.root, 100 * clipped)


def finite(dataset: Dataset, key: str, values: Tensor) -> None:
    """Raise DatasetError for a non-finite value: infinity would set the range of actions."""
    wrong = (~values.isfinite().flatten(1).all(1)).nonzero()
    if len(wrong):
        row = int(wrong[0])
        found = next(e for e in reversed(dataset.episodes) if e.start <= row)
        raise DatasetError(
            f"{dataset.root}: {key} of episode {found.index}, frame {row - found.start}, is not finite; nothing can be "
            "learned from it: restore the dataset or record it again"
        )
