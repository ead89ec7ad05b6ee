"""Read a LeRobotDataset v3.0, also while another process writes it."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from robot_rl.data import lerobot
from robot_rl.data.lerobot import INFO, STATS, DatasetError, Feature, FileId, check_inside, file_id, file_path
from robot_rl.data.stats import BASIC, Stats, column_stats, image_stats, merge_stats, read_stats, sampled, stored_stats
from robot_rl.data.tables import from_arrow, read_rows, read_table, read_tasks, row_places
from robot_rl.data.video import decode_frames, decode_picture
from robot_rl.data.view import DatasetView, resized

_COLUMNS = ("episode_index", "tasks", "length", "dataset_from_index", "dataset_to_index")
_PREFIXES = ("data/", "videos/", "meta/", "stats/")
_BLOCK = 256
"""Number of frames that are decoded and then resized together."""


@dataclass(frozen=True)
class Episode:
    """One finished episode of a dataset."""

    index: int
    length: int
    task: str
    """First instruction of the episode. Column `task_index` has the number of each frame's instruction."""
    tasks: tuple[str, ...]
    """All instructions of the episode."""
    start: int
    """Dataset row of the episode's first frame, the same in every column."""
    record: dict[str, Any]
    """Further values that the writer stored with the episode, for example `randomization/cube_mass`."""
    data_file: FileId = field(repr=False)
    videos: dict[str, tuple[FileId, float]] = field(repr=False)
    """By camera: file of the video, and time in the video at which the episode starts, s."""


