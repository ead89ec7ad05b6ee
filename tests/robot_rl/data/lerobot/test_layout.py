"""Files on disk, field by field, in the format that LeRobot 0.4.4 and 0.6 read."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robot_rl.data import Dataset, DatasetError, DatasetWriter, EpisodeData, Feature, verify

CAMERA = "observation.images.front"


def test_file_names(recorded: Path) -> None:
    parts = ["data/chunk-000/file-00{}.parquet", "meta/episodes/chunk-000/file-00{}.parquet"]
    parts += [f"videos/{CAMERA}/chunk-000/file-00{{}}.mp4"]
    files = {path.relative_to(recorded).as_posix() for path in recorded.rglob("*") if path.is_file()}
    meta = {".lock", "meta/info.json", "meta/stats.json", "meta/tasks.parquet"}
    assert files == meta | {part.format(k) for part in parts for k in (0, 1)}


def test_info_json(recorded: Path) -> None:
    text = (recorded / "meta/info.json").read_text()
    info = json.loads(text)
    assert text.startswith('{\n    "codebase_version": "v3.0"')
    features = info.pop("features")
    assert info == {
        "codebase_version": "v3.0",
        "robot_type": "panda",
        "total_episodes": 3,
        "total_frames": 13,
        "total_tasks": 2,
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": 10,
        "splits": {"train": "0:3"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }
    assert features["action"] == {"dtype": "float32", "shape": [2], "names": ["a", "b"]}
    assert features["timestamp"] == {"dtype": "float32", "shape": [1], "names": None}
    for key in ("frame_index", "episode_index", "index", "task_index"):
        assert features[key] == {"dtype": "int64", "shape": [1], "names": None}
    encoding = {"height": 32, "width": 48, "codec": "av1", "pix_fmt": "yuv420p", "is_depth_map": False, "fps": 10}
    assert features[CAMERA] == {
        "dtype": "video",
        "shape": [32, 48, 3],
        "names": ["height", "width", "channels"],
        "info": {f"video.{key}": value for key, value in (encoding | {"channels": 3}).items()} | {"has_audio": False},
    }


def test_data_columns(recorded: Path) -> None:
    table = pq.read_table(recorded / "data/chunk-000/file-001.parquet")
    assert CAMERA not in table.column_names
    kinds = {"action": pa.list_(pa.float32(), 2), "next.done": pa.bool_(), "timestamp": pa.float32()}
    for key, kind in (kinds | {"task_index": pa.int64()}).items():
        assert table.schema.field(key).type == kind
    assert table["index"].to_pylist() == list(range(4, 13))
    assert table["frame_index"].to_pylist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert table["episode_index"].to_pylist() == [1] * 6 + [2] * 3
    assert table["task_index"].to_pylist() == [0] * 6 + [1] * 3
    assert table["timestamp"].to_pylist() == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0, 0.1, 0.2])


def test_episode_rows(recorded: Path) -> None:
    first, second = (
        pq.read_table(recorded / f"meta/episodes/chunk-000/file-00{i}.parquet").to_pylist() for i in range(2)
    )
    row = second[1]
    stats = {key: value for key, value in row.items() if key.startswith("stats/")}
    video, position = f"videos/{CAMERA}", {"chunk_index": 0, "file_index": 1}
    assert {key: value for key, value in row.items() if key not in stats} == {
        "episode_index": 2,
        "tasks": ["push"],
        "length": 3,
        "dataset_from_index": 10,
        "dataset_to_index": 13,
        **{f"{part}/{key}": value for part in ("data", video, "meta/episodes") for key, value in position.items()},
        f"{video}/from_timestamp": 0.6,
        f"{video}/to_timestamp": 0.9,
        "operator": "eve",
        "randomization/cube_mass": None,
    }
    assert set(second[0]) <= set(first[0])  # LeRobot casts every file to the first one's columns
    assert stats["stats/index/min"] == [10] and stats["stats/index/count"] == [3]
    assert len(stats[f"stats/{CAMERA}/q99"]) == 3 and stats[f"stats/{CAMERA}/q99"][0][0][0] <= 1.0


def test_stats_json(recorded: Path) -> None:
    stats = json.loads((recorded / "meta/stats.json").read_text())
    info = json.loads((recorded / "meta/info.json").read_text())
    assert set(stats) == set(info["features"])
    for key, entry in stats.items():
        assert set(entry) == {"min", "max", "mean", "std", "count", "q01", "q10", "q50", "q90", "q99"}
        assert len(entry["mean"]) == (3 if key == CAMERA else info["features"][key]["shape"][0])
    assert stats["index"]["count"] == [13] and stats["index"]["max"] == [12]


def test_tasks_parquet(recorded: Path) -> None:
    table = pq.read_table(recorded / "meta/tasks.parquet")
    assert table["task_index"].to_pylist() == [0, 1]
    assert table["__index_level_0__"].to_pylist() == ["lift", "push"]
    assert json.loads(table.schema.metadata[b"pandas"])["index_columns"] == ["__index_level_0__"]
    columns = {"task_index": [1, 0], "kind": ["easy", "hard"], "task": ["push", "lift"]}  # LeRobot 0.6 names the index
    pq.write_table(pa.table(columns), recorded / "meta/tasks.parquet")
    assert Dataset(recorded).tasks == ["lift", "push"]


def test_a_full_chunk_folder_starts_the_next_one(root: Path, episode, features) -> None:
    DatasetWriter.create(root, fps=10, features=features(video=False)).close()
    path = root / "meta/info.json"
    path.write_text(path.read_text().replace('"chunks_size": 1000', '"chunks_size": 2'))
    with DatasetWriter.append(root) as writer:
        for index in range(5):
            writer.add_episode(episode(index, video=False), "lift")
    files = sorted(str(path.relative_to(root / "data")) for path in (root / "data").glob("*/*"))
    assert files == [f"chunk-00{i // 2}/file-00{i % 2}.parquet" for i in range(5)]
    with DatasetWriter.append(root) as writer:
        writer.add_episodes([EpisodeData(episode(5, video=False), "lift")])
    assert (root / "data/chunk-002/file-001.parquet").exists()
    assert verify(root) == []


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ({"a/b": Feature("float32", (1,))}, "no '/'"),
        ({"index": Feature("int64", (1,))}, "leave it out"),
        ({"x": Feature("string", (1,))}, "dtype 'string'"),
        ({"x": Feature("float32", ())}, "at least 1"),
        ({"x": Feature("float32", (2,), names=["a"])}, "1 names for 2"),
        ({"x": Feature("video", (3, 96, 96))}, "height, width, 3"),
        ({"x": Feature("video", (95, 96, 3))}, "even"),
    ],
)
def test_features_that_lerobot_cannot_read_are_refused(root: Path, features: dict[str, Feature], words: str) -> None:
    with pytest.raises(DatasetError, match=words):
        DatasetWriter.create(root, fps=10, features=features)
    with pytest.raises(DatasetError, match="whole number"):
        DatasetWriter.create(root, fps=29.97, features={})  # type: ignore[arg-type]


def test_appending_converts_lerobots_bool_statistics_to_numbers(recorded: Path, episode) -> None:
    key = "stats/next.done/min"
    for path in sorted((recorded / "meta/episodes").glob("*/*.parquet")):
        table = pq.read_table(path)
        at = table.column_names.index(key)
        pq.write_table(table.set_column(at, key, table[key].cast(pa.list_(pa.bool_()))), path)
    with DatasetWriter.append(recorded) as writer:
        writer.add_episode(episode(3), "lift")
    first = pq.read_schema(recorded / "meta/episodes/chunk-000/file-000.parquet")
    assert first.field(key).type == pa.list_(pa.float64())
    assert verify(recorded) == []
    assert Dataset(recorded).stats["next.done"]["min"].tolist() == [0.0]
