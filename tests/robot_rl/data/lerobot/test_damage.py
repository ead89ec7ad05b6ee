"""Damaged and forged datasets: faults are named, and nothing outside the dataset's folder is touched."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robot_rl.cli.dataset import Info, Verify
from robot_rl.data import Dataset, DatasetError, DatasetWriter, verify
from robot_rl.data.video import encode_video

CAMERA = "observation.images.front"
DATA = "data/chunk-000/file-001.parquet"
EPISODES_0, EPISODES = (f"meta/episodes/chunk-000/file-00{k}.parquet" for k in (0, 1))
VIDEO = f"videos/{CAMERA}/chunk-000/file-001.mp4"
INFO, STATS = "meta/info.json", "meta/stats.json"
Plant = Callable[[Path], Any]
"""Damage the dataset in a folder."""


def column(name: str, key: str, row: int, value: object) -> Plant:
    def plant(root: Path) -> None:
        table = pq.read_table(root / name)
        values = table[key].to_pylist()
        values[row] = value
        kind = None if isinstance(value, str) else table.schema.field(key).type
        at = table.column_names.index(key)
        pq.write_table(table.set_column(at, key, pa.array(values, kind)), root / name)

    return plant


def remove(name: str) -> Plant:
    return lambda root: (root / name).unlink()


def overwrite(name: str, at: int | bytes, count: int = 1) -> Plant:
    """Overwrite bytes from an offset or from a marker on."""

    def plant(root: Path) -> None:
        data = bytearray((root / name).read_bytes())
        start = at if isinstance(at, int) else data.index(at) + len(at)
        data[start : start + count] = b"\xff" * count
        (root / name).write_bytes(data)

    return plant


def entry(name: str, change: Callable[[dict], object]) -> Plant:
    def plant(root: Path) -> None:
        value = json.loads((root / name).read_text())
        change(value)
        (root / name).write_text(json.dumps(value))

    return plant


def info(**changes: object) -> Plant:
    return entry(INFO, lambda i: i.update(changes))


def feature(key: str, **changes: object) -> Plant:
    return entry(INFO, lambda i: i["features"][key].update(changes))


def drop(name: str, key: str) -> Plant:
    return lambda root: pq.write_table(pq.read_table(root / name).drop_columns([key]), root / name)


def truncate(root: Path) -> None:
    pq.write_table(pq.read_table(root / DATA).slice(0, 8), root / DATA)


def video(count: int, height: int) -> Plant:
    frames = [np.zeros((height, 48, 3), np.uint8)] * count
    return lambda root: (root / VIDEO).write_bytes(encode_video(frames, 10))


@pytest.mark.parametrize(("plant", "words"), [
    (overwrite(DATA, 40), "file-001.parquet is truncated or damaged"),
    (remove(DATA), "file-001.parquet is missing"),
    (truncate, "has 8 rows, its episodes 9"),
    (drop(DATA, "action"), "no column 'action'"),
    (column(DATA, "index", 3, 99), "index is 99 at row 3, expected 7"),
    (column(DATA, "frame_index", 6, 6), "frame_index is 6 at row 6, expected 0"),
    (column(DATA, "episode_index", 0, 0), "episode_index is 0 at row 0, expected 1"),
    (column(DATA, "timestamp", 2, 0.21), "timestamp is 0.2.* at row 2, expected 0.2"),
    (column(DATA, "task_index", 0, 5), "task_index .*5"),
    (column(DATA, "action", 2, [0.0, float("nan")]), "'action' is not finite at row 2"),
    (column(DATA, "next.reward", 2, None), "'next.reward' has 1 empty rows"),
    (remove(VIDEO), "cannot be opened as a video"),
    (overwrite(VIDEO, b"mdat", 200), "file-001.mp4 is damaged .*restore"),
    (video(8, 32), "episode 2 lacks 1 of its 3 frames, the first at 0.800 s; the video has 8"),
    (video(9, 64), r"frames of \(64, 48\), meta/info.json says \(32, 48\)"),
    (remove(EPISODES), "lacks episode 1 of the 3"),
    (column(EPISODES, "dataset_from_index", 1, 9), "starts at row 9, the one before ends at 10"),
    (column(EPISODES, "length", 1, 0), "has 0 frames"),
    (column(EPISODES, "tasks", 1, ["dance"]), "task 'dance'"),
    (drop(EPISODES_0, "operator"), "LeRobot cannot read it: .*operator"),
    (column(EPISODES, f"videos/{CAMERA}/from_timestamp", 1, 0.8), "episode 2 lacks 2 of its 3 frames"),
    (entry(STATS, lambda s: s["action"].update(q50=[1.0])), "'q50' of 'action'"),
    (entry(STATS, lambda s: s["action"].update(std=[1.0, float("inf")])), "'std' .* not finite"),
    (entry(STATS, lambda s: s["index"].update(count=[12])), "of other episodes"),
    (remove("meta/tasks.parquet"), "tasks.parquet is missing"),
    (info(total_frames=12), "counts 12 frames, the episodes have 13"),
    (feature("action", shape=[4]), "'action' is .*, and is not float32"),
    (lambda root: (root / "data/chunk-000/file-009.parquet").write_bytes(b"x"), "file-009.parquet is not counted"),
])  # fmt: skip
def test_verify_finds_damage(recorded: Path, plant: Plant, words: str) -> None:
    plant(recorded)
    problems = verify(recorded)
    assert any(re.search(words, problem) for problem in problems), problems
    assert all(str(recorded) in p or INFO in p for p in problems)
    assert Verify(recorded).run() == 1


@pytest.mark.parametrize(("plant", "read", "words"), [
    (overwrite(DATA, 4, 2000), lambda d: d.column("action"), f"{DATA} is truncated or damaged .*restore"),
    (truncate, lambda d: d.column("action"), f"{DATA} lacks some of rows 4 to 12"),
    (drop(DATA, "action"), lambda d: d.column("action"), f"{DATA} has no column 'action'"),
    (feature("action", shape=[3], names=None), lambda d: d.column("action"), "'action' is not float32 of shape"),
    (remove(VIDEO), lambda d: d.frames(CAMERA, [5]), "cannot be opened as a video"),
    (overwrite(VIDEO, b"mdat", 200), lambda d: d.frames(CAMERA, [5]), "file-001.mp4 is damaged .*restore"),
    (video(5, 32), lambda d: d.frames(CAMERA, [12]), "ends before its frame at 0.800 s"),
    (video(9, 64), lambda d: d.frames(CAMERA, [12]), "has frames of"),
    (info(), lambda d: d.column("acton"), "no feature 'acton'; it has observation.state, action"),
    (info(), lambda d: d.column(CAMERA), r"read it with frames\(key, indices\)"),
    (info(), lambda d: d.frames("action", [0]), r"read it with column\(key\)"),
    (info(), lambda d: d.frames(CAMERA, [13]), "has 13 frames"),
])  # fmt: skip
def test_reading_damaged_data_raises(recorded: Path, plant: Plant, read: Callable, words: str) -> None:
    plant(recorded)
    with pytest.raises(DatasetError, match=words):
        read(Dataset(recorded))


@pytest.mark.parametrize(("text", "words"), [
    (None, "meta/info.json is missing, so .* is not a LeRobot v3.0 dataset"),
    ("{", "not valid JSON"),
    ("{}", "no codebase_version"),
    ('{"codebase_version": "v2.1"}', "robot-rl dataset convert"),
])  # fmt: skip
def test_folders_without_a_v3_dataset_are_refused(tmp_path: Path, text: str | None, words: str) -> None:
    (tmp_path / "meta").mkdir()
    if text is not None:
        (tmp_path / INFO).write_text(text)
    with pytest.raises(DatasetError, match=words):
        Dataset(tmp_path)
    assert len(verify(tmp_path)) == 1
    with pytest.raises(DatasetError, match="nowhere does not exist"):
        Dataset(tmp_path / "nowhere")


def test_info_and_verify_print_json(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Info(recorded, json=True).run() == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["episodes"], shown["frames"], shown["fps"], shown["tasks"]) == (3, 13, 10, ["lift", "push"])
    assert shown["features"]["action"] == {"dtype": "float32", "shape": [2], "names": ["a", "b"]}
    assert Verify(recorded).run() == 0
    (recorded / VIDEO).unlink()
    capsys.readouterr()
    assert Verify(recorded, json=True).run() == 1
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 1


@pytest.mark.parametrize(("plant", "words"), [
    (info(fps=0), r"info.json: fps is 0, not a number of at least 1"),
    (info(total_frames=None), r"info.json: total_frames is None"),
    (entry(INFO, lambda i: i.pop("fps")), "no 'fps'"),
    (info(features=[]), r"info.json: features is \[\], not a table of names"),
    (info(video_path=None), r"info.json: video_path is None"),
    (info(data_path="data/{episode}.parquet"), r"info.json: data_path is 'data/{episode}.parquet'"),
    (info(chunks_size="many"), r"info.json: chunks_size is 'many'"),
    (info(total_episodes=10**18), r"lacks episode 3 of the 1000000000000000000"),
    (entry(INFO, lambda i: i["features"].pop("index")), "features lacks 'index'"),
    (feature("action", shape=[10**9, 10**9]), "more than 2684"),
    (feature("action", names=3), "names 3, not a list"),
    (entry(INFO, lambda i: i["features"]["action"].pop("shape")), "feature 'action' has no shape"),
    (entry(INFO, lambda i: i["features"]["action"].pop("dtype")), "feature 'action' has no dtype"),
    (drop(EPISODES_0, "episode_index"), "has rows without an 'episode_index'"),
    (column(EPISODES_0, "length", 0, None), "has no 'length' of episode 0"),
    (column(EPISODES_0, f"videos/{CAMERA}/from_timestamp", 0, None), "has no 'videos/.*/from_timestamp' of ep"),
])  # fmt: skip
def test_opening_a_damaged_dataset_raises(recorded: Path, plant: Plant, words: str) -> None:
    plant(recorded)
    with pytest.raises(DatasetError, match=f"{words}.*restore"):
        Dataset(recorded)
    assert verify(recorded)


@pytest.mark.parametrize(("plant", "words"), [
    (column(EPISODES_0, "stats/action/mean", 0, [1.0]), r"'stats/action/mean' of episode 0 .* finite"),
    (column(EPISODES_0, f"stats/{CAMERA}/mean", 0, [[[1.0, 2.0]]]), "'stats/.*/mean' of episode 0 is"),
    (column(EPISODES_0, "stats/index/count", 0, [4, 4]), "'stats/index/count' of episode 0 is"),
])  # fmt: skip
def test_damaged_episode_statistics_are_refused(recorded: Path, plant: Plant, words: str) -> None:
    plant(recorded)
    assert any(re.search(words, problem) for problem in verify(recorded))
    with pytest.raises(DatasetError, match=f"meta/episodes: {words}.*restore"):
        DatasetWriter.append(recorded)
    (recorded / STATS).unlink()
    with pytest.raises(DatasetError, match=words):
        _ = Dataset(recorded).stats


@pytest.mark.parametrize("plant", [
    lambda root: [drop(name, "stats/action/mean")(root) for name in (EPISODES_0, EPISODES)],
    column(EPISODES_0, "stats/action/count", 0, None),
])  # fmt: skip
def test_missing_episode_statistics_are_computed(recorded: Path, plant: Plant) -> None:
    mean = Dataset(recorded).stats["action"]["mean"]
    plant(recorded)
    (recorded / STATS).unlink()
    assert verify(recorded) == []
    DatasetWriter.append(recorded).close()
    assert Dataset(recorded).stats["action"]["mean"].tolist() == pytest.approx(mean.tolist())


def test_unknown_statistics_columns_are_ignored(recorded: Path) -> None:
    table = pq.read_table(recorded / EPISODES_0)
    pq.write_table(table.append_column("stats/odd", pa.array([1.0])), recorded / EPISODES_0)
    (recorded / STATS).unlink()
    assert Dataset(recorded).stats["action"]["count"] == 13


# ---- forged datasets ----------------------------------------------------------------------------------------------
def rename(new: str) -> Plant:
    return entry(INFO, lambda i: i["features"].update({new: i["features"].pop(CAMERA)}))


def link(name: str) -> Plant:
    """Replace a file or folder by a link to a copy of it in the folder `outside`."""

    def plant(root: Path) -> None:
        path, copy = root / name, root.parent / "outside" / name.replace("/", ".")
        path.rename(copy) if path.exists() else copy.mkdir()
        path.symlink_to(copy)

    return plant


FORGED: dict[str, Plant] = {
    "absolute data path": lambda r: info(data_path=f"{r.parent}/outside/{{chunk_index}}-{{file_index}}.parquet")(r),
    "data path with ..": info(data_path="../outside/{chunk_index:03d}-{file_index:03d}.parquet"),
    "data path of the meta": info(data_path="meta/info.json"),
    "data path of a gigabyte": info(data_path="data/{chunk_index:01000000000d}/{file_index}.parquet"),
    "data path of attributes": info(data_path="data/{chunk_index.__class__}/{file_index}.parquet"),
    "absolute video path": lambda r: info(video_path=f"{r.parent}/outside/{{video_key}}-{{file_index}}.mp4")(r),
    "camera with ..": rename("../../../outside/x"),
    "absolute camera": rename("/tmp/x"),
    "camera ..": rename(".."),
    "text for a number": column(EPISODES_0, "data/chunk_index", 0, "../../outside"),
    "negative number": column(EPISODES_0, "data/chunk_index", 0, -1),
    "link to data file": link(DATA),
    "link to folder": link("data/chunk-000"),
    "link to meta": link("meta"),
    "link to staging": link(".staging"),
    "link to lock": link(".lock"),
}  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("forged", FORGED)
def test_forged_datasets_touch_no_outside_file(recorded: Path, tmp_path: Path, episode, forged: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("0-2.parquet", "000-002.parquet", "x-2.mp4"):
        (outside / name).write_bytes(b"mine")
    FORGED[forged](recorded)
    before = contents(outside)
    problems = verify(recorded)
    assert problems and str(recorded) in problems[0]
    with pytest.raises(DatasetError):
        Dataset(recorded).column("action")
    with pytest.raises(DatasetError), DatasetWriter.append(recorded) as writer:
        writer.add_episode(episode(3), "lift")
    assert contents(outside) == before


def test_create_writes_through_no_link(tmp_path: Path, features) -> None:
    outside, root = tmp_path / "outside", tmp_path / "new"
    outside.mkdir()
    (outside / "notes").write_bytes(b"mine")
    for name, target in ((".staging", outside), (".lock", outside / "notes")):
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        (root / name).symlink_to(target)
        with pytest.raises(DatasetError, match="link out of"):
            DatasetWriter.create(root, fps=10, features=features())
    assert contents(outside) == {str(outside / "notes"): b"mine"}


def test_links_inside_the_folder_are_followed_and_pipes_refused(recorded: Path) -> None:
    (recorded / DATA).rename(recorded / "kept")
    (recorded / DATA).symlink_to(recorded / "kept")
    assert verify(recorded) == []
    (recorded / DATA).unlink()
    os.mkfifo(recorded / DATA)
    assert "neither a file nor a folder" in verify(recorded)[0]
