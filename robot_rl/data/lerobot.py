"""LeRobotDataset v3.0 on disk: its names, its features and its `meta/info.json`.

```
<root>/meta/info.json                                  what exists; written last, so it is the commit point
       meta/stats.json  meta/tasks.parquet
       meta/episodes/chunk-000/file-000.parquet        one row per episode
       data/chunk-000/file-000.parquet                 one row per frame, numbers only
       videos/<camera>/chunk-000/file-000.mp4          the frames of the same episodes
```

An episode exists once `info.json` counts it. Files that it does not count were left by a killed writer; readers skip
them, `DatasetWriter.append` moves them to `<root>/.aside`.

A dataset may come from anywhere, so no name in it leads out of its folder: the paths are LeRobot's own, names have no
'/', and a link that leads out is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.util.errors import ConfigError, UserError
from robot_rl.util.files import leaks

VERSION = "v3.0"
CONVERTED = ("v2.1", "v2.0")
"""Versions that `robot_rl.data.convert` makes v3.0 of."""
INFO = "meta/info.json"
STATS = "meta/stats.json"
TASKS = "meta/tasks.parquet"
FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
EPISODES_PATH = f"meta/episodes/{FILE}.parquet"
DATA_PATH = f"data/{FILE}.parquet"
VIDEO_PATH = "videos/{video_key}/" + FILE + ".mp4"
CHUNK_SIZE = 1000
DTYPES = frozenset(["bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64"])

MOST_NUMBERS = 2**28
"""Largest number of values in a feature's row: a picture of 9459 x 9459 pixels."""

FileId = tuple[int, int]
"""(chunk_index, file_index) of a file."""


class DatasetError(UserError):
    """A dataset cannot be read or written; the message names the file and what to do."""


class WrongDataset(DatasetError, ConfigError):  # noqa: N818 - it reads as a sentence
    """The folder holds no dataset that can be read or that fits, or none may be started there; nothing is broken."""


