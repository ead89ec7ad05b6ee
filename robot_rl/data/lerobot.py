"""LeRobotDataset v3.0 on disk: paths, features and `meta/info.json`.

```
<root>/meta/info.json                                  counts and features; written last: the commit point
       meta/stats.json  meta/tasks.parquet
       meta/episodes/chunk-000/file-000.parquet        one row per episode
       data/chunk-000/file-000.parquet                 one row per frame, numbers only
       videos/<camera>/chunk-000/file-000.mp4          one camera's frames of consecutive episodes
```

An episode exists once `info.json` counts it. A killed writer leaves files that `info.json` does not count: readers skip
these files, and `DatasetWriter.append` moves them to `<root>/.aside`.

Datasets are untrusted, so no path leaves the dataset's folder: only LeRobot's path templates are accepted, camera names
have no '/', and links out of the folder are refused. Only links in huggingface_hub's cache may be followed to read.

`Feature.from_json` converts features that other programs describe differently to one form.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robot_rl.util.errors import ConfigError, UserError
from robot_rl.util.files import leaks

VERSION = "v3.0"
CONVERTED = ("v2.1", "v2.0")
"""Versions that `robot_rl.data.convert` converts to v3.0."""
INFO = "meta/info.json"
STATS = "meta/stats.json"
TASKS = "meta/tasks.parquet"
FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
EPISODES_PATH = f"meta/episodes/{FILE}.parquet"
DATA_PATH = f"data/{FILE}.parquet"
VIDEO_PATH = "videos/{video_key}/" + FILE + ".mp4"
CHUNK_SIZE = 1000
DTYPES = frozenset(["bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64"])
PICTURES = ("video", "image")

MOST_NUMBERS = 2**28
"""Largest number of values in one frame of a feature, as in an RGB picture of 9459 x 9459 pixels."""

FileId = tuple[int, int]
"""(chunk_index, file_index) of a data, video or episode file."""


class DatasetError(UserError):
    """A dataset cannot be read or written; the message names the file and a remedy."""


class WrongDataset(DatasetError, ConfigError):  # noqa: N818 - it reads as a sentence
    """Undamaged, but unusable folder: no readable dataset, a dataset for other tasks, or no place for a new dataset."""


@dataclass(frozen=True)
class Feature:
    """Column of a dataset.

    >>> Feature("float32", (7,), names=["j1", "j2", "j3", "j4", "j5", "j6", "j7"])
    >>> Feature("video", (96, 96, 3), names=["height", "width", "channels"])
    """

    dtype: str
    """`video`, `image` (pictures in the data table), or the numpy name of a number type, e.g. `float32`."""
    shape: tuple[int, ...]
    """Shape of one frame's value: `(1,)` for a single number, `(height, width, 3)` for a camera."""
    names: list[str] | None = None
    """Names of a vector's components, or of a picture's axes, in order; None: no names."""
    info: dict[str, Any] | None = None
    """Encoding of a video feature; the writer sets it after the first video file."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        if self.names is not None:
            object.__setattr__(self, "names", list(self.names))

    @property
    def is_video(self) -> bool:
        """Whether the feature's pictures are in mp4 files instead of the data table."""
        return self.dtype == "video"

    @property
    def is_camera(self) -> bool:
        """Whether the values are RGB pictures, in mp4 files or in the data table; depth maps are not RGB pictures."""
        depth = any(key.endswith("is_depth_map") and value for key, value in (self.info or {}).items())
        return self.dtype in PICTURES and len(self.shape) == 3 and self.shape[2] == 3 and not depth

    @property
    def is_read(self) -> bool:
        """Whether `Dataset` can read the values, since they are numbers or RGB pictures."""
        return self.dtype in DTYPES or self.is_camera

    def to_json(self) -> dict[str, Any]:
        """Return the feature's entry in `info.json`."""
        entry: dict[str, Any] = {"dtype": self.dtype, "shape": list(self.shape), "names": self.names}
        return entry if self.info is None else {**entry, "info": self.info}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Feature:
        """Return the feature of an entry of `info.json`, in one form for all programs.

        Names become one list, and pictures get the shape (height, width, channels). The names of a vector are dropped
        if their number differs from the number of components.
        """
        shape, names = tuple(entry["shape"]) or (1,), _flat(entry.get("names"))
        if entry["dtype"] in PICTURES and len(shape) == 3:
            order = _channels_last(shape, names)
            shape, names = tuple(shape[axis] for axis in order), ["height", "width", "channels"]
        elif names is not None and len(shape) == 1 and len(names) != shape[0]:
            names = None
        return cls(entry["dtype"], shape, names, entry.get("info"))


