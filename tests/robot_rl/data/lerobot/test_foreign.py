"""Datasets of other programs: variants of the format are read, and missing parts are notes, not damage."""

import json
import os
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from robot_rl.cli.dataset import Info, Stats, Verify
from robot_rl.data import Dataset, DatasetError, DatasetWriter, Feature, verify
from robot_rl.data.recording import pictures_digest
from robot_rl.data.verify import examine
from robot_rl.data.video import encode_video
from robot_rl.data.view import DatasetView, resized

CAMERA, DEPTH = "observation.images.front", "observation.images.front_depth"
Plant = Callable[[Path], object]


def info(change: Callable[[dict], object], name: str = "meta/info.json") -> Plant:
    def plant(root: Path) -> None:
        value = json.loads((root / name).read_text())
        change(value)
        (root / name).write_text(json.dumps(value))

    return plant


def feature(key: str, **changes: Any) -> Plant:
    new = {"dtype": "float32", "shape": [1], "names": None}
    return info(lambda i: i["features"].update({key: i["features"].get(key, new) | changes}))


def tables(root: Path, under: str, change: Callable[[pa.Table], pa.Table]) -> None:
    for path in sorted((root / under).glob("*/*.parquet")):
        pq.write_table(change(pq.read_table(path)), path)


def replaced(table: pa.Table, key: str, values: Any) -> pa.Table:
    kept = table.drop_columns([key]) if key in table.column_names else table
    return kept.append_column(key, values)


def depth_video(root: Path) -> None:
    """Add a depth camera as LeRobot writes it, with its own columns and videos."""
    feature(DEPTH, dtype="video", shape=[32, 48, 1], info={"is_depth_map": True})(root)

    def change(table: pa.Table) -> pa.Table:
        for name in [name for name in table.column_names if name.startswith(f"videos/{CAMERA}")]:
            table = table.append_column(name.replace(CAMERA, DEPTH), table[name])
        return table

    tables(root, "meta/episodes", change)
    shutil.copytree(root / "videos" / CAMERA, root / "videos" / DEPTH)


def text(root: Path) -> None:
    feature("annotation", dtype="string")(root)
    tables(root, "data", lambda t: t.append_column("annotation", pa.array(["grasp"] * t.num_rows)))


def nothing(root: Path) -> None:
    feature("nothing", shape=[0])(root)
    tables(root, "data", lambda t: t.append_column("nothing", pa.array([[]] * t.num_rows, pa.list_(pa.float32()))))


@pytest.mark.parametrize("plant", [
    depth_video,
    feature(DEPTH, dtype="video", shape=[32, 48, 1]),
    feature(DEPTH, dtype="video", shape=[32, 48]),
    feature(DEPTH, dtype="video", shape=[32, 48, 3], info={"video.is_depth_map": True}),
    feature(DEPTH, dtype="image", shape=[32, 48, 1]),
    text,
    nothing,
    info(lambda i: i["features"].update({"steps/x": {"dtype": "string", "shape": [1], "names": None}})),
    info(lambda i: (i.pop("splits"), i.pop("robot_type"), i.pop("chunks_size"), i.update(license="mit", x={}))),
    lambda root: (root / "README.md").write_text("# mine"),
    lambda root: shutil.copytree(root / "videos" / CAMERA, root / "videos" / "observation.images.old"),
    info(lambda s: s.update(odd={"text": "of another program"}), "meta/stats.json"),
])  # fmt: skip
def test_unreadable_features_and_unknown_entries_are_skipped(recorded: Path, plant: Plant) -> None:
    plant(recorded)
    data = Dataset(recorded)
    assert verify(recorded) == [] and data.cameras == [CAMERA]
    assert data.frames(CAMERA, [5]).shape == (1, 32, 48, 3) and data.column("action").shape == (13, 2)
    assert Info(recorded).run() == 0


def test_reading_a_depth_map_is_refused(recorded: Path) -> None:
    depth_video(recorded)
    with pytest.raises(DatasetError, match=f"'{DEPTH}' .*is a video of shape .*32, 48, 1.*not read"):
        Dataset(recorded).frames(DEPTH, [0])
    with pytest.raises(DatasetError, match=DEPTH):
        DatasetWriter.append(recorded)
    assert (recorded / "videos" / DEPTH / "chunk-000/file-000.mp4").exists()


