"""Write a LeRobotDataset v3.0 in whole episodes; a crash loses at most the current episode."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robot_rl.data import lerobot
from robot_rl.data.dataset import Dataset, is_reserved
from robot_rl.data.episode import EpisodeData, check_columns, default_columns, frame_tasks
from robot_rl.data.lerobot import INFO, STATS, DatasetError, Feature, FileId, WrongDataset, check_inside, file_path
from robot_rl.data.stats import BASIC, STATISTICS, RowSample, Stats, column_stats, encode_stats, image_stats, merge
from robot_rl.data.storage import LOCK, STAGING, WriterLock, clear_staging, is_published, publish
from robot_rl.data.tables import encode_table, encode_tasks, plain_value, read_table, rows_to_table, to_arrow, widen
from robot_rl.data.video import encode_video, video_info

logger = logging.getLogger(__name__)
Array = np.ndarray[Any, np.dtype[Any]]
ASIDE = ".aside"


@dataclass(frozen=True)
class _State:
    """State of the dataset that the next commit extends. It is replaced as a whole: a failed commit changes nothing."""

    info: dict[str, Any]
    tasks: tuple[str, ...]
    stats: dict[str, Stats]
    sample: RowSample
    schema: pa.Schema | None
    """Columns of the first file in meta/episodes: every column, since LeRobot casts other files to the first file."""
    first_file: FileId
    next_file: FileId


class DatasetWriter:
    """Writer that adds finished episodes to a dataset.

    >>> features = {"action": Feature("float32", (7,))}
    >>> with DatasetWriter.create("datasets/lift", fps=20, features=features) as writer:
    ...     writer.add_episode({"action": actions}, task="lift the cube")  # on disk when this returns
    """

    def __init__(self, root: Path, state: _State, lock: WriterLock) -> None:
        self.root = root
        self._state = state
        self._lock = lock
        self._closed = False

    @classmethod
    def create(
        cls, root: str | Path, *, fps: int, features: Mapping[str, Feature], robot_type: str | None = None
    ) -> DatasetWriter:
        """Start a dataset in a new or empty folder."""
        root = Path(root)
        info = lerobot.new_info(fps, features, robot_type)
        root.mkdir(parents=True, exist_ok=True)
        check_inside(root)
        lock = WriterLock(root)
        try:
            if (root / INFO).exists():
                raise WrongDataset(f"{root} holds a dataset already; go on with --resume, or choose another --out")
            others = (path for path in root.iterdir() if path.name not in (LOCK, STAGING))
            if any(path.is_file() or any(path.iterdir()) for path in others):
                raise WrongDataset(f"{root} is not empty; choose another --out")
            clear_staging(root)
            publish(root, {}, (), (INFO, lerobot.encode_json(info)))
        except BaseException:
            lock.release()
            raise
        return cls(root, _State(info, (), {}, RowSample(), None, (0, 0), (0, 0)), lock)

    @classmethod
    def append(cls, root: str | Path) -> DatasetWriter:
        """Check a dataset and open it for appending; move files that `info.json` does not count to `.aside`."""
        root = Path(root)
        data = Dataset(root)
        check_inside(root)
        lock = WriterLock(root)
        try:
            data.refresh()
            foreign = {
                key: f"{f.dtype} of shape {f.shape}"
                for key, f in data.features.items()
                if not (f.is_camera if f.is_video else f.dtype in lerobot.DTYPES)
            }
            if foreign:
                raise DatasetError(f"{root} has features {foreign}, which cannot be written; start a new dataset")
            state = _read_state(data)
            clear_staging(root)
            _move_aside(data)
            if state.stats and not data.stats_current():
                publish(root, {STATS: encode_stats(state.stats)}, (), (INFO, (root / INFO).read_bytes()))
            return cls(root, state, lock)
        except BaseException:
            lock.release()
            raise

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def features(self) -> dict[str, Feature]:
        """All features of the dataset, including the columns that the writer fills."""
        return {key: Feature.from_json(entry) for key, entry in self._state.info["features"].items()}

    @property
    def num_episodes(self) -> int:
        return int(self._state.info["total_episodes"])

    @property
    def num_frames(self) -> int:
        return int(self._state.info["total_frames"])

    def close(self) -> None:
        """Release the lock; all episodes are on disk already."""
        self._closed = True
        self._lock.release()

    def add_episode(
        self, columns: Mapping[str, Any], task: str | Sequence[str], record: Mapping[str, Any] | None = None
    ) -> None:
        """Write one episode, which then survives a kill and a power cut; `EpisodeData` describes the arguments."""
        self.add_episodes([EpisodeData(columns, task, record or {})])

    def add_episodes(self, episodes: Sequence[EpisodeData]) -> None:
        """Write several episodes atomically: one data file, one episode file, and one video file per camera for all."""
        if self._closed:
            raise DatasetError(f"the writer of {self.root} is closed; open it again with DatasetWriter.append")
        if not episodes:
            return
        state, features = self._state, self.features
        fps, start = state.info["fps"], int(state.info["total_frames"])
        tasks = list(state.tasks)
        stats = {key: [entry] for key, entry in state.stats.items()}
        sample = state.sample.copy()
        columns: list[dict[str, Array]] = []
        rows: list[dict[str, Any]] = []
        for index, episode in enumerate(episodes, start=self.num_episodes):
            values = check_columns(episode.columns, features)
            length = len(next(iter(values.values())))
            texts = frame_tasks(episode, length)
            tasks += [task for task in dict.fromkeys(texts) if task not in tasks]
            values |= default_columns(length, fps, index, start, [tasks.index(task) for task in texts])
            summary = {
                key: image_stats(values[key]) if feature.is_video else column_stats(values[key])
                for key, feature in features.items()
            }
            for key, entry in summary.items():
                stats.setdefault(key, []).append(entry)
            sample.add(start, {key: array for key, array in values.items() if not features[key].is_video})
            rows.append(episode_row(index, start, texts, episode.record, summary, state.next_file))
            columns.append(values)
            start += length

        info = {**state.info, "features": dict(state.info["features"])}
        files: dict[str, bytes | memoryview] = {}
        table = {
            key: to_arrow(np.concatenate([values[key] for values in columns]), feature)
            for key, feature in features.items()
            if not feature.is_video
        }
        files[file_path(info["data_path"], state.next_file)] = encode_table(pa.table(table))
        for key in [key for key, feature in features.items() if feature.is_video]:
            video = encode_video((image for values in columns for image in values[key]), fps)
            files[file_path(info["video_path"], state.next_file, key)] = video
            if not features[key].info:
                info["features"][key] = replace(features[key], info=video_info(video)).to_json()
            add_video(rows, key, state.next_file, fps)
        episodes_table, schema = rows_to_table(rows, state.schema)
        files[file_path(lerobot.EPISODES_PATH, state.next_file)] = encode_table(episodes_table)
        new = list(files)
        if state.schema is not None and schema != state.schema:
            first = file_path(lerobot.EPISODES_PATH, state.first_file)
            files = {first: encode_table(widen(read_table(self.root / first), schema)), **files}
        merged = merge(stats, sample)
        files |= {lerobot.TASKS: encode_tasks(tasks), STATS: encode_stats(merged)}

        total = self.num_episodes + len(episodes)
        info |= {
            "total_episodes": total, "total_frames": start, "total_tasks": len(tasks),
            "splits": {"train": f"0:{total}"},
        }  # fmt: skip
        first_file = state.next_file if state.schema is None else state.first_file
        done = _State(info, tuple(tasks), merged, sample, schema, first_file, _after(state.next_file, info))
        commit = (INFO, lerobot.encode_json(info))
        try:
            publish(self.root, files, new, commit)
        finally:  # Ctrl-C may interrupt after the commit
            if is_published(self.root, commit):
                self._state = done


def episode_row(
    index: int, start: int, tasks: Sequence[str], given: Mapping[str, Any], stats: Mapping[str, Stats], file: FileId
) -> dict[str, Any]:
    """Return an episode's row of `meta/episodes` without the columns of its videos.

    Args:
        tasks: instruction of each frame.
        given: record of the episode.
        file: indices of the episode's data file, equal to those of its file in `meta/episodes`.
    """
    record = {key: plain_value(key, value) for key, value in given.items()}
    for key in record:
        if is_reserved(key):
            raise DatasetError(f"record '{key}' is a name that LeRobot uses itself; choose another")
    return {
        "episode_index": index, "tasks": list(dict.fromkeys(tasks)), "length": len(tasks),
        "data/chunk_index": file[0], "data/file_index": file[1],
        "dataset_from_index": start, "dataset_to_index": start + len(tasks),
        **{key: value for key, value in record.items() if value is not None},
        **{f"stats/{key}/{name}": value.tolist() for key, s in stats.items() for name, value in s.items()},
        "meta/episodes/chunk_index": file[0], "meta/episodes/file_index": file[1],
    }  # fmt: skip


def add_video(rows: Sequence[dict[str, Any]], key: str, file: FileId, fps: float) -> None:
    """Set the columns of camera `key` in the rows of consecutive episodes that share one mp4 file."""
    frames = 0
    for row in rows:
        row[f"videos/{key}/chunk_index"], row[f"videos/{key}/file_index"] = file
        row[f"videos/{key}/from_timestamp"] = frames / fps
        frames += row["length"]
        row[f"videos/{key}/to_timestamp"] = frames / fps


def _after(file: FileId, info: Mapping[str, Any]) -> FileId:
    """Return the indices of the file after `file`."""
    chunk, index = file
    return (chunk, index + 1) if index + 1 < info.get("chunks_size", lerobot.CHUNK_SIZE) else (chunk + 1, 0)


def write_stats(root: str | Path) -> None:
    """Compute the statistics of a dataset and write them to `meta/stats.json`."""
    root = Path(root)
    data = Dataset(root)
    check_inside(root)
    lock = WriterLock(root)
    try:
        data.refresh()
        stats = _read_state(data, STATISTICS).stats
        publish(root, {STATS: encode_stats(stats)}, (), (INFO, (root / INFO).read_bytes()))
    finally:
        lock.release()


def _read_state(data: Dataset, needed: Collection[str] = BASIC) -> _State:
    """Return the writer's state for an existing dataset; if a feature lacks any of `needed`, compute its statistics."""
    sample = RowSample()
    if data.num_frames:
        numbers = [key for key, feature in data.features.items() if feature.dtype in lerobot.DTYPES]
        sample.add(0, {key: values.numpy() for key, values in data.columns(numbers).items()})
    stats = merge(data.episode_stats(needed), sample)
    paths = [path for path in data.episode_files() if path in data.files()]
    first_file, schema = (0, 0), None
    if paths:
        first_file, schema = lerobot.file_id(paths[0]) or first_file, pq.read_schema(paths[0]).remove_metadata()
    files = [file for path in data.files() if (file := lerobot.file_id(path))]
    next_file = _after(max(files), data.info) if files else (0, 0)
    return _State(data.info, tuple(data.tasks), stats, sample, schema, first_file, next_file)


def _move_aside(data: Dataset) -> None:
    """Move the files that `info.json` does not count to a new folder in `<root>/.aside`."""
    uncounted = data.uncounted_files()
    folder = next(folder for n in count() if not (folder := data.root / ASIDE / str(n)).exists())
    for path in uncounted:
        moved = folder / path.relative_to(data.root)
        moved.parent.mkdir(parents=True, exist_ok=True)
        path.rename(moved)
        logger.warning("%s is not counted by %s: a writer died before its commit; moved to %s", path, INFO, moved)
