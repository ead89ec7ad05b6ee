"""A dataset from anywhere reads, writes and deletes nothing outside its folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robot_rl.data import Dataset, DatasetError, DatasetWriter, verify

CAMERA = "observation.images.front"
DATA, EPISODES = "data/chunk-000/file-001.parquet", "meta/episodes/chunk-000/file-000.parquet"
Plant = Callable[[Path, Path], None]


def info(change: Callable[[dict, Path], object]) -> Plant:
    """Return a change of `info.json`; it is given the folder outside too."""

    def plant(root: Path, outside: Path) -> None:
        data = json.loads((root / "meta/info.json").read_text())
        change(data, outside)
        (root / "meta/info.json").write_text(json.dumps(data))

    return plant


def rename(new: str) -> Plant:
    return info(lambda i, _: i["features"].update({new: i["features"].pop(CAMERA)}))


def link(name: str) -> Plant:
    """Replace a file or folder by a link to a copy of it outside."""

    def plant(root: Path, outside: Path) -> None:
        path, copy = root / name, outside / name.replace("/", ".")
        if path.exists():
            path.rename(copy)
        else:
            copy.mkdir()
        path.symlink_to(copy)

    return plant


def index(value: object) -> Plant:
    def plant(root: Path, outside: Path) -> None:
        table = pq.read_table(root / EPISODES)
        at = table.column_names.index("data/chunk_index")
        column = pa.array([value] * table.num_rows)
        pq.write_table(table.set_column(at, "data/chunk_index", column), root / EPISODES)

    return plant


def data_path(path: str) -> Plant:
    return info(lambda i, outside: i.update(data_path=path.replace("OUTSIDE", str(outside))))


FORGED: dict[str, Plant] = {
    "absolute data path": data_path("OUTSIDE/chunk-{chunk_index}-{file_index}.parquet"),
    "data path with ..": data_path("../outside/{chunk_index:03d}-{file_index:03d}.parquet"),
    "data path of the meta": data_path("meta/info.json"),
    "data path of a gigabyte": data_path("data/{chunk_index:01000000000d}/{file_index}.parquet"),
    "data path of attributes": data_path("data/{chunk_index.__class__}/{file_index}.parquet"),
    "absolute video path": info(lambda i, out: i.update(video_path=f"{out}/{{video_key}}-{{file_index}}.mp4")),
    "camera with ..": rename("../../../outside/x"),
    "absolute camera": rename("/tmp/x"),
    "camera ..": rename(".."),
    "text for a number": index("../../outside"),
    "negative number": index(-1),
    "not a number": index(float("nan")),
    "link to data file": link(DATA),
    "link to folder": link("data/chunk-000"),
    "link to meta": link("meta"),
    "link to staging": link(".staging"),
    "link to lock": link(".lock"),
}  # fmt: skip


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("forged", FORGED)
def test_nothing_outside_is_touched_and_verify_names_it(recorded: Path, tmp_path: Path, episode, forged: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("chunk-0-2.parquet", "000-002.parquet", "x-2.mp4"):
        (outside / name).write_bytes(b"mine")
    FORGED[forged](recorded, outside)
    before = everything(outside)
    problems = verify(recorded)
    assert problems and str(recorded) in problems[0]
    with pytest.raises(DatasetError):
        Dataset(recorded).column("action")
    with pytest.raises(DatasetError), DatasetWriter.append(recorded) as writer:
        writer.add_episode(episode(3), "lift")
    assert everything(outside) == before


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
    assert everything(outside) == {str(outside / "notes"): b"mine"}


def test_links_within_the_folder_are_followed(recorded: Path) -> None:
    (recorded / DATA).rename(recorded / "kept")
    (recorded / DATA).symlink_to(recorded / "kept")
    assert verify(recorded) == []


def test_a_pipe_is_no_file(recorded: Path) -> None:
    (recorded / DATA).unlink()
    os.mkfifo(recorded / DATA)
    assert "neither a file nor a folder" in verify(recorded)[0]
