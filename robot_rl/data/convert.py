"""Convert a LeRobot v2.1 or v2.0 dataset to v3.0.

    meta/episodes.jsonl  meta/tasks.jsonl  meta/episodes_stats.jsonl (v2.1)
    data/chunk-000/episode_000000.parquet  videos/chunk-000/<camera>/episode_000000.mp4

Every episode keeps its own files, as v3.0 allows: numbers stay bit-identical, and videos are copied.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data import lerobot
from robot_rl.data.lerobot import INFO, STATS, DatasetError, Feature, WrongDataset, check_inside, encode_json, file_path
from robot_rl.data.stats import (
    BASIC,
    RowSample,
    Stats,
    column_stats,
    encode_stats,
    image_stats,
    known_stats,
    merge,
    sampled,
)
from robot_rl.data.storage import LOCK, WriterLock
from robot_rl.data.tables import encode_table, encode_tasks, from_arrow, read_table, rows_to_table
from robot_rl.data.video import decode_frames
from robot_rl.data.writer import add_video, episode_row
from robot_rl.util.files import sync_folder, write_file

DATA = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"


def convert(root: Path, out: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
    """Convert the dataset in `root` to v3.0 in a new folder `out`, which appears once the conversion is complete.

    Raises:
        WrongDataset: `root` has no dataset of version v2.1 or v2.0, or `out` is not empty.
        DatasetError: a file is missing or damaged.
    """
    check_inside(root)
    conversion = _Conversion(root, out.with_name(f".{out.name}.part"))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise WrongDataset(f"{out} is not empty; choose another folder to convert to")
    part = conversion.part
    part.mkdir(parents=True, exist_ok=True)
    lock = WriterLock(part)
    try:
        for old in part.iterdir():  # left by a killed conversion
            if old.name != LOCK:
                shutil.rmtree(old)
        conversion.run(progress)
        for folder, _, _ in os.walk(part):
            sync_folder(Path(folder))
        part.rename(out)
        sync_folder(out.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        lock.release()


class _Conversion:
    """Conversion of the dataset in `root` to the temporary folder `part`."""

    def __init__(self, root: Path, part: Path):
        self.root, self.part, self.info = root, part, lerobot.load_info(root)
        path, version = root / INFO, self.info["codebase_version"]
        if version not in lerobot.CONVERTED:
            known = " and ".join(lerobot.CONVERTED)
            why = "it needs no conversion" if version == lerobot.VERSION else f"only {known} are converted"
            raise WrongDataset(f"{path} says codebase_version {version!r}; {why}")
        self.chunk = self.info.get("chunks_size", lerobot.CHUNK_SIZE)
        """Number of episodes per folder `chunk-...`."""
        videos = self.info.get("video_path")
        for key, paths in {"data_path": (DATA,), "video_path": (VIDEO, None)}.items():
            if self.info.get(key) not in paths:
                raise DatasetError(f"{path}: {key} is {self.info.get(key)!r}; LeRobot {version} has {paths[0]!r}")
        for key in ("total_chunks", "total_videos"):
            self.info.pop(key, None)
        self.info |= {"codebase_version": lerobot.VERSION, "chunks_size": lerobot.CHUNK_SIZE}
        self.info |= {"data_files_size_in_mb": 100, "video_files_size_in_mb": 200}
        self.info |= {"data_path": lerobot.DATA_PATH, "video_path": videos and lerobot.VIDEO_PATH}
        lerobot.check_info(path, self.info)
        self.features = {key: Feature.from_json(entry) for key, entry in self.info["features"].items()}
        self.tasks = [str(row["task"]) for row in self._lines("tasks", "task_index", "task")]
        self.sample, self.rows, self.stats = RowSample(), list[dict[str, Any]](), dict[str, list[Stats]]()

    def run(self, progress: Callable[[int, int], None]) -> None:
        episodes = self._lines("episodes", "episode_index", "length")
        total, start = self.info["total_episodes"], 0
        if len(episodes) != total:
            raise DatasetError(f"{self.root}/meta/episodes.jsonl has {len(episodes)} episodes, {INFO} counts {total}")
        given = (self.root / "meta/episodes_stats.jsonl").exists()
        known = self._lines("episodes_stats", "episode_index", "stats") if given else [{"stats": {}}] * total
        for index, (episode, entry) in enumerate(zip(episodes, known, strict=True)):
            self._episode(index, start, episode["length"], entry["stats"])
            start += episode["length"]
            progress(index + 1, total)
        self.info |= {"total_frames": start, "total_tasks": len(self.tasks), "splits": {"train": f"0:{total}"}}
        if total:
            rows = encode_table(rows_to_table(self.rows, None)[0])
            write_file(self.part / file_path(lerobot.EPISODES_PATH, (0, 0)), rows)
            write_file(self.part / STATS, encode_stats(merge(self.stats, self.sample)))
            write_file(self.part / lerobot.TASKS, encode_tasks(self.tasks))
        write_file(self.part / INFO, encode_json(self.info))

    def _episode(self, index: int, start: int, length: int, known: Mapping[str, Any]) -> None:
        """Copy one episode's files, and add the episode's row and statistics to the new dataset."""
        place: dict[str, Any] = {"episode_chunk": index // self.chunk, "episode_index": index}
        path, file = self.root / DATA.format(**place), divmod(index, lerobot.CHUNK_SIZE)
        table, columns = read_table(path), {}
        for key, feature in self.features.items():
            if not feature.is_video and key not in table.column_names:
                raise DatasetError(f"{path} has no column '{key}'; restore it from a copy")
            if feature.dtype in lerobot.DTYPES:
                columns[key] = from_arrow(table[key], feature, f"{path}: '{key}'")
        tasks = columns["task_index"].reshape(-1)
        if table.num_rows != length or (columns["index"].reshape(-1) != np.arange(start, start + length)).any():
            raise DatasetError(f"{path} does not hold rows {start} to {start + length - 1}; restore it from a copy")
        if not 0 <= tasks.min() <= tasks.max() < len(self.tasks):
            raise DatasetError(f"{path} has a task_index that meta/tasks.jsonl lacks; restore it from a copy")
        write_file(self.part / file_path(lerobot.DATA_PATH, file), encode_table(table))
        self.sample.add(start, columns)
        stats = {key: column_stats(values) for key, values in columns.items()}
        given = {key: known_stats(known.get(key, {})) for key in self.features.keys() - columns}
        stats |= {key: entry for key, entry in given.items() if {*BASIC} <= entry.keys()}
        videos = [key for key, feature in self.features.items() if feature.is_video]
        for key in videos:
            video = self.root / VIDEO.format(**place, video_key=key)
            try:
                encoded = video.read_bytes()
            except FileNotFoundError:
                raise DatasetError(f"{video} is missing; restore it from a copy") from None
            write_file(self.part / file_path(lerobot.VIDEO_PATH, file, key), encoded)
            if key not in stats and self.features[key].is_camera:
                stats[key] = self._video_stats(video, length, self.features[key])
        row = episode_row(index, start, [self.tasks[k] for k in tasks], {}, stats, file)
        self.rows.append(row | {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})
        for key in videos:
            add_video(self.rows[-1:], key, file, self.info["fps"])
        for key, entry in stats.items():
            self.stats.setdefault(key, []).append(entry)

    def _video_stats(self, video: Path, length: int, feature: Feature) -> Stats:
        """Return the statistics of sampled frames of a video."""
        rows, fps = sampled(length), self.info["fps"]
        frames = np.empty((len(rows), *feature.shape), np.uint8)
        decode_frames(video, rows / fps, fps, frames)
        return image_stats(frames)

    def _lines(self, name: str, number: str, key: str) -> list[dict[str, Any]]:
        """Return a meta/ file's rows in order of `number`, which must count from 0; every row must have a `key`."""
        path = self.root / f"meta/{name}.jsonl"
        try:
            rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_bytes().splitlines() if line.strip()]
            rows.sort(key=lambda row: int(row[number]))
            if [row[number] for row in rows if key in row] != list(range(len(rows))):
                raise ValueError(f"not every {number} from 0 on has one {key}")
        except FileNotFoundError:
            raise DatasetError(f"{path} is missing; restore it from a copy") from None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DatasetError(f"{path} is damaged ({error}); restore it from a copy") from error
        return rows
