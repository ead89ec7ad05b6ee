"""Conversion of LeRobot v2.1 and v2.0 datasets to v3.0: equal numbers and videos, complete or not at all."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robot_rl.cli.main import main
from robot_rl.data import Dataset, DatasetError, DatasetWriter, verify
from robot_rl.data.convert import DATA, VIDEO, convert
from robot_rl.data.episode import default_columns
from robot_rl.data.lerobot import DEFAULT_FEATURES, new_info
from robot_rl.data.stats import BASIC, column_stats, image_stats
from robot_rl.data.tables import encode_table, to_arrow
from robot_rl.data.video import encode_video, video_info

FPS, CAMERA = 10, "observation.images.front"
TASKS = ["lift", "push"]
LENGTHS = (4, 6, 3)
Build = Callable[..., Any]


def put(path: Path, data: bytes | memoryview) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def write_old(root: Path, version: str, features: Build, episode: Build, video: bool = True) -> Path:
    """Write three episodes in the format before v3.0, with two episodes per folder."""
    columns = features(video)
    info = new_info(FPS, columns, "so100") | {
        "codebase_version": version, "total_episodes": 3, "total_frames": sum(LENGTHS), "total_tasks": 2,
        "total_videos": 3 * video, "total_chunks": 2, "chunks_size": 2, "splits": {"train": "0:3"}, "data_path": DATA,
        "video_path": VIDEO if video else None,
    }  # fmt: skip
    for name in ("data_files_size_in_mb", "video_files_size_in_mb"):
        del info[name]
    rows: dict[str, list[Any]] = {"episodes": [], "episodes_stats": []}
    start = 0
    all_features = {**columns, **DEFAULT_FEATURES}
    for k, length in enumerate(LENGTHS):
        values = episode(k, length, video) | default_columns(length, FPS, k, start, [k % 2] * length)
        place: dict[str, Any] = {"episode_chunk": k // 2, "episode_index": k}
        stats = {}
        for key, feature in all_features.items():
            entry = image_stats(values[key]) if feature.is_video else column_stats(values[key])
            stats[key] = {name: entry[name].tolist() for name in BASIC}
            if feature.is_video:
                encoded = encode_video(values[key], FPS)
                put(root / VIDEO.format(**place, video_key=key), encoded)
                info["features"][key]["info"] = video_info(encoded)
        arrays = {key: to_arrow(np.asarray(values[key]), f) for key, f in all_features.items() if not f.is_video}
        put(root / DATA.format(**place), encode_table(pa.table(arrays)))
        rows["episodes"].append({"episode_index": k, "tasks": [TASKS[k % 2]], "length": length})
        rows["episodes_stats"].append({"episode_index": k, "stats": stats})
        start += length
    if version == "v2.0":
        del rows["episodes_stats"]
        put(root / "meta/stats.json", b"{}")
    rows["tasks"] = [{"task_index": k, "task": task} for k, task in enumerate(TASKS)]
    for name, lines in rows.items():
        put(root / f"meta/{name}.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    put(root / "meta/info.json", json.dumps(info).encode())
    return root


@pytest.mark.parametrize("version", ["v2.1", "v2.0"])
def test_conversion_keeps_numbers_and_videos(version: str, features: Build, episode: Build, tmp_path: Path) -> None:
    old = write_old(tmp_path / "old", version, features, episode)
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    convert(old, tmp_path / "new")
    assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == before
    data = Dataset(tmp_path / "new")
    assert (data.num_episodes, data.num_frames, data.fps, data.robot_type) == (3, 13, FPS, "so100")
    assert [e.task for e in data.episodes] == ["lift", "push", "lift"] and data.tasks == TASKS
    for k, one in enumerate(data.episodes):
        table = pq.read_table(old / DATA.format(episode_chunk=k // 2, episode_index=k))
        assert pq.read_table(tmp_path / f"new/data/chunk-000/file-00{k}.parquet").equals(table)
        theirs = old / VIDEO.format(episode_chunk=k // 2, episode_index=k, video_key=CAMERA)
        assert (tmp_path / f"new/videos/{CAMERA}/chunk-000/file-00{k}.mp4").read_bytes() == theirs.read_bytes()
        rows = range(one.start, one.start + one.length)
        grey = data.frames(CAMERA, rows).float().mean((1, 2, 3)).numpy()
        assert np.allclose(grey, [(37 * k + 20 * t) % 256 for t in range(one.length)], atol=4)
    ours = Dataset(tmp_path / "new").stats
    assert np.allclose(ours["action"]["max"], data.column("action").amax(0)) and ours[CAMERA]["mean"].shape == (3, 1, 1)
    assert verify(tmp_path / "new") == []


def test_what_lerobot_recorded_and_read_is_read_alike(tmp_path: Path) -> None:
    """LeRobot 0.3.3 wrote the v2.1 dataset, with a video and with pictures in the table, and read each frame
    (`read.npz`; its pictures decoded with PyAV)."""
    theirs = Path(__file__).parent / "from_lerobot_0_3_3"
    convert(theirs, tmp_path / "new")
    data, read = Dataset(tmp_path / "new"), np.load(theirs / "read.npz")
    assert verify(data.root) == [] and (data.num_episodes, data.num_frames) == (2, 11)
    for key in data.features:
        ours = data.frames(key, range(11)) if key in data.cameras else data.column(key)
        assert np.array_equal(ours.numpy().reshape(read[key].shape), read[key]), key
    assert [data.tasks[k] for k in data.column("task_index").flatten().tolist()] == read["tasks"].tolist()


def test_a_converted_dataset_can_be_appended(features: Any, episode: Any, tmp_path: Path, capsys: Any) -> None:
    old = write_old(tmp_path / "old", "v2.1", features, episode)
    assert main(["dataset", "convert", str(old), str(tmp_path / "new"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(tmp_path / "new"), "episodes": 3, "frames": 13}
    with DatasetWriter.append(tmp_path / "new") as writer:
        writer.add_episode(episode(3), "fold")
    assert Dataset(tmp_path / "new").tasks == [*TASKS, "fold"]
    for source, out, words in [
        (tmp_path / "new", tmp_path / "again", "no conversion"),
        (old, tmp_path / "new", "not empty"),
        (tmp_path, tmp_path / "again", "is missing"),
    ]:
        assert main(["dataset", "convert", str(source), str(out)]) == 2 and words in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(("name", "text", "words"), [
    (DATA.format(episode_chunk=1, episode_index=2), None, "episode_000002.parquet is missing"),
    (VIDEO.format(episode_chunk=0, episode_index=1, video_key=CAMERA), None, "000001.mp4 is mi"),
    ("meta/tasks.jsonl", "{", "tasks.jsonl is damaged"),
    ("meta/episodes.jsonl", None, "episodes.jsonl is missing"),
    ("meta/tasks.jsonl", '{"task_index": 0, "task": "lift"}', "task_index that meta"),
])  # fmt: skip
def test_converting_a_damaged_dataset_leaves_no_files(
    name: str, text: str | None, words: str, features: Build, episode: Build, tmp_path: Path
) -> None:
    old = write_old(tmp_path / "old", "v2.1", features, episode)
    (old / name).unlink() if text is None else (old / name).write_text(text)
    with pytest.raises(DatasetError, match=words):
        convert(old, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_killed_conversion_leaves_no_dataset_and_is_repeatable(features: Any, episode: Any, tmp_path: Path) -> None:
    old = write_old(tmp_path / "old", "v2.1", features, episode, video=False)
    code = (
        "import os, signal, sys; from pathlib import Path; from robot_rl.data.convert import convert\n"
        "convert(*map(Path, sys.argv[1:]), lambda done, _: done == 2 and os.kill(os.getpid(), signal.SIGKILL))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(old), str(tmp_path / "new")], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL and not (tmp_path / "new").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"old", ".new.part"}
    convert(old, tmp_path / "new")
    assert verify(tmp_path / "new") == [] and {path.name for path in tmp_path.iterdir()} == {"old", "new"}
