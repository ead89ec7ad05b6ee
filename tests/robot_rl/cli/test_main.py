"""The command itself: instant help, nearest names, one sentence per error, and exit codes."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import tyro

from robot_rl import __version__
from robot_rl.cli import main as cli
from robot_rl.cli.console import show, show_runs
from robot_rl.util.errors import Interrupted, UserError
from sim.tasks import tasks

PROGRAM = [sys.executable, "-m", "robot_rl.cli.main"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*argv: str) -> tuple[int, str, str]:
        try:
            code = cli.main(list(argv))
        except SystemExit as end:  # tyro's way
            code = end.code if isinstance(end.code, int) else 1
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], int]], None]:
    """Install a command `work` that does what the test wants."""

    def install(work: Callable[[], int]) -> None:
        @dataclass
        class Work:
            """Work."""

            count: int = 1
            """How often."""
            ros_args: tyro.conf.Suppress[list[str]] = field(default_factory=list)

            def run(self) -> int:
                Work.seen = self
                return work()

        module = types.ModuleType("robot_rl_test_work")
        module.Work = Work  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "robot_rl_test_work", module)
        monkeypatch.setitem(cli.COMMANDS, "work", ("robot_rl_test_work:Work", "work"))

    return install


def failing(error: BaseException) -> Callable[[], int]:
    def work() -> int:
        raise error

    return work


# ---- help --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("word", "names"), [("--help", set(cli.COMMANDS)), ("tasks", set(tasks))])
def test_help_and_lists_are_there_within_half_a_second(word: str, names: set[str]) -> None:
    times = []
    for _ in range(3):
        begin = time.monotonic()
        said = subprocess.run([*PROGRAM, word], capture_output=True, text=True, check=True).stdout
        times.append(time.monotonic() - begin)
    assert min(times) < 0.5
    assert names and all(name in said for name in names)


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"]])
def test_help_lists_every_command(run: Run, words: list[str]) -> None:
    code, out, err = run(*words)
    assert code == 0 and err == ""
    for name, (_, text) in cli.COMMANDS.items():
        assert name in out and text in out


@pytest.mark.parametrize("group", ["bench", "dataset"])
@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_of_a_group_lists_its_commands(run: Run, group: str, word: str) -> None:
    code, out, err = run(group, word)
    assert code == 0 and err == "" and out.startswith(f"usage: robot-rl {group} COMMAND")
    for name, (_, text) in cli.COMMANDS.items():
        assert (name in out and text in out) == name.startswith(f"{group} ")


def test_nothing_at_all_is_wrong_usage(run: Run) -> None:
    code, out, _ = run()
    assert code == 2 and out.startswith("usage: robot-rl COMMAND")


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"robot-rl {__version__}\n", "")


@pytest.mark.parametrize("name", [n for n in cli.COMMANDS if n not in ("tasks", "robots", "recipes", "launch")])
def test_every_command_has_help(run: Run, name: str) -> None:
    code, out, _ = run(*name.split(), "--help")
    assert code == 0 and f"usage: robot-rl {name}" in out


def test_lists_import_nothing_heavy() -> None:
    code = (
        "import sys; from robot_rl.cli.main import main\n"
        "for words in (['tasks'], ['robots', '--json'], ['recipes']): assert main(words) == 0\n"
        "heavy = {'torch', 'mujoco', 'genesis', 'diffusers', 'gymnasium'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert "panda-lift" in said.stdout and "hil-serl" in said.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="PyTorch comes with another OpenMP there")
@pytest.mark.parametrize(
    ("own", "seen"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "passive"}, "0")],
)
def test_threads_that_wait_leave_the_cores_to_the_physics(own: dict[str, str], seen: str) -> None:
    """Unless the user says how they are to wait."""
    clean = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    command = [sys.executable, "-c", "import robot_rl.cli.main, torch"]
    environment = clean | own | {"OMP_DISPLAY_ENV": "verbose"}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr
    assert f"GOMP_SPINCOUNT = '{seen}'" in shown


def test_lists_as_json(run: Run) -> None:
    code, out, _ = run("tasks", "--json")
    assert code == 0 and "panda-lift" in json.loads(out)


# ---- names -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["trian", "panda-lift"], "train"),
        (["colect"], "collect"),
        (["dataset", "verfy"], "dataset verify"),
        (["dataset"], "did you mean dataset info or dataset stats or dataset verify?"),
        (["bench"], "did you mean bench vla or bench sim or bench loop?"),
        (["bench", "--json"], "bench"),
        (["bench", "lop"], "did you mean bench loop"),
        (["dataset", 40 * "z"], "known: dataset convert, dataset info, dataset stats, dataset verify"),
        (["tasks", "--jason"], "--json"),
        (["zzzz"], "known: "),
    ],
)
def test_an_unknown_word_suggests_the_nearest(run: Run, words: list[str], near: str) -> None:
    code, out, err = run(*words)
    assert code == 2 and out == ""
    assert err.startswith("robot-rl: unknown ") and near in err and err.count("\n") == 1


# ---- errors ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UserError("the bundle is gone; name another"), 1, "the bundle is gone; name another"),
        (OSError(errno.ENOSPC, "No space left on device", "runs/a"), 1, "No space left on device: runs/a; free some"),
        (PermissionError(errno.EACCES, "Permission denied", "runs/a"), 1, "Permission denied: runs/a; check the path"),
        (Interrupted("stopped at step 3"), 130, "stopped at step 3"),
        (Interrupted("stopped at step 3", signal.SIGTERM), 143, "stopped at step 3"),
        (KeyboardInterrupt(), 130, "interrupted; finished work is on disk"),
        (KeyboardInterrupt(signal.SIGTERM), 143, "interrupted; finished work is on disk"),
        (ZeroDivisionError("division by zero"), 1, "ZeroDivisionError: division by zero (a defect"),
        (ModuleNotFoundError("No module 'a.b'", name="a.b"), 1, "this needs the package a, which is not installed"),
        (ModuleNotFoundError("No module 'sim.b'", name="sim.b"), 1, "ModuleNotFoundError: No module 'sim.b' (a defect"),
    ],
)  # fmt: skip
def test_an_error_is_one_sentence_and_a_status(
    run: Run, command: Callable[..., None], error: BaseException, code: int, said: str
) -> None:
    command(failing(error))
    status, out, err = run("work")
    assert status == code and out == ""
    assert err.startswith(f"robot-rl: {said}") and err.count("\n") == 1 and "Traceback" not in err


@pytest.mark.parametrize("columns", ["0", "1", "nonsense"])
def test_a_result_is_printed_whatever_columns_there_are(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    show({"success": 0.75, "steps": 12}, False, "evaluation")
    show_runs([{"run": "a", "steps": 12}], False, "runs", {})
    out = capsys.readouterr().out
    assert "0.75" in out and out.count("12") == 3


@pytest.mark.parametrize("error", [UserError("x"), OSError(28, "full"), ZeroDivisionError("x")])
def test_debug_shows_the_traceback(run: Run, command: Callable[..., None], error: BaseException) -> None:
    command(failing(error))
    for words in (["--debug", "work"], ["work", "--debug"]):
        with pytest.raises(type(error)):
            run(*words)


def test_debug_prints_a_traceback_in_a_shell() -> None:
    said = subprocess.run([*PROGRAM, "dataset", "info", "/nowhere", "--debug"], capture_output=True, text=True)
    assert said.returncode == 1 and "Traceback (most recent call last)" in said.stderr
    quiet = subprocess.run([*PROGRAM, "dataset", "info", "/nowhere"], capture_output=True, text=True)
    assert quiet.returncode == 2 and quiet.stderr.count("\n") == 1 and "/nowhere" in quiet.stderr


def test_the_status_of_a_command_is_the_programs(run: Run, command: Callable[..., None]) -> None:
    command(lambda: 7)
    assert run("work")[0] == 7


def test_ros_arguments_are_not_the_parsers(run: Run, command: Callable[..., None]) -> None:
    command(lambda: 0)
    code, _, err = run("work", "--count", "3", "--ros-args", "-r", "__ns:=/left", "-p", "x:=1")
    assert code == 0, err
    seen = sys.modules["robot_rl_test_work"].Work.seen  # type: ignore[attr-defined]
    assert seen.count == 3 and seen.ros_args == ["--ros-args", "-r", "__ns:=/left", "-p", "x:=1"]


def test_ros_arguments_of_a_command_that_is_no_node_are_refused(run: Run) -> None:
    code, out, err = run("evaluate", "random:panda-lift", "--ros-args", "-r", "__ns:=/left")
    assert code == 2 and out == "" and "--ros-args" in err


def test_an_unknown_flag_suggests_the_nearest(run: Run, command: Callable[..., None]) -> None:
    command(lambda: 0)
    code, out, err = run("work", "--cuont", "3")
    assert code == 2 and out == "" and "--count" in err


def test_a_reader_that_left_is_no_error() -> None:
    """`robot-rl tasks | head -0`: silence, and no traceback."""
    read, write = os.pipe()
    os.close(read)
    buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    said = subprocess.run([*PROGRAM, "tasks"], stdout=write, stderr=subprocess.PIPE, text=True, env=buffered)
    os.close(write)
    assert said.stderr == "" and said.returncode == 1
