"""Crashes of writers: finished episodes survive, and the next writer continues."""

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from robot_rl.data import Dataset, DatasetError, DatasetWriter, Feature, storage, verify

WRITERS = """
    import os, signal, sys
    from pathlib import Path
    import numpy as np
    from robot_rl.data import DatasetWriter, Feature

    def write(root, kill_at):
        calls = 0

        def counted(real):
            def call(*args):
                nonlocal calls
                if calls == kill_at:
                    if real is os_write:  # write half a file before the kill
                        os_write(args[0], args[1][: len(args[1]) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
                calls += 1
                return real(*args)
            return call

        os_write = os.write
        writer = DatasetWriter.create(root, fps=10, features={"x": Feature("float32", (2,))})
        os.write, os.replace = counted(os.write), counted(os.replace)
        os.fsync = counted(lambda fd: None)  # a kill loses no cached data
        for i in range(2):
            writer.add_episode({"x": np.full((3, 2), i, np.float32)}, "t", {f"r{i}": i})
            Path(f"{root}.done").write_text(str(i + 1))

    kill_at, status = 0, None
    while status != 0:
        pid = os.fork()  # one interpreter start for all writers
        if pid == 0:
            write(f"{sys.argv[1]}/killed-{kill_at}", kill_at)
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        assert status in (0, signal.SIGKILL)
        kill_at += 1
"""


