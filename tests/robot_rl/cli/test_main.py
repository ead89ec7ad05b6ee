"""The `robot-rl` command: fast help, suggestions for wrong names, one sentence per error, and exit statuses."""

import errno
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import tyro

from robot_rl import __version__
from robot_rl.cli import main as cli
from robot_rl.cli.console import show, show_runs
from robot_rl.interface.rotation import quat_to_matrix
from robot_rl.util.errors import Interrupted, UserError
from sim.tasks import tasks

PROGRAM = [sys.executable, "-m", "robot_rl.cli.main"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], int]], None]:
    """Register a command `work` that calls a function of the test."""

    def install(work: Callable[[], int]) -> None:
        @dataclass
        class Work:
            """Work."""

            count: int = 1
            """Number of repetitions."""
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
def test_help_and_lists_take_under_half_a_second(word: str, names: set[str]) -> None:
    times = []
    for _ in range(3):
        begin = time.monotonic()
        said = subprocess.run([*PROGRAM, word], capture_output=True, text=True, check=True).stdout
        times.append(time.monotonic() - begin)
    assert min(times) < 0.5
    assert names and all(name in said for name in names)


@pytest.mark.parametrize("group", ["", "bench", "dataset"])
@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_lists_all_commands_or_those_of_a_group(run: Run, group: str, word: str) -> None:
    code, out, err = run(*group.split(), word)
    assert code == 0 and err == "" and out.startswith(f"usage: robot-rl {group + ' ' * bool(group)}COMMAND")
    for name, (_, text) in cli.COMMANDS.items():
        assert (name in out and text in out) == (not group or name.startswith(f"{group} "))


def test_usage_and_version(run: Run) -> None:
    code, out, _ = run()
    assert code == 2 and out.startswith("usage: robot-rl COMMAND")
    assert run("--version") == (0, f"robot-rl {__version__}\n", "")


@pytest.mark.parametrize("name", [n for n in cli.COMMANDS if n not in ("tasks", "robots", "recipes", "launch")])
def test_every_command_has_help(run: Run, name: str) -> None:
    code, out, _ = run(*name.split(), "--help")
    assert code == 0 and f"usage: robot-rl {name}" in out


def test_lists_import_no_heavy_packages() -> None:
    code = (
        "import sys; from robot_rl.cli.main import main\n"
        "for words in (['tasks'], ['robots', '--json'], ['recipes']): assert main(words) == 0\n"
        "heavy = {'torch', 'mujoco', 'genesis', 'diffusers', 'gymnasium'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert "panda-lift" in said.stdout and "hil-serl" in said.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="PyTorch uses another OpenMP library on other systems")
@pytest.mark.parametrize(
    ("own", "expected"), [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "passive"}, "None")]
)
def test_idle_threads_spin_briefly_unless_the_user_decides(own: dict[str, str], expected: str) -> None:
    clean = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    code = "import os, robot_rl.cli.main; print(os.environ.get('GOMP_SPINCOUNT'))" + "; import torch" * (not own)
    environment = clean | own | {"OMP_DISPLAY_ENV": "verbose"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
    assert own or "GOMP_SPINCOUNT = '10000'" in done.stderr, "PyTorch's OpenMP library reads the variable"


# ---- names -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("words", "near"), [
    (["trian", "panda-lift"], "train"),
    (["colect"], "collect"),
    (["dataset", "verfy"], "dataset verify"),
    (["dataset"], "did you mean dataset info or dataset stats or dataset verify?"),
    (["bench"], "did you mean bench vla or bench sim or bench gpu?"),
    (["bench", "lop"], "did you mean bench loop"),
    (["tasks", "--jason"], "--json"),
    (["zzzz"], "known: "),
    (["work", "--cuont", "3"], "--count"),
    (["evaluate", "random:panda-lift", "--ros-args", "-r", "__ns:=/left"], "--ros-args"),
])  # fmt: skip
def test_unknown_word_suggests_the_nearest(run: Run, command: Any, words: list[str], near: str) -> None:
    command(lambda: 0)
    code, out, err = run(*words)
    assert code == 2 and out == "" and near in err
    assert words[0] in ("work", "evaluate") or err.startswith("robot-rl: unknown ") and err.count("\n") == 1


# ---- errors ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("error", "code", "said"), [
    (UserError("the bundle is gone; name another"), 1, "the bundle is gone; name another"),
    (OSError(errno.ENOSPC, "No space left on device", "runs/a"), 1, "No space left on device: runs/a; free some"),
    (PermissionError(errno.EACCES, "Permission denied", "runs/a"), 1, "Permission denied: runs/a; check the path"),
    (Interrupted("stopped at step 3"), 130, "stopped at step 3"),
    (Interrupted("stopped at step 3", signal.SIGTERM), 143, "stopped at step 3"),
    (KeyboardInterrupt(), 130, "interrupted; finished work is on disk"),
    (KeyboardInterrupt(signal.SIGTERM), 143, "interrupted; finished work is on disk"),
    (ZeroDivisionError("division by zero"), 1, "ZeroDivisionError: division by zero (in "),
    (ModuleNotFoundError("No module 'a.b'", name="a.b"), 1, "this needs the package a, which is not installed"),
    (ModuleNotFoundError("No module 'sim.b'", name="sim.b"), 1, "ModuleNotFoundError: No module 'sim.b' (in "),
])  # fmt: skip
def test_error_gives_sentence_and_status(run: Run, command: Any, error: BaseException, code: int, said: str) -> None:
    command(failing(error))
    status, out, err = run("work")
    assert status == code and out == ""
    assert err.startswith(f"robot-rl: {said}") and err.count("\n") == 1 and "Traceback" not in err


def test_only_an_error_in_robot_rl_is_called_a_defect(run: Run, command: Any) -> None:
    command(failing(ZeroDivisionError("x")))
    assert "test_main.py, line " in run("work")[2]
    command(lambda: quat_to_matrix(None))  # type: ignore[arg-type]
    assert "(a defect; run again with --debug" in run("work")[2]


@pytest.mark.parametrize("columns", ["0", "1", "nonsense"])
def test_result_is_printed_for_any_terminal_width(columns: str, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    show({"success": 0.75, "steps": 12}, False, "evaluation")
    show_runs([{"run": "a", "steps": 12}], False, "runs", {})
    out = capsys.readouterr().out
    assert "0.75" in out and out.count("12") == 3


@pytest.mark.parametrize("error", [UserError("x"), OSError(28, "full"), ZeroDivisionError("x")])
def test_debug_raises_the_error(run: Run, command: Callable[..., None], error: BaseException) -> None:
    command(failing(error))
    for words in (["--debug", "work"], ["work", "--debug"]):
        with pytest.raises(type(error)):
            run(*words)


def test_command_gets_ros_arguments_and_returns_the_status(run: Run, command: Callable[..., None]) -> None:
    command(lambda: 7)
    code, _, err = run("work", "--count", "3", "--ros-args", "-r", "__ns:=/left", "-p", "x:=1")
    assert code == 7, err
    seen = sys.modules["robot_rl_test_work"].Work.seen  # type: ignore[attr-defined]
    assert seen.count == 3 and seen.ros_args == ["--ros-args", "-r", "__ns:=/left", "-p", "x:=1"]


def test_closed_pipe_gives_no_traceback() -> None:
    """As in `robot-rl tasks | head -0`."""
    read, write = os.pipe()
    os.close(read)
    buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    said = subprocess.run([*PROGRAM, "tasks"], stdout=write, stderr=subprocess.PIPE, text=True, env=buffered)
    os.close(write)
    assert said.stderr == "" and said.returncode == 1
