"""Check a dataset file by file and row by row."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from robot_rl.data.dataset import Dataset, Episode, by_file
from robot_rl.data.lerobot import DTYPES, INFO, STATS, TASKS, DatasetError
from robot_rl.data.stats import STATISTICS, read_stats, stats_fault
from robot_rl.data.tables import from_arrow, read_table, read_tasks
from robot_rl.data.video import SLACK, frame_times

TOLERANCE_S = 1e-4
"""LeRobot's own tolerance for timestamps, s."""


class _Note(str):
    """Finding that is not damage: missing or unused data that training does not need."""


def verify(root: str | Path) -> list[str]:
    """Return one sentence per problem of a dataset; an empty list for a sound dataset."""
    return examine(root)[0]


def examine(root: str | Path) -> tuple[list[str], list[str]]:
    """Return one sentence per problem, and one per note, for example on missing statistics or unused frames.

    All files are read completely, and all pictures are decoded. A writer may add episodes meanwhile.
    """
    root = Path(root)
    try:
        before = set(Dataset(root).uncounted_files())
        data = Dataset(root)
    except DatasetError as error:
        return [str(error)], []
    checks = (_check_meta, _check_data, _check_videos, _check_stored_pictures, _check_stats)
    findings = [finding for check in checks for finding in check(data)]
    data.refresh()
    for path in sorted(before & set(data.uncounted_files())):  # a running writer's files come and go
        findings.append(f"{path} is not counted by {INFO}: a writer was killed; DatasetWriter.append moves it aside")
    notes = [str(finding) for finding in findings if isinstance(finding, _Note)]
    return [finding for finding in findings if not isinstance(finding, _Note)], notes


def _check_meta(data: Dataset) -> Iterator[str]:
    """Check `info.json` and `meta/episodes`: counts, tasks and the order of episodes."""
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
    """Check the rows of every data file against the episodes in it."""
    for file, episodes in by_file(data.episodes).items():
        path = data.data_path(file)
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
            if key not in table.column_names:
                yield f"{path} has no column '{key}'"
                continue
            if table[key].null_count:
                yield f"{path}: column '{key}' has {table[key].null_count} empty rows"
                continue
            try:
                columns[key] = from_arrow(table[key], feature)
            except DatasetError as error:
                yield f"{path}: column '{key}' is {table.schema.field(key).type}, and {error}"
                continue
            if columns[key].dtype.kind == "f" and not np.isfinite(columns[key]).all():
                bad = int(np.argwhere(~np.isfinite(columns[key]))[0][0])
                yield f"{path}: column '{key}' is not finite at row {bad}"
        yield from _check_rows(path, columns, episodes, data)


def _check_rows(path: Path, columns: dict[str, Any], episodes: list[Episode], data: Dataset) -> Iterator[str]:
    """Check the columns of a data file that every dataset has: indices, timestamps and tasks."""
    frames = np.concatenate([np.arange(episode.length) for episode in episodes])
    expected = {
        "frame_index": frames,
        "index": np.concatenate([episode.start + np.arange(episode.length) for episode in episodes]),
        "episode_index": np.concatenate([np.full(episode.length, episode.index) for episode in episodes]),
        "timestamp": (frames / data.fps).astype(np.float32),  # stored precision: 0.25 ms after an hour
    }
    for key, target in expected.items():
        if key in columns:
            wrong = np.abs(columns[key].reshape(-1) - target) > (TOLERANCE_S if key == "timestamp" else 0)
            if wrong.any():
                row = int(np.argmax(wrong))
                yield f"{path}: {key} is {columns[key].reshape(-1)[row]} at row {row}, expected {target[row]}"
    if "task_index" in columns:
        tasks = columns["task_index"].reshape(-1)
        row = 0
        for episode in episodes:
            own = set(tasks[row : row + episode.length].tolist())
            if any(not 0 <= task < len(data.tasks) for task in own):
                yield f"{path}: episode {episode.index} has task_index {sorted(own)}, which {TASKS} lacks"
            elif {data.tasks[task] for task in own} != set(episode.tasks):
                texts = [data.tasks[task] for task in sorted(own)]
                yield f"{path}: episode {episode.index} has frames of {texts}, its row of {list(episode.tasks)}"
            row += episode.length


def _check_videos(data: Dataset) -> Iterator[str]:
    """Decode every video, and check that it has the frames of its episodes, with the tolerance of `decode_frames`."""
    slack = SLACK / data.fps
    for key in [key for key in data.cameras if data.features[key].is_video]:
        for file, episodes in by_file(data.episodes, key).items():
            path = data.video_path(file, key)
            try:
                times, size = frame_times(path)
            except DatasetError as error:
                yield str(error)
                continue
            if size != data.features[key].shape[:2]:
                yield f"{path} has frames of {size}, meta/info.json says {data.features[key].shape[:2]}"
            uses = np.zeros(len(times), int)
            for episode in episodes:
                nominal = episode.videos[key][1] + np.arange(episode.length) / data.fps
                at = np.searchsorted(times, nominal - slack)
                lost = np.append(times, np.inf)[at] > nominal + slack
                uses[at[~lost]] += 1
                if lost.any():
                    frame = int(np.argmax(lost))
                    yield (
                        f"{path}: episode {episode.index} lacks {lost.sum()} of its {episode.length} frames, the first "
                        f"at {nominal[frame]:.3f} s; the video has {len(times)}, "
                        + (f"from {times[0]:.3f} to {times[-1]:.3f} s" if len(times) else "so it is empty")
                    )
            if (uses > 1).any():
                yield f"{path}: several episodes have the frame at {times[np.argmax(uses > 1)]:.3f} s"
            if (uses == 0).any():
                yield _Note(f"{path} has {(uses == 0).sum()} frames that no episode uses")


def _check_stored_pictures(data: Dataset) -> Iterator[str]:
    """Decode every picture in the data tables; report the first fault of each episode."""
    for key in [key for key in data.cameras if not data.features[key].is_video]:
        for episode in data.episodes:
            try:
                for first in range(0, episode.length, 64):
                    data.frames(key, episode.start + np.arange(first, min(first + 64, episode.length)))
            except DatasetError as error:
                yield str(error)


def _check_stats(data: Dataset) -> Iterator[str]:
    """Check that the statistics are finite and cover all episodes; missing statistics give a note."""
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
    absent: dict[str, None] = {}
    for key, feature in data.features.items():
        entry = stats.get(key, {})
        absent |= dict.fromkeys(f"{name} of {key}" for name in STATISTICS if feature.is_read and name not in entry)
        for name, value in entry.items():
            if fault := stats_fault(name, value, feature) if feature.is_read else "":
                yield f"{path}: '{name}' of '{key}' {fault}"
    if "count" in stats.get("index", {}) and not data.stats_current():
        yield f"{path} is of other episodes; `robot-rl dataset stats {data.root}` writes it anew"
    if absent:
        some = ", ".join(list(absent)[:3]) + (f" and {len(absent) - 3} more" if len(absent) > 3 else "")
        yield _Note(
            f"{path} lacks {some}; robot-rl trains without, and for LeRobot `robot-rl dataset stats {data.root}` "
            "computes them"
        )
