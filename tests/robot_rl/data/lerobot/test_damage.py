"""Damage is found, and said in one sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robot_rl.cli.dataset import Info, Verify
from robot_rl.data import Dataset, DatasetError, DatasetWriter, verify
from robot_rl.data.video import encode_video

CAMERA = "observation.images.front"
DATA = "data/chunk-000/file-001.parquet"
EPISODES = "meta/episodes/chunk-000/file-001.parquet"
VIDEO = f"videos/{CAMERA}/chunk-000/file-001.mp4"
Plant = Callable[[Path], None]


def column(name: str, key: str, row: int, value: object) -> Plant:
    def plant(root: Path) -> None:
        table = pq.read_table(root / name)
        values = table[key].to_pylist()
        values[row] = value
        at = table.column_names.index(key)
        pq.write_table(table.set_column(at, key, pa.array(values, table.schema.field(key).type)), root / name)

    return plant


def truncate(name: str) -> Plant:
    return lambda root: (root / name).write_bytes((root / name).read_bytes()[:-200]) and None  # type: ignore


def remove(name: str) -> Plant:
    return lambda root: (root / name).unlink()


def flip(name: str) -> Plant:
    def plant(root: Path) -> None:
        data = bytearray((root / name).read_bytes())
        data[40] ^= 0xFF
        (root / name).write_bytes(data)

    return plant


def entry(name: str, change: Callable[[dict], object]) -> Plant:
    def plant(root: Path) -> None:
        value = json.loads((root / name).read_text())
        change(value)
        (root / name).write_text(json.dumps(value))

    return plant


def drop(name: str, key: str) -> Plant:
    return lambda root: pq.write_table(pq.read_table(root / name).drop_columns([key]), root / name)


def garble(name: str) -> Plant:
    """Damage behind the header, where only decoding finds it."""

    def plant(root: Path) -> None:
        data = bytearray((root / name).read_bytes())
        at = data.index(b"mdat") + 4
        data[at : at + 200] = b"\xff" * len(data[at : at + 200])
        (root / name).write_bytes(data)

    return plant


def rows(root: Path) -> None:
    pq.write_table(pq.read_table(root / DATA).slice(0, 8), root / DATA)


def video(count: int, height: int) -> Plant:
    frames = [np.zeros((height, 48, 3), np.uint8)] * count
    return lambda root: (root / VIDEO).write_bytes(encode_video(frames, 10)) and None  # type: ignore


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (truncate(DATA), "file-001.parquet is truncated or damaged"),
        (flip(DATA), "file-001.parquet is truncated or damaged"),
        (remove(DATA), "file-001.parquet is missing"),
        (rows, "has 8 rows, its episodes 9"),
        (drop(DATA, "action"), "no column 'action'"),
        (column(DATA, "index", 3, 99), "index is 99 at row 3, expected 7"),
        (column(DATA, "frame_index", 6, 6), "frame_index is 6 at row 6, expected 0"),
        (column(DATA, "episode_index", 0, 0), "episode_index is 0 at row 0, expected 1"),
        (column(DATA, "timestamp", 2, 0.21), "timestamp is 0.2.* at row 2, expected 0.2"),
        (column(DATA, "task_index", 0, 5), "task_index .*5"),
        (column(DATA, "action", 2, [0.0, float("nan")]), "'action' is not finite at row 2"),
        (column(DATA, "next.reward", 2, None), "'next.reward' has 1 empty rows"),
        (truncate(VIDEO), "cannot be opened as a video|frames"),
        (remove(VIDEO), "cannot be opened as a video"),
        (garble(VIDEO), "file-001.mp4 is damaged .*restore"),
        (video(8, 32), "episode 2 lacks 1 of its 3 frames, the first at 0.800 s; the video has 8"),
        (video(9, 64), r"frames of \(64, 48\), meta/info.json says \(32, 48\)"),
        (truncate(EPISODES), "file-001.parquet is truncated or damaged"),
        (remove(EPISODES), "lacks episode 1 of the 3"),
        (column(EPISODES, "dataset_from_index", 1, 9), "starts at row 9, the one before ends at 10"),
        (column(EPISODES, "length", 1, 0), "has 0 frames"),
        (column(EPISODES, "tasks", 1, ["dance"]), "task 'dance'"),
        (drop("meta/episodes/chunk-000/file-000.parquet", "operator"), "LeRobot cannot read it: .*operator"),
        (column(EPISODES, f"videos/{CAMERA}/from_timestamp", 1, 0.8), "episode 2 lacks 2 of its 3 frames"),
        (entry("meta/stats.json", lambda s: s["action"].update(q50=[1.0])), "'q50' of 'action'"),
        (
            entry("meta/stats.json", lambda s: s["action"].update(std=[1.0, float("inf")])),
            "'std' .* not finite",
        ),
        (entry("meta/stats.json", lambda s: s["index"].update(count=[12])), "of other episodes"),
        (truncate("meta/tasks.parquet"), "tasks.parquet is truncated or damaged"),
        (remove("meta/tasks.parquet"), "tasks.parquet is missing"),
        (
            entry("meta/info.json", lambda i: i.update(total_frames=12)),
            "counts 12 frames, the episodes have 13",
        ),
        (entry("meta/info.json", lambda i: i.update(total_episodes=4)), "lacks episode 3 of the 4"),
        (
            entry("meta/info.json", lambda i: i["features"]["action"].update(shape=[4])),
            "'action' is .*, and is not float32",
        ),
        (entry("meta/info.json", lambda i: i.update(codebase_version="v2.1")), "codebase_version 'v2.1'"),
        (entry("meta/info.json", lambda i: i.pop("fps")), "no 'fps'"),
        (
            lambda root: (root / "data/chunk-000/file-009.parquet").write_bytes(b"x"),
            "file-009.parquet is not counted",
        ),
    ],
)
def test_verify_finds(recorded: Path, plant: Plant, words: str) -> None:
    assert verify(recorded) == []
    plant(recorded)
    problems = verify(recorded)
    assert any(re.search(words, problem) for problem in problems), problems
    assert all(str(recorded) in p or "meta/info.json" in p for p in problems)
    assert Verify(recorded).run() == 1


@pytest.mark.parametrize(
    ("plant", "read", "words"),
    [
        (truncate(DATA), lambda d: d.column("action"), f"{DATA} is truncated or damaged .*restore"),
        (rows, lambda d: d.column("action"), f"{DATA} lacks some of rows 4 to 12"),
        (drop(DATA, "action"), lambda d: d.column("action"), f"{DATA} has no column 'action'"),
        (remove(VIDEO), lambda d: d.frames(CAMERA, [5]), "cannot be opened as a video"),
        (garble(VIDEO), lambda d: d.frames(CAMERA, [5]), "file-001.mp4 is damaged .*restore"),
        (video(5, 32), lambda d: d.frames(CAMERA, [12]), "ends before its frame at 0.800 s"),
        (video(9, 64), lambda d: d.frames(CAMERA, [12]), "has frames of"),
        (
            lambda root: None,
            lambda d: d.column("acton"),
            "no feature 'acton'; it has observation.state, action",
        ),
        (lambda root: None, lambda d: d.column(CAMERA), r"read it with frames\(key, indices\)"),
        (lambda root: None, lambda d: d.frames("action", [0]), r"read it with column\(key\)"),
        (lambda root: None, lambda d: d.frames(CAMERA, [13]), "has 13 frames"),
    ],
)
def test_reading_says_what_to_do(recorded: Path, plant: Plant, read: Callable, words: str) -> None:
    plant(recorded)
    with pytest.raises(DatasetError, match=words):
        read(Dataset(recorded))


def test_foreign_folders(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="nowhere does not exist; check the path"):
        Dataset(tmp_path / "nowhere")
    with pytest.raises(DatasetError, match="meta/info.json is missing, so .* is not a LeRobot v3.0 dataset"):
        Dataset(tmp_path)
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta/info.json").write_text("{")
    with pytest.raises(DatasetError, match="not valid JSON"):
        Dataset(tmp_path)
    (tmp_path / "meta/info.json").write_text('{"codebase_version": "v2.1"}')
    with pytest.raises(DatasetError, match="robot-rl dataset convert"):
        Dataset(tmp_path)
    assert len(verify(tmp_path)) == 1


def test_cli(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Info(recorded, json=True).run() == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["episodes"], info["frames"], info["fps"], info["tasks"]) == (3, 13, 10, ["lift", "push"])
    assert info["features"]["action"] == {"dtype": "float32", "shape": [2], "names": ["a", "b"]}
    assert Info(recorded).run() == 0
    text = capsys.readouterr().out
    assert "observation.state" in text
    assert "3 episodes, 13 frames at 10 fps (1.3 s)" in text
    assert Verify(recorded).run() == 0
    assert "is sound: 3 episodes, 13 frames" in capsys.readouterr().out
    (recorded / VIDEO).unlink()
    assert Verify(recorded, json=True).run() == 1
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 1


EPISODE_0 = "meta/episodes/chunk-000/file-000.parquet"


def info(**changes: object) -> Plant:
    return entry("meta/info.json", lambda i: i.update(changes))


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (info(fps=0), r"info.json: fps is 0, not a number of at least 1"),
        (info(fps="abc"), r"info.json: fps is 'abc'"),
        (info(total_frames=None), r"info.json: total_frames is None"),
        (info(features=[]), r"info.json: features is \[\], not a table of names"),
        (info(video_path=None), r"info.json: video_path is None"),
        (info(data_path="data/{episode}.parquet"), r"info.json: data_path is 'data/{episode}.parquet'"),
        (info(chunks_size="many"), r"info.json: chunks_size is 'many'"),
        (info(total_episodes=10**18), r"lacks episode 3 of the 1000000000000000000"),
        (entry("meta/info.json", lambda i: i["features"].pop("index")), "features lacks 'index'"),
        (entry("meta/info.json", lambda i: i["features"]["action"].update(shape=[10**9, 10**9])), "more than 2684"),
        (entry("meta/info.json", lambda i: i["features"]["action"].update(names=3)), "names 3, not a list"),
        (entry("meta/info.json", lambda i: i["features"]["action"].pop("shape")), "feature 'action' has no shape"),
        (entry("meta/info.json", lambda i: i["features"]["action"].pop("dtype")), "feature 'action' has no dtype"),
        (drop(EPISODE_0, "episode_index"), "has rows without an 'episode_index'"),
        (column(EPISODE_0, "episode_index", 0, None), "has rows without an 'episode_index'"),
        (column(EPISODE_0, "length", 0, None), "has no 'length' of episode 0"),
        (column(EPISODE_0, f"videos/{CAMERA}/from_timestamp", 0, None), "has no 'videos/.*/from_timestamp' of ep"),
    ],
)
def test_opening_says_what_is_damaged(recorded: Path, plant: Plant, words: str) -> None:
    plant(recorded)
    with pytest.raises(DatasetError, match=f"{words}.*restore"):
        Dataset(recorded)
    assert verify(recorded), "and so does verify"


def test_a_column_of_another_width_is_named(recorded: Path) -> None:
    entry("meta/info.json", lambda i: i["features"]["action"].update(shape=[3], names=None))(recorded)
    with pytest.raises(DatasetError, match="file-000.parquet: 'action' is not float32 of shape"):
        Dataset(recorded).column("action")
    assert any("column 'action' is fixed" in problem for problem in verify(recorded))


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (column(EPISODE_0, "stats/action/mean", 0, [1.0]), r"'stats/action/mean' of episode 0 .* finite"),
        (column(EPISODE_0, "stats/action/std", 0, [1.0]), r"'stats/action/std' of episode 0 is \[1.0\]"),
        (column(EPISODE_0, f"stats/{CAMERA}/mean", 0, [[[1.0, 2.0]]]), "'stats/.*/mean' of episode 0 is"),
        (column(EPISODE_0, "stats/index/count", 0, [4, 4]), "'stats/index/count' of episode 0 is"),
    ],
)
def test_damaged_statistics_are_not_built_upon(recorded: Path, plant: Plant, words: str) -> None:
    plant(recorded)
    assert any(re.search(words, problem) for problem in verify(recorded))
    with pytest.raises(DatasetError, match=f"meta/episodes: {words}.*restore"):
        DatasetWriter.append(recorded)
    (recorded / "meta/stats.json").unlink()
    with pytest.raises(DatasetError, match=words):
        _ = Dataset(recorded).stats


@pytest.mark.parametrize(
    "plant",
    [
        lambda root: [drop(name, "stats/action/mean")(root) for name in (EPISODE_0, EPISODES)],
        column(EPISODE_0, "stats/action/count", 0, None),
    ],
)
def test_absent_statistics_are_computed(recorded: Path, episode, plant: Plant) -> None:
    mean = Dataset(recorded).stats["action"]["mean"]
    plant(recorded)
    (recorded / "meta/stats.json").unlink()
    assert verify(recorded) == []
    DatasetWriter.append(recorded).close()
    assert Dataset(recorded).stats["action"]["mean"].tolist() == pytest.approx(mean.tolist())


def test_statistics_under_other_names_are_no_obstacle(recorded: Path) -> None:
    table = pq.read_table(recorded / EPISODE_0)
    pq.write_table(table.append_column("stats/odd", pa.array([1.0])), recorded / EPISODE_0)
    (recorded / "meta/stats.json").unlink()
    assert Dataset(recorded).stats["action"]["count"] == 13