@pytest.mark.parametrize(("shape", "names"), [
    ([3, 32, 48], ["channels", "height", "width"]), ([3, 32, 48], {"axes": ["channel", "height", "width"]}),
    ([3, 32, 48], None), ([48, 32, 3], ["width", "height", "channel"]), ([32, 48, 3], ["height", "width", "rgb"]),
])  # fmt: skip
def test_picture_axes_are_identified_by_names(shape: list[int], names: Any) -> None:
    assert Feature.from_json({"dtype": "video", "shape": shape, "names": names}).shape == (32, 48, 3)


def test_append_keeps_the_features_in_info_json(recorded: Path, episode) -> None:
    feature(CAMERA, shape=[3, 32, 48], names=["channels", "height", "width"])(recorded)
    feature("action", names={"motors": ["a", "b"]})(recorded)
    before = json.loads((recorded / "meta/info.json").read_text())["features"]
    with DatasetWriter.append(recorded) as writer:
        writer.add_episode(episode(3), "lift")
    assert json.loads((recorded / "meta/info.json").read_text())["features"] == before
    assert verify(recorded) == [] and Dataset(recorded).frames(CAMERA, [0, 12]).shape == (2, 32, 48, 3)


@pytest.mark.parametrize(("names", "wanted"), [
    ({"motors": ["x", "y", "z"]}, ["x", "y", "z"]),
    ({"left": ["x", "y"], "right": {"arm": ["z"]}}, ["x", "y", "z"]),
    ({"y": 1, "z": 2, "x": 0}, ["x", "y", "z"]),
    ([["x", "y"], ["z"]], ["x", "y", "z"]),
    (["state"], None),
    ({}, None),
    (None, None),
])  # fmt: skip
def test_names_become_one_list(names: Any, wanted: list[str] | None) -> None:
    assert Feature.from_json({"dtype": "float32", "shape": [3], "names": names}).names == wanted


# ---- frame rates --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fps", [29.97, 100 / 3])
def test_fractional_frame_rates_are_read_and_appended(root: Path, features, episode, fps: float) -> None:
    DatasetWriter.create(root, fps=10, features=features()).close()
    info(lambda i: i.update(fps=fps))(root)
    for index in range(3):
        with DatasetWriter.append(root) as writer:
            writer.add_episode(episode(index, 40 if index == 1 else 4), "lift")
    data = Dataset(root)
    assert data.fps == fps and json.loads((root / "meta/info.json").read_text())["fps"] == fps
    assert data.column("timestamp")[43].item() == pytest.approx(39 / fps)
    assert verify(root) == []
    grey = data.frames(CAMERA, [43, 3, 0, 46])[:, 0, 0, 0].float()
    assert (grey - torch.tensor([(37 + 20 * 39) % 256, 60, 0, (74 + 40) % 256])).abs().max() < 8
    video = json.loads((root / "meta/info.json").read_text())["features"][CAMERA]["info"]
    assert video["video.fps"] == pytest.approx(fps, rel=1e-4)