@dataclass(frozen=True)
class Feature:
    """One column of a dataset.

    >>> Feature("float32", (7,), names=["j1", "j2", "j3", "j4", "j5", "j6", "j7"])
    >>> Feature("video", (96, 96, 3), names=["height", "width", "channels"])
    """

    dtype: str
    """`video`, or the numpy name of a number type, e.g. `float32` or `bool`."""
    shape: tuple[int, ...]
    """Shape of one frame's value; a single number is `(1,)`, a camera `(height, width, 3)`."""
    names: list[str] | dict[str, Any] | None = None
    """Names of the dimensions, in order."""
    info: dict[str, Any] | None = None
    """Encoding of a video; the writer fills it from the first file."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        if self.names is not None and not isinstance(self.names, dict):
            object.__setattr__(self, "names", list(self.names))

    @property
    def is_video(self) -> bool:
        """Return whether the frames are in an mp4 instead of a column."""
        return self.dtype == "video"

    def to_json(self) -> dict[str, Any]:
        """Return the entry of `info.json`."""
        entry: dict[str, Any] = {"dtype": self.dtype, "shape": list(self.shape), "names": self.names}
        return entry if self.info is None else {**entry, "info": self.info}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Feature:
        """Read an entry of `info.json`."""
        return cls(entry["dtype"], tuple(entry["shape"]), entry.get("names"), entry.get("info"))


DEFAULT_FEATURES = {
    "timestamp": Feature("float32", (1,)),
    "frame_index": Feature("int64", (1,)),
    "episode_index": Feature("int64", (1,)),
    "index": Feature("int64", (1,)),
    "task_index": Feature("int64", (1,)),
}
"""Columns that every dataset has; the writer fills them."""


def check_features(features: Mapping[str, Feature]) -> None:
    """Raise for features that LeRobot could not read."""
    for key, feature in features.items():
        if "/" in key:
            raise DatasetError(f"feature '{key}': LeRobot allows no '/' in a name; use '.' instead")
        if key in DEFAULT_FEATURES:
            raise DatasetError(f"feature '{key}' is written for every dataset; leave it out of `features`")
        if not feature.shape or min(feature.shape) < 1 or len(feature.shape) > 5:
            raise DatasetError(
                f"feature '{key}' has shape {feature.shape}; give 1 to 5 sizes of at least 1, (1,) for a single number"
            )
        if feature.is_video:
            height, width, *channels = feature.shape
            if channels != [3] or height % 2 or width % 2 or min(height, width) < 16:
                raise DatasetError(
                    f"feature '{key}' has shape {feature.shape}; a video needs (height, width, 3) with even "
                    "height and width of at least 16 pixels"
                )
        elif feature.dtype not in DTYPES:
            raise DatasetError(f"feature '{key}' has dtype '{feature.dtype}'; use 'video', {', '.join(sorted(DTYPES))}")
        names = feature.names
        if isinstance(names, list) and len(feature.shape) == 1 and len(names) != feature.shape[0]:
            raise DatasetError(f"feature '{key}' has {len(names)} names for {feature.shape[0]} dimensions")


def new_info(fps: int, features: Mapping[str, Feature], robot_type: str | None) -> dict[str, Any]:
    """Return the `info.json` of a dataset without episodes."""
    if fps < 1 or fps != int(fps):
        raise DatasetError(f"fps is {fps}; LeRobot needs a whole number of frames per second, at least 1")
    check_features(features)
    has_video = any(feature.is_video for feature in features.values())
    return {
        "codebase_version": VERSION,
        "robot_type": robot_type,
        "total_episodes": 0,
        "total_frames": 0,
        "total_tasks": 0,
        "chunks_size": CHUNK_SIZE,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": int(fps),
        "splits": {},
        "data_path": DATA_PATH,
        "video_path": VIDEO_PATH if has_video else None,
        "features": {key: feature.to_json() for key, feature in {**features, **DEFAULT_FEATURES}.items()},
    }


def read_info(root: Path) -> dict[str, Any]:
    """Read and check `meta/info.json`."""
    info, path = load_info(root), root / INFO
    if (version := info["codebase_version"]) != VERSION:
        how = f"`robot-rl dataset convert {root} OUT`" if version in CONVERTED else "LeRobot's own scripts"
        raise WrongDataset(
            f"{path} says codebase_version {version!r}, but only '{VERSION}' is read; convert it with {how}"
        )
    check_info(path, info)
    return info


def check_info(path: Path, info: Mapping[str, Any]) -> None:
    """Raise DatasetError for an `info.json` of this version that cannot be read."""
    for key in ("fps", "features", "total_episodes", "total_frames", "total_tasks", "data_path"):
        if key not in info:
            raise DatasetError(f"{path} has no '{key}'; restore the file from a copy")
    for fault in _faults(info):
        raise DatasetError(f"{path}: {fault}; restore the file from a copy")


def load_info(root: Path) -> dict[str, Any]:
    """Read the `meta/info.json` of any version."""
    path = root / INFO
    try:
        info: dict[str, Any] = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        if not root.is_dir():
            what = "is a file" if root.exists() else "does not exist"
            remedy = (
                "name the folder that holds meta/" if root.exists() else "check the path, or record a dataset there"
            )
            raise WrongDataset(f"{root} {what}; {remedy}") from None
        raise WrongDataset(
            f"{path} is missing, so {root} is not a LeRobot v3.0 dataset; name the folder that holds meta/"
        ) from None
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path} is not valid JSON ({error}); restore it from a copy") from error
    version = info.get("codebase_version") if isinstance(info, dict) else None
    if version is None:
        raise WrongDataset(
            f"{path} has no codebase_version, so {root} is no LeRobot dataset; name the folder of one, or another --out"
        )
    return info


def _faults(info: Mapping[str, Any]) -> Iterator[str]:
    """Yield what makes `info.json` unreadable."""
    for key, least in {"total_episodes": 0, "total_frames": 0, "total_tasks": 0, "fps": 1}.items():
        if isinstance(info[key], bool) or not isinstance(info[key], int | float) or not least <= info[key] < math.inf:
            yield f"{key} is {info[key]!r}, not a number of at least {least}"
    if isinstance(size := info.get("chunks_size", 1), bool) or not isinstance(size, int) or size < 1:
        yield f"chunks_size is {size!r}, not a whole number of at least 1"
    features = info["features"]
    if not isinstance(features, dict):
        yield f"features is {features!r}, not a table of names"
    if absent := DEFAULT_FEATURES.keys() - features.keys():
        yield f"features lacks '{min(absent)}'"
    for name, entry in features.items():
        if name in ("", ".", "..") or set(name) & set("/\\\0"):
            yield f"feature {name!r} is no name for a file"
        shape: Any = entry.get("shape") if isinstance(entry, dict) else None
        if not isinstance(shape, list) or not shape or not all(type(n) is int and n > 0 for n in shape):
            yield f"feature '{name}' has no shape"
        if math.prod(shape) > MOST_NUMBERS:
            yield f"feature '{name}' has shape {shape}, more than {MOST_NUMBERS} numbers"
        if not isinstance(entry.get("dtype"), str):
            yield f"feature '{name}' has no dtype"
        if entry["dtype"] == "video" and (len(shape) != 3 or shape[2] != 3):
            yield f"feature '{name}' is a video of shape {shape}, not height, width, 3"
        if not isinstance(entry.get("names"), list | dict | None):
            yield f"feature '{name}' has names {entry['names']!r}, not a list"
        if not isinstance(entry.get("info"), dict | None):
            yield f"feature '{name}' has info {entry['info']!r}, not a table"
    video = any(entry["dtype"] == "video" for entry in features.values())
    for key, path in {"data_path": DATA_PATH, **({"video_path": VIDEO_PATH} if video else {})}.items():
        if info.get(key) != path:
            yield f"{key} is {info.get(key)!r}; LeRobot {VERSION} has {path!r}, and no other is read or written"


def check_inside(root: Path) -> None:
    """Raise DatasetError if anything in a dataset's folder leads out of it, or is neither a file nor a folder."""
    if fault := next(leaks(root), None):
        raise DatasetError(fault)


def encode_json(value: Any) -> bytes:
    """Encode as LeRobot does: indent 4, no ASCII escapes."""
    return json.dumps(value, indent=4, ensure_ascii=False).encode()


def file_id(path: Path) -> FileId | None:
    """Return the indices in `.../chunk-000/file-000.ext`, None for any other name."""
    chunk, name = path.parent.name.removeprefix("chunk-"), path.stem.removeprefix("file-")
    return (int(chunk), int(name)) if chunk.isdigit() and name.isdigit() else None


def file_path(template: str, file: FileId, video_key: str = "") -> str:
    """Fill in a path template of `info.json`."""
    return template.format(chunk_index=file[0], file_index=file[1], video_key=video_key)


def numpy_dtype(feature: Feature) -> np.dtype[Any]:
    """Return the dtype of a column."""
    return np.dtype(feature.dtype)