def test_sigkill_at_any_disk_operation_keeps_finished_episodes(tmp_path: Path, monkeypatch) -> None:
    """Kill writers at the first, second, ... last write, rename or fsync. Videos are published like data files."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    subprocess.run([sys.executable, "-c", textwrap.dedent(WRITERS), str(tmp_path)], check=True, timeout=100)
    roots = sorted(path for path in tmp_path.iterdir() if path.is_dir())
    assert len(roots) > 30
    seen = set()
    for root in roots:
        done = Path(f"{root}.done")
        finished = int(done.read_text()) if done.exists() else 0
        seen.add(finished)
        data = Dataset(root)
        count = data.num_episodes
        assert count in (finished, finished + 1), "a kill after the commit precedes the announcement"
        assert data.column("x")[:, 0].tolist() == [float(i) for i in range(count) for _ in range(3)]
        assert all("mean" in stats for stats in data.stats.values())
        with DatasetWriter.append(root) as writer:
            writer.add_episode({"x": np.full((3, 2), count, np.float32)}, "t", {"late": 1.5})
        assert data.refresh() == 1 and data.column("x")[-1, 0] == count
        assert verify(root) == [] and not (root / ".staging").exists()
    assert seen == {0, 1, 2}


class Fault:
    """Make the k-th call of os.write, os.replace or os.fsync fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, error: BaseException, after: bool = False) -> None:
        self.calls, self.fired = 0, False
        for name in ("write", "replace", "fsync"):
            monkeypatch.setattr(storage.os, name, self._wrap(name, getattr(os, name), at, error, after))

    def _wrap(self, name, real, at: int, error: BaseException, after: bool):
        def call(*args):
            number, self.calls = self.calls, self.calls + 1
            if number != at:
                return real(*args)
            self.fired = True
            if after:
                real(*args)
            elif name == "write":
                real(args[0], args[1][: len(args[1]) // 2])
            raise error

        return call


@pytest.mark.parametrize(
    ("error", "after"),
    [(OSError(errno.ENOSPC, "No space left on device"), False), (KeyboardInterrupt(), True)],
    ids=["disk full", "ctrl-c"],
)
def test_a_writer_continues_after_any_disk_error(tmp_path: Path, monkeypatch, episode, features, error, after) -> None:
    """Fail at the k-th call, for every k."""
    k, finished = 0, False
    while not finished:
        root = tmp_path / f"fail-{k}"
        writer = DatasetWriter.create(root, fps=10, features=features(video=False))
        writer.add_episode(episode(0, video=False), "lift", {"a": 1})
        with monkeypatch.context() as patch:
            fault = Fault(patch, k, error, after)
            try:
                writer.add_episode(episode(1, video=False), "push", {"b": 1})
            except DatasetError as problem:
                assert str(root) in str(problem) and "disk is full" in str(problem)
            except KeyboardInterrupt:
                pass
        finished, k = not fault.fired, k + 1
        data = Dataset(root)
        assert data.num_episodes == writer.num_episodes
        assert data.uncounted_files() == [] and not (root / ".staging").exists()
        assert data.column("next.reward")[:4, 0].tolist() == [0, 1, 2, 3]
        assert int(data.stats["index"]["count"]) == data.num_frames
        writer.add_episode(episode(7, video=False), "push", {"b": 2})
        writer.close()
        assert data.refresh() == 1
        assert data.column("next.reward")[-4:, 0].tolist() == [700, 701, 702, 703]
        assert verify(root) == []
    assert k > 10


def test_append_moves_uncounted_files_aside(recorded: Path, episode, caplog) -> None:
    """Undo only the last rename of a commit, as a kill before that rename does."""
    before = (recorded / "meta/info.json").read_bytes()
    stats = (recorded / "meta/stats.json").read_bytes()
    with DatasetWriter.append(recorded) as writer:
        writer.add_episode(episode(3), "new task", {"extra": 1})
    (recorded / "meta/info.json").write_bytes(before)
    problems = verify(recorded)
    assert sum("a writer was killed; DatasetWriter.append moves it aside" in problem for problem in problems) == 3
    assert any("stats.json is of other episodes" in problem for problem in problems)
    data = Dataset(recorded)
    assert data.num_episodes == 3 and data.tasks == ["lift", "push"]
    assert data.column("action").shape == (13, 2) and int(data.stats["index"]["count"]) == 13
    DatasetWriter.append(recorded).close()
    assert "a writer died before its commit; moved to" in caplog.text
    assert len(list((recorded / ".aside").rglob("file-002.*"))) == 3, "nothing is lost"
    assert verify(recorded) == [] and (recorded / "meta/stats.json").read_bytes() == stats


def test_append_keeps_videos_of_unlisted_cameras_and_all_that_it_moves_aside(recorded: Path) -> None:
    other = recorded / "videos/observation.images.wrist/chunk-000/file-000.mp4"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"foreign")
    DatasetWriter.append(recorded).close()
    assert other.read_bytes() == b"foreign" and not (recorded / ".aside").exists()
    left = recorded / "data/chunk-000/file-009.parquet"
    for number in range(2):
        left.write_bytes(b"foreign %d" % number)
        DatasetWriter.append(recorded).close()
        assert (recorded / ".aside" / str(number) / left.relative_to(recorded)).read_bytes() == b"foreign %d" % number
    assert verify(recorded) == []
    left.write_bytes(b"from a killed writer")
    (recorded / "data/chunk-000/file-000.parquet").write_bytes(b"damaged")
    before = sorted(recorded.rglob("*"))
    with pytest.raises(DatasetError, match="file-000"):
        DatasetWriter.append(recorded)
    assert sorted({*before, recorded / ".lock"}) == sorted(recorded.rglob("*")), "nothing moves in a damaged dataset"


def test_only_one_living_writer_holds_a_dataset(recorded: Path) -> None:
    code = "import sys; from robot_rl.data import DatasetWriter; w = DatasetWriter.append(sys.argv[1]); "
    code += "print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(recorded)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None and other.stdout.readline() == "open\n"
    with pytest.raises(DatasetError, match=f"being written by process {other.pid}"):
        DatasetWriter.append(recorded)
    other.kill()
    other.communicate()
    writer = DatasetWriter.append(recorded)  # a dead process holds no lock
    with pytest.raises(DatasetError, match="being written by process"):
        DatasetWriter.append(recorded)
    writer.close()
    with pytest.raises(DatasetError, match="is closed"):
        writer.add_episode({}, "x")


def test_create_refuses_other_files_and_makes_a_sound_dataset_without_episodes(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="holds a dataset already"):
        DatasetWriter.create(recorded, fps=1, features={})
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("mine")
    with pytest.raises(DatasetError, match="not empty"):
        DatasetWriter.create(tmp_path / "full", fps=1, features={})
    DatasetWriter.create(tmp_path / "new", fps=10, features={"x": Feature("float32", (2,))}).close()
    data = Dataset(tmp_path / "new")
    assert (data.num_episodes, data.num_frames, data.tasks, data.stats) == (0, 0, [], {})
    assert data.column("x").shape == (0, 2) and verify(tmp_path / "new") == []


def test_a_reader_beside_a_writer_sees_only_whole_episodes(root: Path) -> None:
    code = """
    import sys, numpy as np
    from robot_rl.data import DatasetWriter, Feature
    writer = DatasetWriter.create(sys.argv[1], fps=10, features={"x": Feature("int64", (1,))})
    print("ready", flush=True)
    for i in range(40):
        writer.add_episode({"x": np.full(5, i)}, f"task {i % 3}", {f"key {i // 10}": i})
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        data, looks = Dataset(root), 0
        seen = data.num_episodes
        while data.num_episodes < 40:
            alive = other.poll() is None
            seen += data.refresh()
            looks += 1
            assert seen == data.num_episodes == len(data.episodes)
            assert data.column("x")[:, 0].tolist() == [i for i in range(seen) for _ in range(5)]
            assert alive or data.num_episodes == 40 or other.returncode == 0
        assert other.wait(30) == 0
    assert looks > 2 and data.tasks == ["task 0", "task 1", "task 2"] and data.refresh() == 0
