"""Copies of a folder elsewhere: changed files only, whole files only, a dataset's commit point last."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.cluster.copies import LARGEST, changed, stamps, write

NAMES = st.lists(st.sampled_from(["a.bin", "meta/info.json", "data/b.parquet", "c.json", "d/e/f"]), unique=True)


def copy(here: Path, there: Path, known: dict[str, tuple[int, int]]) -> list[str]:
    """Copy what changed; return the names of the copied files in the order of reading."""
    names: list[str] = []
    for files in changed(here, known):
        write(there, files, [(str(here), str(there))])
        known |= {name: stamp for name, (stamp, _) in files.items()}
        names += files
    return names


@given(st.data())
def test_copies_equal_the_folder_after_every_round(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    here, there = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("there")
    known: dict[str, tuple[int, int]] = {}
    for number in range(3):
        for name in data.draw(NAMES):
            path = here / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data.draw(st.binary(max_size=20)))
            os.utime(path, ns=(number + 1, number + 1))  # the clock of the disk may be coarse
        copied = copy(here, there, known)
        assert {name: (there / name).read_bytes() for name in stamps(here)} == {
            name: (here / name).read_bytes() for name in stamps(here)
        }
        assert "meta/info.json" not in copied[1:]  # read first, so that it counts no file that is not read
        assert copy(here, there, known) == []


def test_info_is_written_last_and_hidden_files_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, written = tmp_path / "here", []
    for name in ("meta/info.json", "data/rows.parquet", ".lock", ".rows.12.part"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(b"x")
    monkeypatch.setattr("robot_rl.cluster.copies.replace_file", lambda path, _: written.append(path.name))
    for files in changed(here, {}):
        write(tmp_path / "there", files, [])
    assert written == ["rows.parquet", "info.json"]


def test_paths_in_json_become_those_of_the_other_machine(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    (here / "config.json").write_text(f'{{"dataset": "{here}/data"}}')
    (here / "weights.bin").write_text(f"{here}/data")
    copy(here, there, {})
    assert (there / "config.json").read_text() == f'{{"dataset": "{there}/data"}}'
    assert (there / "weights.bin").read_text() == f"{here}/data"


def test_large_folders_go_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robot_rl.cluster.copies.LARGEST", 10)
    for k in range(4):
        (tmp_path / f"{k}").write_bytes(b"12345678")
    assert [list(files) for files in changed(tmp_path, {})] == [["0"], ["1"], ["2"], ["3"]]
    assert LARGEST > 10
