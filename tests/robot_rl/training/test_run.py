"""Run folder: lock, resume, metrics, full disk, signals."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from robot_rl.recipes import recipes
from robot_rl.training.run import (
    commit_of,
    latest_folder,
    learner_threads,
    learning_floats,
    read_metrics,
    resume_command,
)
from robot_rl.util.errors import Interrupted, UserError

Build = Callable[..., Any]


def steps(folder: Path) -> list[float]:
    return [row["step"] for row in read_metrics(folder)]


def test_run_records_config_and_provenance(run: Build) -> None:
    one = run(config={"steps": 5})
    assert json.loads((one.folder / "config.json").read_text()) == {"steps": 5}
    provenance = json.loads((one.folder / "provenance.json").read_text())
    assert provenance["versions"]["torch"] == torch.__version__.split("+")[0] or provenance["versions"]["torch"]
    assert provenance["versions"]["genesis-world"] == metadata.version("genesis-world")
    assert provenance["commit"] and provenance["machine"]["cores"]
    assert any(line.startswith("torch==") for line in (one.folder / "requirements.txt").read_text().splitlines())


def test_commit_is_dirty_with_changed_code_but_not_with_new_results(tmp_path: Path) -> None:
    code, results = tmp_path / "lab" / "code.py", tmp_path / "benchmarks" / "results" / "methods.json"
    assert commit_of(tmp_path) == "unknown"
    for file in (code, results):
        file.parent.mkdir(parents=True)
        file.write_text("1")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    clean = commit_of(code.parent)
    results.write_text("2")
    assert len(clean) == 40 and commit_of(code.parent) == clean
    code.write_text("2")
    assert commit_of(code.parent) == f"{clean}-dirty"


def test_open_folder_is_locked(run: Build) -> None:
    one = run()
    code = "import sys, pathlib, robot_rl.training.run as r; r.Run(pathlib.Path(sys.argv[1]), {}, resume=True)"
    other = subprocess.run([sys.executable, "-c", code, str(one.folder)], capture_output=True, text=True)
    assert other.returncode != 0 and "in use by another process" in other.stderr


def test_existing_run_opens_only_to_resume(run: Build) -> None:
    with run(config={"a": 1}) as one:
        one.log(1, {"x": 1.0})
    with pytest.raises(UserError, match=f"{one.folder.name} holds a run already; continue with --resume"):
        run(config={"a": 2})
    assert steps(one.folder) == [1], "the refused run wrote nothing"
    with pytest.raises(UserError, match=r"started with different settings \(a\)"):
        run(config={"a": 2}, resume=True)
    again = run(config={"a": 1}, resume=True)
    assert json.loads((again.folder / "config.json").read_text()) == {"a": 1}


@pytest.mark.parametrize("left", [".lock", ".provenance.json.12345.part"])
def test_files_of_a_kill_during_the_start_are_no_run(run: Build, tmp_path: Path, left: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / left).touch()
    assert (run().folder / "config.json").exists() and not list(tmp_path.glob("run/.*.part"))


def test_error_before_the_first_result_removes_the_folder(run: Build) -> None:
    for done in (False, True):
        with pytest.raises(ZeroDivisionError), run() as one:
            if done:
                one.log(1, {"x": 1.0})
            raise ZeroDivisionError
        assert one.folder.exists() == done


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Limit the size of files of this process, bytes, as a full disk does."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


def test_full_disk_names_the_file_and_removes_the_empty_run(run: Build) -> None:
    one = run()
    with pytest.raises(OSError, match="too large") as error, full_disk(20), one:
        one.log(1, {"x": 1.0})
    assert error.value.filename == str(one.folder / "metrics.jsonl") and not one.folder.exists()


@pytest.mark.parametrize("room", [0, 700])
def test_full_disk_at_the_start_leaves_no_folder(run: Build, tmp_path: Path, room: int) -> None:
    with pytest.raises(OSError, match="too large") as error, full_disk(room):
        run(config={"long": "x" * 600})
    assert Path(error.value.filename).parent == tmp_path / "run" and not (tmp_path / "run").exists()


@pytest.mark.parametrize("done", [True, False])
def test_interrupt_reports_the_remaining_folder(run: Build, done: bool) -> None:
    with pytest.raises(Interrupted) as error, run() as one:
        if done:
            (one.folder / "dataset").mkdir()
        raise KeyboardInterrupt(signal.SIGTERM)
    assert str(one.folder) in str(error.value) and ("its folder is gone" in str(error.value)) != done
    assert error.value.code == 143 and one.folder.exists() == done


def test_resume_drops_metrics_after_the_checkpoint(run: Build) -> None:
    with run() as one:
        for step in (10, 20, 30, 40):
            one.log(step, {"x": step})
            if step == 20:
                one.save(step, {"weights": torch.ones(3)})
        with open(one.folder / "metrics.jsonl", "a") as file:
            file.write('{"step": 50, "x')  # a row cut short by a kill
    again = run(resume=True)
    assert torch.equal(again.load()["weights"], torch.ones(3))
    assert steps(again.folder) == [10, 20]
    again.log(30, {"x": 31.0})
    assert steps(again.folder) == [10, 20, 30] and read_metrics(again.folder)[-1]["x"] == 31


def test_resume_drops_tensorboard_rows_after_the_checkpoint(run: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard reads the files in the order of their names, which begin with the time, s."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.summary.writer import event_file_writer

    clock = SimpleNamespace(time=lambda: 1e9)
    monkeypatch.setattr(event_file_writer, "time", clock)
    with run() as one:
        for step in (10, 20, 30, 40):
            one.log(step, {"x": step})
            if step == 20:
                one.save(step, {})
    clock.time = lambda: 1e9 + 1
    with run(resume=True) as two:
        two.load()
        two.log(30, {"x": 31.0})

    def curve() -> list[tuple[int, float]]:
        board = EventAccumulator(str(one.folder / "tensorboard"))
        board.Reload()
        return [(e.step, e.value) for e in board.Scalars("x")]

    assert curve() == [(10, 10.0), (20, 20.0), (30, 31.0)]
    one.checkpoint_file.unlink()
    clock.time = lambda: 1e9 + 2
    with run(resume=True) as three:
        assert three.load() is None
        three.log(10, {"x": 11.0})
    assert curve() == [(10, 11.0)]


def test_kill_during_load_keeps_the_metrics(run: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    with run() as one:
        one.log(10, {"x": 10})
        one.save(10, {})
        one.log(20, {"x": 20})

    def killed(*_: object) -> None:
        assert steps(one.folder) == [10, 20], "old rows stay until the new file is written"
        raise KeyboardInterrupt

    two = run(resume=True)
    for moment in ("fsync", "replace"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(os, moment, killed)
            two.load()
        assert steps(one.folder) == [10, 20]
    two.close()
    three = run(resume=True)
    three.load()
    assert steps(three.folder) == [10] and not list(three.folder.glob(".*.part"))


def test_elapsed_time_includes_earlier_runs(run: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("robot_rl.training.run.time.monotonic", lambda: clock[0])
    with run() as one:
        clock[0] += 30
        one.save(5, {})
        clock[0] += 1000
    again = run(resume=True)
    again.load()
    clock[0] += 12
    assert again.elapsed == pytest.approx(42)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_requests_a_stop_with_the_resume_command(run: Build, number: signal.Signals) -> None:
    before, one = signal.getsignal(number), run()
    one.stop_on_signals()
    one.end_if_stopped(7)
    os.kill(os.getpid(), number)
    assert one.stop_signal == number, "no exception"
    with pytest.raises(Interrupted, match=f"stopped by {number.name} at step 8, which is saved.*--resume") as error:
        one.end_if_stopped(8)
    assert error.value.code == 128 + number and str(one.folder) in str(error.value)
    one.close()
    assert signal.getsignal(number) is before


def test_second_signal_ends_at_once(run: Build) -> None:
    before = signal.getsignal(signal.SIGTERM)
    one = run()
    one.stop_on_signals()
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before, "SIGTERM would also end the process"


def test_latest_folder_has_a_checkpoint(tmp_path: Path) -> None:
    for year in (2025, 2026, 2027):
        folder = tmp_path / f"{year}0101-000000-panda-lift-resfit"
        folder.mkdir()
        if year < 2027:
            (folder / "checkpoint.safetensors").touch()
    (tmp_path / "20280101-000000-panda-lift-diffusion-bc").mkdir()
    assert latest_folder(tmp_path, "panda-lift", "resfit").name.startswith("2026")
    with pytest.raises(UserError, match="nothing to resume"):
        latest_folder(tmp_path, "panda-lift", "diffusion-bc")
    (tmp_path / "20280101-000000-panda-lift-diffusion-bc" / "episodes.jsonl").touch()
    assert latest_folder(tmp_path, "panda-lift", "diffusion-bc", "episodes.jsonl").name.startswith("2028")


def test_unwritable_folder_raises(run: Build, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write to run folder"):
        run("file/run")


def test_resume_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/bin/robot-rl", "train", "panda-lift", "--seed", "4", "--without", "a b"])
    expected = "robot-rl train panda-lift --seed 4 --without 'a b' --resume --out runs/x"
    assert resume_command(Path("runs/x")) == expected
    monkeypatch.setattr("sys.argv", ["robot-rl", "train", "--out=y", "--resume"])
    assert resume_command(Path("y")) == "robot-rl train --out=y --resume"
    monkeypatch.setattr("sys.argv", ["pytest", "-q"])
    assert resume_command(Path("y")) == "--resume --out y"


# ---- numerics ------------------------------------------------------------------------------------------------------
DENORMAL = torch.tensor(1e-38)


def test_settings_are_restored_after_an_error() -> None:
    before = torch.get_float32_matmul_precision()
    with pytest.raises(KeyError), learning_floats("high"):
        assert torch.get_float32_matmul_precision() == "high"
        assert (DENORMAL / 100).item() == 0
        raise KeyError
    assert (DENORMAL / 100).item() > 0
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize(("recipe", "used"), [("diffusion-bc", 3), ("ppo", 3), ("resfit", 1), ("hil-serl", 1)])
def test_threads_beside_a_running_simulation(monkeypatch: pytest.MonkeyPatch, recipe: str, used: int) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert learner_threads(getattr(recipes.get(recipe), "sim_idle_during_update", False)) == used