DEFAULT_FEATURES = {"timestamp": Feature("float32", (1,))} | {
    key: Feature("int64", (1,)) for key in ("frame_index", "episode_index", "index", "task_index")
}
"""Columns of every dataset, which the writer fills."""


def _flat(names: Any) -> list[str] | None:
    """Return the names of a feature as one list, None if it has no names.

    Other programs also write dicts of lists (`{"motors": ["a", "b"]}`) or of indices (`{"b": 1, "a": 0}`).
    """
    flat: list[str] = []
    stack = [names]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            indices = all(type(index) is int for index in item.values())
            item = sorted(item, key=item.__getitem__) if indices else list(item.values())
        if isinstance(item, list):
            stack += reversed(item)
        elif item is not None:
            flat.append(str(item))
    return flat or None


def _channels_last(shape: tuple[int, ...], names: list[str] | None) -> tuple[int, ...]:
    """Return the axes of height, width and channels in a picture's shape, by their names or else by their sizes."""
    initials = "".join(name[:1].lower() for name in names or ())
    if sorted(initials) == sorted("hwc"):
        return tuple(initials.index(initial) for initial in "hwc")
    return (1, 2, 0) if shape[0] in (1, 3) and shape[2] not in (1, 3) else (0, 1, 2)


def check_features(features: Mapping[str, Feature]) -> None:
    """Raise DatasetError for features that LeRobot cannot read."""
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


def new_info(fps: float, features: Mapping[str, Feature], robot_type: str | None) -> dict[str, Any]:
    """Return the `info.json` of a dataset without episodes."""
    if fps < 1 or fps != int(fps):
        raise DatasetError(f"fps is {fps}; LeRobot needs a whole number of frames per second, at least 1")
    check_features(features)
    has_video = any(feature.is_video for feature in features.values())
    return {
        "codebase_version": VERSION, "robot_type": robot_type, "total_episodes": 0, "total_frames": 0, "total_tasks": 0,
        "chunks_size": CHUNK_SIZE, "data_files_size_in_mb": 100, "video_files_size_in_mb": 200, "fps": int(fps),
        "splits": {}, "data_path": DATA_PATH, "video_path": VIDEO_PATH if has_video else None,
        "features": {key: feature.to_json() for key, feature in {**features, **DEFAULT_FEATURES}.items()},
    }  # fmt: skip


def read_info(root: Path) -> dict[str, Any]:
    """Read and check the `meta/info.json` of a v3.0 dataset."""
    info, path = load_info(root), root / INFO
    if (version := info["codebase_version"]) != VERSION:
        how = f"`robot-rl dataset convert {root} OUT`" if version in CONVERTED else "LeRobot's own scripts"
        raise WrongDataset(f"{path} says codebase_version {version!r}; only '{VERSION}' is read; convert it with {how}")
    check_info(path, info)
    return info


def check_info(path: Path, info: Mapping[str, Any]) -> None:
    """Raise DatasetError if the content of a v3.0 `info.json` lacks a value or has a faulty value."""
    for key in ("fps", "features", "total_episodes", "total_frames", "total_tasks", "data_path"):
        if key not in info:
            raise DatasetError(f"{path} has no '{key}'; restore the file from a copy")
    for fault in _faults(info):
        raise DatasetError(f"{path}: {fault}; restore the file from a copy")


