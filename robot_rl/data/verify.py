"""Check a dataset file by file and row by row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from robot_rl.data.dataset import Dataset, Episode
from robot_rl.data.lerobot import DTYPES, STATS, TASKS, DatasetError, Feature, FileId, file_path
from robot_rl.data.stats import STATISTICS, read_stats, stats_shape
from robot_rl.data.tables import from_arrow, read_table, read_tasks
from robot_rl.data.video import count_frames

TOLERANCE_S = 1e-4
"""LeRobot's own tolerance for timestamps."""


def verify(root: str | Path) -> list[str]:
    """Return one sentence per problem of a dataset; an empty list if it is sound.

    Reads every file to its end, decoding all video. May run while a writer is at work.
    """
    root = Path(root)
    try:
        before = set(Dataset(root).uncounted_files())
        data = Dataset(root)
    except DatasetError as error:
        return [str(error)]
    problems = [*_check_meta(data), *_check_data(data), *_check_videos(data), *_check_stats(data)]
    data.refresh()
    for path in sorted(before & set(data.uncounted_files())):  # a running writer's files come and go
        problems.append(
            f"{path} is not counted by meta/info.json: a writer was killed; DatasetWriter.append moves it aside"
        )
    return problems


def _check_meta(data: Dataset) -> Iterator[str]:
    """Check the counts, the tasks and the order of episodes."""
    start = 0
    for number, episode in enumerate(data.episodes):
        where = f"{data.root / 'meta/episodes'}: episode {episode.index}"
        if episode.index != number:
            yield f"{where} stands where episode {number} should be"
        if episode.length < 1:
            yield f"{where} has {episode.length} frames"
        if episode.start != start:
            yield f"{where} starts at row {episode.start}, the one before ends at {start}"
        if episode.task not in data.tasks:
            yield f"{where} has the task {episode.task!r}, which {TASKS} lacks"
        start += episode.length
    if data.info["total_frames"] != start:
        yield f"meta/info.json counts {data.info['total_frames']} frames, the episodes have {start}"
    try:
        tasks = read_tasks(data.root / TASKS) if data.num_episodes else []
        if len(tasks) < data.info["total_tasks"] or len(set(tasks)) != len(tasks):
            known, counted = len(set(tasks)), data.info["total_tasks"]
            yield f"{data.root / TASKS} has {known} different tasks, meta/info.json counts {counted}"
    except DatasetError as error:
        yield str(error)
    paths = [path for path in data.episode_files() if path in data.files()]
    if paths:
        first = set(pq.read_schema(paths[0]).names)
        for path in paths[1:]:
            extra = sorted(set(pq.read_schema(path).names) - first)
            if extra:
                yield f"{path} has columns that {paths[0].name} lacks, so LeRobot cannot read it: {extra}"


def _check_data(data: Dataset) -> Iterator[str]:
    """Check every data file against its episodes."""
    files: dict[FileId, list[Episode]] = {}
    for episode in data.episodes:
        files.setdefault(episode.data_file, []).append(episode)
    for file, episodes in files.items():
        path = data.root / file_path(data.info["data_path"], file)
        try:
            table = read_table(path)
        except DatasetError as error:
            yield str(error)
            continue
        rows = sum(episode.length for episode in episodes)
        if table.num_rows != rows:
            yield f"{path} has {table.num_rows} rows, its episodes {rows}"
            continue
        columns: dict[str, Any] = {}
        for key, feature in data.features.items():
            if feature.dtype not in DTYPES:
                continue
            try:
                columns[key] = from_arrow(table[key], feature)
            except KeyError:
                yield f"{path} has no column '{key}'"
                continue
            except DatasetError:
                yield f"{path}: column '{key}' is {table.schema.field(key).type}, not {_words(feature)}"
                continue
            if table[key].null_count:
                yield f"{path}: column '{key}' has {table[key].null_count} empty rows"
            if columns[key].dtype.kind == "f" and not np.isfinite(columns[key]).all():
                bad = int(np.argwhere(~np.isfinite(columns[key]))[0][0])
                yield f"{path}: column '{key}' is not finite at row {bad}"
        yield from _check_rows(path, columns, episodes, data)