class Dataset:
    """Dataset on disk; columns are read on first use and cached.

    >>> data = Dataset("datasets/lift")
    >>> data.column("action")                                   # (num_frames, 7) float32
    >>> data.frames("observation.images.front", [0, 5, 10])     # (3, 96, 96, 3) uint8
    >>> data.refresh()                                          # 2: number of newly finished episodes
    """

    def __init__(self, root: str | Path, view: DatasetView | None = None) -> None:
        self.root, self.view = Path(root), view or DatasetView()
        self.episodes: list[Episode] = []
        self.tasks: list[str] = []
        self._stamp: tuple[int, ...] = ()
        self._used: set[Path] = set()  # episode files with loaded episodes
        self._complete: set[Path] = set()  # episode files whose episodes are all loaded
        self._columns: dict[str, tuple[int, Tensor]] = {}
        self._pictures: dict[str, tuple[Any, pa.Table]] = {}  # last data file that was read for each camera
        check_inside(self.root, write=False)
        self._load()

    @property
    def fps(self) -> float:
        """Frames per second; an int if the rate is a whole number."""
        fps: float = self.info["fps"]
        return fps

    @property
    def robot_type(self) -> str | None:
        return self.info.get("robot_type")

    @property
    def num_episodes(self) -> int:
        return len(self.episodes)

    @property
    def num_frames(self) -> int:
        """Number of frames in all finished episodes."""
        return self.episodes[-1].start + self.episodes[-1].length if self.episodes else 0

    @property
    def cameras(self) -> list[str]:
        """Names of the RGB camera features."""
        return [key for key, feature in self.features.items() if feature.is_camera]

    def refresh(self) -> int:
        """Load episodes finished since the last call and return their number; it costs one `stat` if there are none."""
        before = self.num_episodes
        self._load()
        return self.num_episodes - before

    def column(self, key: str) -> Tensor:
        """Return a column of all episodes, (num_frames, *shape) in the feature's dtype: cached, do not change it."""
        return self.columns([key])[key]

    def columns(self, keys: Iterable[str]) -> dict[str, Tensor]:
        """Return several columns by name; faster than a call of `column` for each, since every file is opened once."""
        keys = list(keys)
        features = {key: self._feature(key, camera=False) for key in keys}
        stored = {key: self.view.stored.get(key, key) for key in keys}
        done = min((self._columns[key][0] if key in self._columns else 0 for key in keys), default=0)
        parts: dict[str, list[Tensor]] = {key: [] for key in keys}
        for file, episodes in by_file(self.episodes[done:]).items():
            path = self.data_path(file)
            table = read_rows(path, stored.values())
            first, length = episodes[0].start, sum(episode.length for episode in episodes)
            places = row_places(table, np.arange(first, first + length), path)
            for key, feature in features.items():
                values = from_arrow(table[stored[key]].take(places), feature, f"{path}: '{key}'")
                parts[key].append(torch.from_numpy(values if values.flags.writeable else values.copy()))
        kept = self.episodes[done].start if done < self.num_episodes else self.num_frames
        for key, feature in features.items():
            pieces = [self._columns[key][1][:kept]] if done else []
            pieces += parts[key]
            pieces = pieces or [torch.from_numpy(np.empty((0, *feature.shape), dtype=feature.dtype))]
            self._columns[key] = (self.num_episodes, torch.cat(pieces) if len(pieces) > 1 else pieces[0])
        return {key: self._columns[key][1] for key in keys}

    def frames(self, key: str, indices: Sequence[int] | Tensor | np.ndarray[Any, Any]) -> Tensor:
        """Decode a camera's frames at dataset rows (n,), in any order; return (n, H, W, 3) uint8."""
        rows = np.asarray(indices, dtype=np.int64).reshape(-1)
        if not (size := self.view.image_size):
            return torch.from_numpy(self._decoded(key, rows))
        blocks = (rows[k : k + _BLOCK] for k in range(0, max(1, len(rows)), _BLOCK))
        return torch.from_numpy(np.concatenate([resized(self._decoded(key, block), size) for block in blocks]))

    def _decoded(self, key: str, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return a camera's frames at dataset rows (n,) in their stored size."""
        self._feature(key, camera=True)
        stored = self.view.stored.get(key, key)
        feature = self._stored[stored]
        if len(rows) and not (rows.min() >= 0 and rows.max() < self.num_frames):
            raise DatasetError(f"frame {rows.max()} of {self.root}: it has {self.num_frames} frames")
        out = np.empty((len(rows), *feature.shape), dtype=np.uint8)
        starts = np.array([episode.start for episode in self.episodes], dtype=np.int64)
        order = np.argsort(rows, kind="stable")
        owner = np.searchsorted(starts, rows[order], side="right") - 1
        jobs: dict[FileId, tuple[list[int], list[float]]] = {}
        for place, row, number in zip(order, rows[order], owner, strict=True):
            episode = self.episodes[number]
            file, begin = episode.videos[stored] if feature.is_video else (episode.data_file, 0.0)
            places, sources = jobs.setdefault(file, ([], []))
            places.append(int(place))
            sources.append(begin + (row - starts[number]) / self.fps if feature.is_video else row)
        for file, (places, sources) in jobs.items():
            images = np.empty((len(places), *feature.shape), dtype=np.uint8)
            if feature.is_video:
                decode_frames(self.video_path(file, stored), sources, self.fps, images)
            else:
                self._decode_stored(stored, file, np.array(sources, np.int64), images)
            out[places] = images
        return out

    def data_path(self, file: FileId) -> Path:
        return self.root / file_path(self.info["data_path"], file)

    def video_path(self, file: FileId, key: str) -> Path:
        """Return the path of a camera's video file; `key` is the stored name of the camera."""
        return self.root / file_path(self.info["video_path"], file, key)

    def _decode_stored(self, key: str, file: FileId, rows: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> None:
        """Decode the pictures of dataset rows (n,) from a data file into `out` (n, H, W, 3)."""
        path = self.data_path(file)
        for i, (row, encoded) in enumerate(zip(rows, self.encoded(key, file, rows), strict=True)):
            picture = decode_picture(encoded)
            if picture is None:
                raise DatasetError(f"{path}: '{key}' of frame {row} holds no picture (PNG or JPEG); restore the file")
            if picture.shape != out.shape[1:]:
                raise DatasetError(f"{path}: '{key}' of frame {row} is {picture.shape}, {INFO} says {out.shape[1:]}")
            out[i] = picture

    def encoded(self, key: str, file: FileId, rows: np.ndarray[Any, Any]) -> Iterator[Any]:
        """Yield the encoded pictures of dataset rows (n,) from column `key` of a data file."""
        path, version = self.data_path(file), (file, self.num_episodes)
        if self._pictures.get(key, (None,))[0] != version:
            self._pictures[key] = (version, read_rows(path, [key]))
        table = self._pictures[key][1]
        for place in row_places(table, rows, path).tolist():
            cell = table[key][place].as_py()
            yield cell.get("bytes") if isinstance(cell, dict) else cell

    @property
    def stats(self) -> dict[str, dict[str, Tensor]]:
        """Statistics of every feature of the dataset: `min max mean std q01 q10 q50 q90 q99 count`, float64 tensors."""
        names = {old: new for new, old in self.view.stored.items()}
        stats = {names.get(key, key): entry for key, entry in read_stats(self.root / STATS).items()}
        if not self.stats_current():  # a writer is between two renames, or was killed there
            stats = {key: merge_stats(parts) for key, parts in self.episode_stats().items()}
        return {
            key: {name: torch.from_numpy(np.asarray(value, dtype=np.float64)) for name, value in entry.items()}
            for key, entry in stats.items()
        }

    def stats_current(self) -> bool:
        """Return whether `stats.json` covers the episodes that `info.json` counts."""
        counted = read_stats(self.root / STATS).get("index", {}).get("count")
        if counted is None:
            return self.num_frames == 0
        return counted.shape == (1,) and counted[0] == self.num_frames

    def files(self) -> set[Path]:
        """Return the data, video and episode files of all episodes."""
        data = {self.data_path(file) for file in {episode.data_file for episode in self.episodes}}
        videos = {(file, key) for episode in self.episodes for key, (file, _) in episode.videos.items()}
        return data | {self.video_path(*video) for video in videos} | self._used

    def uncounted_files(self) -> list[Path]:
        """Return data, video and episode files that `info.json` does not count and that LeRobot would misuse."""
        videos = [f"videos/{key}/*/*.mp4" for key, feature in self._stored.items() if feature.is_video]
        patterns = ["data/*/*.parquet", "meta/episodes/*/*.parquet", *videos]
        return sorted({path for pattern in patterns for path in self.root.glob(pattern)} - self.files())

    def episode_stats(self, needed: Collection[str] = ()) -> dict[str, list[Stats]]:
        """Return the statistics of every readable feature, one entry per episode; {} if the dataset has no episodes.

        If an episode lacks a statistic of `needed` for a feature, the feature's statistics are computed from the data.
        If `needed` is empty, features with missing statistics are left out. DatasetError for damaged statistics.
        """
        rows: dict[int, dict[str, Any]] = {}
        for path in self.episode_files():
            if path in self._used:
                table = read_table(path, lambda name: name == "episode_index" or name.startswith("stats/"))
                rows.update((row["episode_index"], row) for row in table.to_pylist())
        if not self.episodes:
            return {}
        stats: dict[str, list[Stats]] = {}
        for key, feature in self.features.items():
            if feature.is_read:
                old, folder = self.view.stored.get(key, key), self.root / "meta/episodes"
                stored = [stored_stats(rows[episode.index], old, feature, folder) for episode in self.episodes]
                if all(name in entry for name in needed or BASIC for entry in stored):
                    stats[key] = stored
                elif needed:
                    stats[key] = [self._computed_stats(episode, key, feature) for episode in self.episodes]
        return stats

    def _computed_stats(self, episode: Episode, key: str, feature: Feature) -> Stats:
        """Compute the statistics of one feature over an episode."""
        if feature.is_camera:
            return image_stats(self.frames(key, episode.start + sampled(episode.length)).numpy())
        return column_stats(self.column(key)[episode.start : episode.start + episode.length].numpy())

    def _feature(self, key: str, camera: bool) -> Feature:
        """Return a feature; DatasetError if it is missing, unreadable, or not of the kind `camera` (False: numbers)."""
        feature = self.features.get(key)
        if feature is None:
            raise DatasetError(f"{self.root} has no feature '{key}'; it has {', '.join(self.features)}")
        if not feature.is_read:
            kind = f"a {feature.dtype} of shape {feature.shape}"
            raise DatasetError(f"feature '{key}' of {self.root} is {kind}, which is not read here")
        if feature.is_camera != camera:
            method = "frames(key, indices)" if feature.is_camera else "column(key)"
            raise DatasetError(f"feature '{key}' of {self.root} is {feature.dtype}; read it with {method}")
        return feature

    def episode_files(self) -> list[Path]:
        """Return the files of `meta/episodes`, oldest first."""
        files = ((file_id(path), path) for path in (self.root / "meta/episodes").glob("chunk-*/file-*.parquet"))
        return [path for file, path in sorted((file, path) for file, path in files if file is not None)]

    def _load(self) -> None:
        """Read `info.json`, and load the episodes that are not loaded yet."""
        try:
            status = (self.root / INFO).stat()
            stamp: tuple[int, ...] = (status.st_mtime_ns, status.st_ino, status.st_size)
        except OSError:
            stamp = ()
        if stamp and stamp == self._stamp:
            return
        info = lerobot.read_info(self.root)
        total = int(info["total_episodes"])
        total = total if self.view.episodes is None else min(total, self.view.episodes)
        if total < self.num_episodes:
            raise DatasetError(f"{self.root} was replaced by another dataset; open it again")
        rows: dict[int, dict[str, Any]] = {}
        failure: DatasetError | None = None
        used, complete = set(self._used), set(self._complete)
        if total > self.num_episodes:
            for path in self.episode_files():
                if path in complete:
                    continue
                try:
                    stored = read_table(path, lambda name: not name.startswith("stats/")).to_pylist()
                    if any(type(row.get("episode_index")) is not int for row in stored):
                        raise DatasetError(f"{path} has rows without an 'episode_index'; restore it from a copy")
                except DatasetError as error:  # no failure yet: info.json may not count this file
                    failure = error
                    continue
                counted = [row for row in stored if row["episode_index"] < total]
                rows.update((row["episode_index"], row) for row in counted)
                if counted:
                    used.add(path)
                if counted and len(counted) == len(stored):
                    complete.add(path)
        new = range(self.num_episodes, total)
        missing = next((index for index in new if index not in rows), None)
        if missing is not None and self._complete:  # LeRobot itself appends to files
            self._complete, self._stamp = set(), ()
            return self._load()
        if missing is not None:
            raise failure or DatasetError(
                f"{self.root / 'meta/episodes'} lacks episode {missing} of the {total} in {INFO}; "
                "restore the folder from a copy"
            )
        tasks = read_tasks(self.root / lerobot.TASKS) if len(self.tasks) < int(info["total_tasks"]) else self.tasks
        features = {key: Feature.from_json(entry) for key, entry in info["features"].items()}
        self.episodes += [_episode(rows[index], features, self.root) for index in new]
        self._stored, self.features = features, self.view.features(features)
        self.info, self.tasks = info, tasks[: int(info["total_tasks"])]
        self._stamp, self._used, self._complete = stamp, used, complete


def is_reserved(column: str) -> bool:
    """Return whether a column of `meta/episodes` is part of the format, not of an episode's record."""
    return column in _COLUMNS or column.startswith(_PREFIXES)


def _episode(row: dict[str, Any], features: dict[str, Feature], root: Path) -> Episode:
    """Check a row of `meta/episodes` and return its episode. The row needs video columns only for RGB cameras."""
    videos = [key for key, feature in features.items() if feature.is_video]
    videos = [key for key in videos if features[key].is_camera or row.get(f"videos/{key}/file_index") is not None]
    places = [f"videos/{key}/{name}" for key in videos for name in ("chunk_index", "file_index", "from_timestamp")]
    for name in ("tasks", "length", "dataset_from_index", "data/chunk_index", "data/file_index", *places):
        if name not in row:
            raise DatasetError(f"{root / 'meta/episodes'} has no column '{name}'; restore it from a copy")
        value = row[name]
        if name == "tasks":
            sound = value is None or (isinstance(value, list) and all(isinstance(task, str) for task in value))
        else:
            kinds = (int, float) if name.endswith("timestamp") else (int,)
            sound = type(value) in kinds and 0 <= value < 2**53  # range of exact whole numbers in float64
        if not sound:
            fault = f"'{name}' of episode {row['episode_index']} is {value!r}"
            fault = fault if value is not None else f"no '{name}' of episode {row['episode_index']}"
            raise DatasetError(f"{root / 'meta/episodes'} has {fault}; restore it from a copy")

    def file(prefix: str) -> FileId:
        return row[f"{prefix}/chunk_index"], row[f"{prefix}/file_index"]

    return Episode(
        index=row["episode_index"],
        length=row["length"],
        task=(row["tasks"] or [""])[0],
        tasks=tuple(row["tasks"] or [""]),
        start=row["dataset_from_index"],
        record={key: value for key, value in row.items() if value is not None and not is_reserved(key)},
        data_file=file("data"),
        videos={key: (file(f"videos/{key}"), row[f"videos/{key}/from_timestamp"]) for key in videos},
    )


def by_file(episodes: Iterable[Episode], key: str | None = None) -> dict[FileId, list[Episode]]:
    """Group episodes, in order, by data file, or by the video file of camera `key` if it is given."""
    groups: dict[FileId, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.videos[key][0] if key else episode.data_file, []).append(episode)
    return groups