def load_info(root: Path) -> dict[str, Any]:
    """Read the `meta/info.json` of a dataset of any version."""
    path = root / INFO
    try:
        info: dict[str, Any] = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        if not root.exists():
            raise WrongDataset(f"{root} does not exist; check the path, or record a dataset there") from None
        fault = f"{path} is missing, so {root} is not a LeRobot v3.0 dataset" if root.is_dir() else f"{root} is a file"
        raise WrongDataset(f"{fault}; name the folder that holds meta/") from None
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path} is not valid JSON ({error}); restore it from a copy") from error
    version = info.get("codebase_version") if isinstance(info, dict) else None
    if version is None:
        raise WrongDataset(
            f"{path} has no codebase_version, so {root} is no LeRobot dataset; name the folder of one, or another --out"
        )
    return info


def _faults(info: Mapping[str, Any]) -> Iterator[str]:
    """Yield the faulty values of an `info.json`, each as text."""
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
        shape: Any = entry.get("shape") if isinstance(entry, dict) else None
        if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
            yield f"feature '{name}' has no shape"
        if math.prod(shape) > MOST_NUMBERS:
            yield f"feature '{name}' has shape {shape}, more than {MOST_NUMBERS} numbers"
        if not isinstance(entry.get("dtype"), str):
            yield f"feature '{name}' has no dtype"
        if entry["dtype"] == "video" and (name in ("", ".", "..") or set(name) & set("/\\\0")):
            yield f"feature {name!r} is no name for a file"
        if not isinstance(entry.get("names"), list | dict | None):
            yield f"feature '{name}' has names {entry['names']!r}, not a list"
        if not isinstance(entry.get("info"), dict | None):
            yield f"feature '{name}' has info {entry['info']!r}, not a table"
    video = any(entry["dtype"] == "video" for entry in features.values())
    for key, path in {"data_path": DATA_PATH, **({"video_path": VIDEO_PATH} if video else {})}.items():
        if info.get(key) != path:
            yield f"{key} is {info.get(key)!r}; LeRobot {VERSION} has {path!r}, and no other is read or written"


def check_inside(root: Path, write: bool = True) -> None:
    """Raise DatasetError for a link out of a dataset's folder, or for an entry that is neither a file nor a folder.

    Links of huggingface_hub's cache are allowed if the dataset is only read (`write` False).
    """
    if fault := next(leaks(root, () if write else _hub_folders(root)), None):
        raise DatasetError(fault)


def _hub_folders(root: Path) -> list[Path]:
    """Return the target folders of links in a snapshot of huggingface_hub's cache; [] for any other folder.

    `datasets--me--lift/snapshots/<revision>/...` links to `datasets--me--lift/blobs/`; files that datasets share are
    further links to `blobs/` beside `datasets--me--lift`.
    """
    for folder in Path(os.path.realpath(root)).parents:
        repository = folder.parent
        if folder.name == "snapshots" and (repository / "blobs").is_dir():
            shared = [repository.parent / "blobs"] if "--" in repository.name else []
            return [repository / "blobs", folder, *shared]
    return []


def encode_json(value: Any) -> bytes:
    """Encode JSON as LeRobot does: indent 4, no ASCII escapes."""
    return json.dumps(value, indent=4, ensure_ascii=False).encode()


def file_id(path: Path) -> FileId | None:
    """Return the chunk and file index of a path `.../chunk-000/file-000.ext`, None for any other path."""
    chunk, name = path.parent.name.removeprefix("chunk-"), path.stem.removeprefix("file-")
    return (int(chunk), int(name)) if chunk.isdigit() and name.isdigit() else None


def file_path(template: str, file: FileId, video_key: str = "") -> str:
    """Return a file's path from a path template of `info.json`; a video's path also needs the camera `video_key`."""
    return template.format(chunk_index=file[0], file_index=file[1], video_key=video_key)