def _check_rows(path: Path, columns: dict[str, Any], episodes: list[Episode], data: Dataset) -> Iterator[str]:
    """Check the columns that number the rows."""
    frames = np.concatenate([np.arange(episode.length) for episode in episodes])
    expected = {
        "frame_index": frames,
        "index": np.concatenate([episode.start + np.arange(episode.length) for episode in episodes]),
        "episode_index": np.concatenate([np.full(episode.length, episode.index) for episode in episodes]),
        "timestamp": frames / data.fps,
    }
    for key, want in expected.items():
        if key in columns:
            wrong = np.abs(columns[key].reshape(-1) - want) > (TOLERANCE_S if key == "timestamp" else 0)
            if wrong.any():
                row = int(np.argmax(wrong))
                yield f"{path}: {key} is {columns[key].reshape(-1)[row]} at row {row}, expected {want[row]}"
    if "task_index" in columns:
        tasks = columns["task_index"].reshape(-1)
        row = 0
        for episode in episodes:
            own = set(tasks[row : row + episode.length].tolist())
            if any(not 0 <= task < len(data.tasks) for task in own):
                yield f"{path}: episode {episode.index} has task_index {sorted(own)}, which {TASKS} lacks"
            elif {data.tasks[task] for task in own} != set(episode.tasks):
                told = [data.tasks[task] for task in sorted(own)]
                yield f"{path}: episode {episode.index} has frames of {told}, its row of {list(episode.tasks)}"
            row += episode.length


def _check_videos(data: Dataset) -> Iterator[str]:
    """Decode every video."""
    for key in data.cameras:
        ends: dict[FileId, list[tuple[int, int]]] = {}
        for episode in data.episodes:
            file, begin = episode.videos[key]
            first = round(begin * data.fps)
            ends.setdefault(file, []).append((first, first + episode.length))
        for file, spans in ends.items():
            path = data.root / file_path(data.info["video_path"], file, key)
            try:
                count, size = count_frames(path)
            except DatasetError as error:
                yield str(error)
                continue
            end = 0
            for first, last in sorted(spans):
                if first != end:
                    yield f"{path}: an episode's frames start at {first}, expected {end}"
                end = last
            if count != end:
                yield f"{path} has {count} frames, its episodes {end}"
            if size != data.features[key].shape[:2]:
                yield f"{path} has frames of {size}, meta/info.json says {data.features[key].shape[:2]}"


def _check_stats(data: Dataset) -> Iterator[str]:
    """Check that the statistics exist, are finite, and cover these episodes."""
    if not data.num_episodes:
        return
    path = data.root / STATS
    try:
        data.episode_stats()
    except DatasetError as error:
        yield str(error)
    try:
        stats = read_stats(path)
    except DatasetError as error:
        yield str(error)
        return
    if not data.stats_current():
        yield f"{path} is missing or of other episodes; DatasetWriter.append writes it anew"
    for key, feature in data.features.items():
        entry = stats.get(key)
        if entry is None:
            if feature.dtype in DTYPES or feature.is_video:
                yield f"{path} has no statistics of '{key}'"
            continue
        for name in STATISTICS:
            value, shape = entry.get(name), stats_shape(name, feature)
            if value is None or value.shape != shape:
                yield f"{path}: '{name}' of '{key}' has shape {getattr(value, 'shape', None)}, not {shape}"
            elif not np.isfinite(np.asarray(value, dtype=np.float64)).all():
                yield f"{path}: '{name}' of '{key}' is not finite"


def _words(feature: Feature) -> str:
    """Return a feature in words."""
    return f"{feature.dtype} {feature.shape}"