def write_delayed_video(path: Path, delay: float, count: int) -> None:
    """Write a video at 10 Hz whose first frame is at `delay`, s."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10, options={"bf": "0"})
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 100)
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(np.full((32, 48, 3), 20 * number, np.uint8), format="rgb24")
            frame.pts, frame.time_base = number * 10 + round(100 * delay), Fraction(1, 100)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def set_starts(root: Path, file: int, *seconds: float) -> None:
    """Set the start of each episode in a video."""
    path = root / f"meta/episodes/chunk-000/file-00{file}.parquet"
    pq.write_table(replaced(pq.read_table(path), f"videos/{CAMERA}/from_timestamp", pa.array(seconds)), path)


@pytest.mark.parametrize(("delay", "start", "sound"), [
    (0.0, 0.0, True), (0.1, 0.0, False), (0.1, 0.1, True), (0.05, 0.05, True), (0.0, 0.1, False)
])  # fmt: skip
def test_verify_and_reading_agree_on_frame_times(recorded: Path, delay: float, start: float, sound: bool) -> None:
    """A delayed video is sound only if `from_timestamp` has the same delay."""
    video = recorded / "videos" / CAMERA / "chunk-000/file-000.mp4"
    write_delayed_video(video, delay, 4)
    set_starts(recorded, 0, start)
    problems = verify(recorded)
    assert (problems == []) == sound
    if sound:
        assert Dataset(recorded).frames(CAMERA, [0, 3])[:, 0, 0, 0].tolist() == pytest.approx([0, 60], abs=8)
    else:
        assert str(video) in problems[0]
        with pytest.raises(DatasetError, match="file-000.mp4"):
            Dataset(recorded).frames(CAMERA, range(4))


def test_unused_frames_are_notes_and_shared_frames_are_damage(recorded: Path) -> None:
    video = recorded / "videos" / CAMERA / "chunk-000/file-000.mp4"
    video.write_bytes(encode_video([np.full((32, 48, 3), 20 * k, np.uint8) for k in range(6)], 10))
    faults, notes = examine(recorded)
    assert faults == [] and any("file-000.mp4" in note for note in notes)
    set_starts(recorded, 1, 0.0, 0.5)
    assert any("file-001.mp4" in fault for fault in verify(recorded)), "two episodes share frame 5"


# ---- pictures in the data table -----------------------------------------------------------------------------------
def pictures(root: Path, encoding: str = ".png") -> np.ndarray:
    """Store random pictures in the data table, as LeRobot does for `dtype: image`; return the pictures."""
    frames = np.random.default_rng(0).integers(0, 255, (13, 32, 48, 3), np.uint8)
    frames[..., 0] //= 4  # make red and blue differ
    cells = [cv2.imencode(encoding, np.ascontiguousarray(frame[..., ::-1]))[1].tobytes() for frame in frames]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])

    def change(table: pa.Table) -> pa.Table:
        rows = [{"bytes": cells[i], "path": f"frame-{i:06d}{encoding}"} for i in table["index"].to_pylist()]
        return table.append_column(CAMERA, pa.array(rows, kind))

    tables(root, "data", change)
    tables(root, "meta/episodes", lambda t: t.drop_columns([n for n in t.column_names if n.startswith("videos/")]))
    shutil.rmtree(root / "videos")
    info(lambda i: i.update(video_path=None))(root)
    feature(CAMERA, dtype="image", info=None)(root)
    return frames


@pytest.mark.parametrize(("encoding", "error"), [(".png", 0), (".jpg", 40)])
def test_pictures_in_the_data_table_are_read(recorded: Path, encoding: str, error: int) -> None:
    frames = pictures(recorded, encoding)
    data, order = Dataset(recorded), [12, 0, 5, 5, 4]
    assert data.cameras == [CAMERA] and verify(recorded) == []
    decoded = data.frames(CAMERA, order)
    assert decoded.dtype == torch.uint8 and np.abs(decoded.numpy().astype(int) - frames[order]).mean() <= error
    assert data.frames(CAMERA, []).shape == (0, 32, 48, 3)
    with pytest.raises(DatasetError, match=CAMERA):
        DatasetWriter.append(recorded)


def test_pictures_in_the_data_table_are_renamed_and_resized(recorded: Path) -> None:
    frames = pictures(recorded)
    feature(CAMERA, shape=[3, 32, 48], names=["channels", "height", "width"])(recorded)
    wrist = "observation.images.wrist"
    data = Dataset(recorded, DatasetView((f"{CAMERA}={wrist}",), image_size=16))
    assert data.cameras == [wrist] and data.features[wrist].shape == (16, 16, 3)
    assert (data.frames(wrist, [7, 2]).numpy() == resized(frames[[7, 2]], 16)).all()
    assert data.stats.keys() == data.features.keys() and wrist in data.episode_stats(("mean",))
    before = pictures_digest(data, [wrist])
    tables(recorded, "data", lambda t: replaced(t, CAMERA, pa.array(t[CAMERA].to_pylist()[::-1], t[CAMERA].type)))
    assert pictures_digest(Dataset(recorded, data.view), [wrist]) != before


@pytest.mark.parametrize(("cell", "words"), [
    ({"bytes": b"\x89PNG no more", "path": "a.png"}, "frame 5.*no picture"),
    ({"bytes": None, "path": "a.png"}, "frame 5.*no picture"),
    (None, "frame 5.*no picture"),
    ({"bytes": cv2.imencode(".png", np.zeros((8, 8, 3), np.uint8))[1].tobytes(), "path": None}, r"\(8, 8, 3\)"),
])  # fmt: skip
def test_damaged_pictures_in_the_data_table_are_named(recorded: Path, cell: Any, words: str) -> None:
    pictures(recorded)
    path = recorded / "data/chunk-000/file-001.parquet"
    table = pq.read_table(path)
    cells = table[CAMERA].to_pylist()
    cells[1] = cell  # frame 5
    pq.write_table(replaced(table, CAMERA, pa.array(cells, table.schema.field(CAMERA).type)), path)
    with pytest.raises(DatasetError, match=words):
        Dataset(recorded).frames(CAMERA, [4, 5])
    assert len(verify(recorded)) == 1


# Types of columns


PAIRS, BITS = [[i, 1] for i in range(13)], [i % 2 for i in range(13)]


@pytest.mark.parametrize(("key", "dtype", "shape", "cells"), [
    ("action", "float64", [2], pa.array(PAIRS, pa.list_(pa.float64(), 2))),
    ("action", "float32", [2], pa.array(PAIRS, pa.list_(pa.float64()))),
    ("action", "float16", [2], pa.array(PAIRS, pa.list_(pa.float32(), 2))),
    ("action", "float32", [2], pa.array(PAIRS, pa.list_(pa.int64()))),
    ("action", "int64", [2], pa.array(PAIRS, pa.large_list(pa.int32()))),
    ("next.done", "bool", [1], pa.array(BITS, pa.int8())),
    ("next.done", "bool", [], pa.array(BITS, pa.float32())),
    ("next.done", "bool", [1], pa.array([[bool(bit)] for bit in BITS], pa.list_(pa.bool_(), 1))),
    ("next.done", "bool", [1, 1], pa.array([[bit] for bit in BITS], pa.list_(pa.int64()))),
])  # fmt: skip
def test_columns_are_converted_from_a_files_type(recorded: Path, key: str, dtype: str, shape: Any, cells: Any) -> None:
    feature(key, dtype=dtype, shape=shape)(recorded)
    tables(recorded, "data", lambda t: replaced(t, key, cells.slice(t["index"][0].as_py(), t.num_rows)))
    values = Dataset(recorded).column(key)
    assert str(values.dtype) == f"torch.{dtype}" and values.shape == (13, *(shape or [1]))
    assert values.flatten().tolist() == np.array(cells.to_pylist()).ravel().tolist()
    assert shape == [1, 1] or verify(recorded) == []  # the stored statistics have shape (1,)


@pytest.mark.parametrize(("dtype", "cells"), [
    ("bool", pa.array([0.5] * 13)), ("int64", pa.array([1, None] * 6 + [1])), ("uint8", pa.array([300] * 13)),
    ("float32", pa.array([{"x": 1.0}] * 13)),
])  # fmt: skip
def test_lossy_conversions_are_refused(recorded: Path, dtype: str, cells: pa.Array) -> None:
    feature("next.done", dtype=dtype)(recorded)
    tables(recorded, "data", lambda t: replaced(t, "next.done", cells.slice(t["index"][0].as_py(), t.num_rows)))
    with pytest.raises(DatasetError, match="'next.done'"):
        Dataset(recorded).column("next.done")
    assert any("next.done" in problem for problem in verify(recorded))


# ---- statistics ---------------------------------------------------------------------------------------------------
def without(*names: str) -> Plant:
    """Drop statistics of every feature from stats.json and meta/episodes."""

    def plant(root: Path) -> None:
        info(lambda s: [s[key].pop(name) for key in s for name in names], "meta/stats.json")(root)
        tables(root, "meta/episodes", lambda t: t.drop_columns([n for n in t.column_names if n.endswith(names)]))

    return plant


def without_pictures(root: Path) -> None:
    info(lambda s: s.pop(CAMERA), "meta/stats.json")(root)
    stats = f"stats/{CAMERA}"
    tables(root, "meta/episodes", lambda t: t.select([n for n in t.column_names if not n.startswith(stats)]))


@pytest.mark.parametrize("plant", [
    without("q01", "q10", "q50", "q90", "q99"),
    without_pictures,
    lambda root: (root / "meta/stats.json").unlink(),
    without("mean"),
])  # fmt: skip
def test_missing_statistics_are_noted_and_computed(recorded: Path, plant: Plant, capsys) -> None:
    before = json.loads((recorded / "meta/stats.json").read_text())
    plant(recorded)
    faults, notes = examine(recorded)
    assert faults == [] and len(notes) == 1
    assert Verify(recorded, json=True).run() == 0
    assert json.loads(capsys.readouterr().out)["notes"] == notes
    assert Stats(recorded).run() == 0
    after = json.loads((recorded / "meta/stats.json").read_text())
    assert after.keys() == before.keys()
    for key, entry in before.items():
        for name, value in entry.items():
            np.testing.assert_allclose(after[key][name], value, atol=0.02 if key == CAMERA else 1e-9)
    assert examine(recorded) == ([], [])
    info(lambda s: [entry.update(count=entry["count"][0]) for entry in s.values()], "meta/stats.json")(recorded)
    assert examine(recorded) == ([], []), "a count may be a scalar"


# ---- the hub's cache ----------------------------------------------------------------------------------------------
def cached(root: Path, shared: bool = False) -> Path:
    """Move a dataset into a cache in the layout of huggingface_hub; return the snapshot."""
    cache = root.parent / "hub"
    repository = cache / "datasets--me--lift"
    snapshot = repository / "snapshots/0123abc"
    (repository / "blobs").mkdir(parents=True)
    for number, path in enumerate(sorted(p for p in root.rglob("*") if p.is_file() and p.name != ".lock")):
        blob, place = repository / f"blobs/{number:040x}", snapshot / path.relative_to(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        path.rename(blob)
        place.symlink_to(os.path.relpath(blob, place.parent))
        if shared:
            stored = cache / f"blobs/00/{number:064x}"
            stored.parent.mkdir(parents=True, exist_ok=True)
            blob.rename(stored)
            blob.symlink_to(os.path.relpath(stored, blob.parent))
    shutil.rmtree(root)
    return snapshot


@pytest.mark.parametrize("shared", [False, True])
def test_the_hubs_cache_is_read_and_never_written(recorded: Path, shared: bool) -> None:
    snapshot = cached(recorded, shared)
    hub = snapshot.parents[2]
    before = {path: path.read_bytes() for path in hub.rglob("*") if path.is_file()}
    linked = hub.parent / "linked"
    linked.symlink_to(snapshot)
    for root in (snapshot, linked):
        assert verify(root) == []
        data = Dataset(root)
        assert data.frames(CAMERA, [12]).shape == (1, 32, 48, 3) and len(data.column("action")) == 13
        for write in (DatasetWriter.append, lambda r: Stats(r).run()):
            with pytest.raises(DatasetError, match="cp -rL"):
                write(root)
    assert {path: path.read_bytes() for path in hub.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "target", ["hub/secret", "hub/datasets--me--lift/secret", "hub/datasets--you--x/blobs/0", "/etc/hostname"]
)
def test_links_of_a_snapshot_out_of_its_cache_are_refused(recorded: Path, target: str) -> None:
    snapshot = cached(recorded)
    path = snapshot.parents[3] / target
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    (snapshot / "meta/stats.json").unlink()
    (snapshot / "meta/stats.json").symlink_to(path)
    assert "stats.json is a link" in verify(snapshot)[0]
    with pytest.raises(DatasetError, match="is a link"):
        Dataset(snapshot)
