"""Process runner of the launcher, with real processes. Tests wait for output and closed pipes."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from real.launching.node import LaunchError, NodeProcess
from real.launching.processes import Grace, ProcessRunner, in_starting_order

# Program of all nodes; its first argument is its behaviour.
CHILD = """
import os, signal, subprocess, sys, time
character, *rest = sys.argv[1:]

def say(number, frame):
    print("got", signal.Signals(number).name)
    if character == "polite":
        sys.exit(0)
    if character == "writer":
        time.sleep(float(rest[0]))
        print("wrote")
        sys.exit(130)

signal.signal(signal.SIGINT, say)
signal.signal(signal.SIGTERM, say)
if character == "type":
    print("typed", input())
if character == "exit":
    sys.exit(int(rest[0]))
if character == "die":
    os.kill(os.getpid(), int(rest[0]))
if character == "echo":
    print(rest, os.environ.get("ROS_DOMAIN_ID"))
    sys.exit()
if character == "once":  # fails the first time
    first = not os.path.exists(rest[0])
    open(rest[0], "a").close()
    sys.exit(int(rest[1]) if first else 0)
if character == "draw":
    os.write(1, b"10%\\r50%\\r100%\\r\\nno newline at the end")
    sys.exit()
if character == "parent":  # leaves a child that ignores SIGINT and SIGTERM
    code = "import signal, sys; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)];"
    code += "held = open(sys.argv[1], 'w'); print('orphan', flush=True); signal.pause()"
    orphan = subprocess.Popen([sys.executable, "-c", code, rest[0]], stdout=subprocess.PIPE)
    orphan.stdout.readline()
    sys.exit()
if rest and character != "writer":
    held = open(rest[0], "w", buffering=1)  # closes when this process ends
if character == "testament":
    signal.signal(signal.SIGTERM, lambda number, frame: (held.write("damped"), sys.exit()))
print("ready")
while True:
    time.sleep(0.1)  # a signal may come before signal.pause()
"""
EXECUTABLE = (sys.executable, "-I", "-S", "-u", "-c", CHILD)
PATIENT = Grace(60.0, 60.0)


class Log:
    """Sink that keeps lines and runs the action of a line."""

    def __init__(self, **actions: Callable[[], None]):
        self.lines: list[str] = []
        self.actions = {name.replace("_", " "): action for name, action in actions.items()}

    def __call__(self, name: str, line: str) -> None:
        self.lines.append(f"{name}: {line}")
        if line in self.actions:
            self.actions[line]()

    def of(self, name: str) -> list[str]:
        return [line.removeprefix(f"{name}: ") for line in self.lines if line.startswith(name)]

    def index(self, start: str) -> int:
        return next(place for place, line in enumerate(self.lines) if line.startswith(start))


def node(name: str, *command: str, **options) -> NodeProcess:
    return NodeProcess(name, command, **options)


def run(log: Log, *nodes: NodeProcess, grace: Grace = PATIENT, **options) -> int:
    return ProcessRunner(nodes, EXECUTABLE, log, grace=grace, **options).run()


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def when(count: int, action: Callable[[], None]) -> Callable[[], None]:
    """Return a function that acts at its count-th call."""
    calls = []

    def called() -> None:
        calls.append(None)
        if len(calls) == count:
            action()

    return called


def test_ctrl_c_stops_commanding_nodes_then_the_guard_then_the_others() -> None:
    log = Log(ready=when(4, interrupt))
    nodes = [
        node("twin", "polite"),
        node("guard", "polite", start_after="twin", guards_robot=True, required=True),
        node("deploy", "polite", start_after="guard", commands_robot=True, required=True),
        node("teleop", "polite", start_after="twin"),
    ]
    assert run(log, *nodes) == 0  # the required node's own status
    started = [log.index(f"launch: {name} started") for name in ("twin", "guard", "deploy", "teleop")]
    assert started == sorted(started)
    assert log.lines.count("deploy: got SIGINT") == 1, "from the launcher, not from the terminal"
    assert log.index("launch: deploy exited") < log.index("guard: got SIGINT")
    assert log.index("launch: guard exited") < min(log.index(f"{name}: got SIGINT") for name in ("twin", "teleop"))


def test_status_of_a_signal() -> None:
    assert run(Log(ready=interrupt), node("twin", "polite")) == 128 + signal.SIGINT


def test_stubborn_node_is_terminated_then_killed() -> None:
    log = Log(ready=interrupt)
    code = run(log, node("deploy", "stubborn", required=True), grace=Grace(0.3, 0.3))
    assert code == 128 + signal.SIGKILL and log.of("deploy") == ["ready", "got SIGINT", "got SIGTERM"]
    assert log.lines[-1] == "launch: deploy was killed by SIGKILL"


def test_node_gets_its_time_for_writing() -> None:
    log = Log(ready=when(2, interrupt))
    nodes = node("finetune", "writer", "0.8", required=True, commands_robot=True, writes=60.0), node("twin", "stubborn")
    assert run(log, *nodes, grace=Grace(0.2, 0.2)) == 130
    assert log.of("finetune") == ["ready", "got SIGINT", "wrote"]
    assert log.index("finetune: wrote") < log.index("twin: got SIGINT") < log.index("twin: got SIGTERM")


def test_second_ctrl_c_skips_the_grace_period() -> None:
    log = Log(ready=interrupt, got_SIGINT=interrupt, got_SIGTERM=interrupt)
    assert run(log, node("deploy", "stubborn", required=True), grace=PATIENT) == 128 + signal.SIGKILL
    assert log.lines.index("deploy: got SIGINT") < log.lines.index("deploy: got SIGTERM")


@pytest.mark.parametrize(("command", "status"), [(("exit", "0"), 0), (("exit", "3"), 3), (("die", "9"), 128 + 9)])
def test_exit_of_a_required_node_stops_the_launch(command: tuple[str, ...], status: int) -> None:
    log = Log()
    assert run(log, node("twin", "polite"), node("deploy", *command, required=True)) == status
    assert any(line.startswith(("launch: twin exited", "launch: twin was killed")) for line in log.lines)


def test_failure_of_another_node_is_only_reported() -> None:
    both = when(2, interrupt)
    log = Log(ready=both, teleop_exited_with_code_3=both)
    assert run(log, node("teleop", "exit", "3"), node("deploy", "polite", required=True)) == 0
    assert log.index("launch: teleop exited with code 3") < log.index("launch: SIGINT: stopping")
    assert run(Log(), node("a", "exit", "0"), node("b", "exit", "3")) == 3


@pytest.mark.parametrize(("code", "starts"), [("1", 2), ("2", 1)])
def test_respawn_after_failures_except_bad_input(tmp_path: Path, code: str, starts: int) -> None:
    log = Log()
    run(log, node("teleop", "once", str(tmp_path / "tried"), code, respawn=True), respawn_delay=0.0)
    assert sum("started" in line for line in log.lines) == starts


def test_ros_arguments_and_environment_are_passed_on() -> None:
    log = Log()
    options = {"namespace": "/left", "log_level": "debug"}
    run(log, node("twin", "echo", "--seed", "1", environment={"ROS_DOMAIN_ID": "7"}, **options))
    expected = ["--seed", "1", "--ros-args", "-r", "__ns:=/left", "--log-level", "debug"]
    assert f"twin: {expected} 7" in log.lines


def test_output_without_final_newline_and_with_carriage_returns() -> None:
    log = Log()
    run(log, node("draw", "draw"))
    assert log.of("draw") == ["100%", "no newline at the end"]


def test_broken_output_pipe_stops_the_nodes() -> None:
    def broken(name: str, line: str) -> None:
        if line == "ready":
            raise BrokenPipeError

    assert ProcessRunner([node("twin", "polite")], EXECUTABLE, broken, grace=PATIENT).run() == 128 + signal.SIGHUP


def test_orphans_of_a_node_are_killed(tmp_path: Path) -> None:
    read_end = _fifo(tmp_path / "alive")
    command = ("parent", str(tmp_path / "alive"))
    assert run(Log(), node("finetune", *command, required=True), grace=Grace(0.1, 0.1)) == 0
    assert _closed(read_end)


def test_missing_program() -> None:
    log = Log()
    runner = ProcessRunner([node("a", "polite"), node("b", "polite")], ["/nonexistent/program"], log)
    assert runner.run() == 127 and len(log.lines) == 1 and "cannot start a" in log.lines[0]


def test_nodes_end_with_a_killed_launcher(tmp_path: Path) -> None:
    read_end = _fifo(tmp_path / "alive")
    with _launcher(f"*(NodeProcess(n, ('stubborn', {str(tmp_path / 'alive')!r})) for n in 'ab')") as launcher:
        ready = 0
        while ready < 2:
            ready += launcher.stdout.readline().endswith(": ready\n")
    assert _closed(read_end)


def test_guard_damps_before_it_ends_with_a_killed_launcher(tmp_path: Path) -> None:
    read_end = _fifo(tmp_path / "alive")
    node = f"NodeProcess('guard', ('testament', {str(tmp_path / 'alive')!r}), guards_robot=True)"
    with _launcher(node) as launcher:
        while not launcher.stdout.readline().endswith(": ready\n"):
            pass
    os.set_blocking(read_end, True)
    assert os.read(read_end, 100) == b"damped"
    assert _closed(read_end)


def test_guard_damps_before_it_ends_with_a_failed_launcher(tmp_path: Path) -> None:
    def fail(name: str, line: str) -> None:
        if line == "ready":
            raise ZeroDivisionError

    read_end = _fifo(tmp_path / "alive")
    guard = node("guard", "testament", str(tmp_path / "alive"), guards_robot=True)
    with pytest.raises(ZeroDivisionError):
        ProcessRunner([guard], EXECUTABLE, fail, grace=PATIENT).run()
    assert os.read(read_end, 100) == b"damped" and _closed(read_end)


def _script(nodes: str) -> str:
    """Return a program that runs nodes and prints their lines after their names."""
    return (
        "from real.launching.node import NodeProcess; from real.launching.processes import ProcessRunner\n"
        "def sink(name, line): print(name, line, sep=': ', flush=True)\n"
        f"ProcessRunner([{nodes}], {EXECUTABLE!r}, sink).run()"
    )


@contextlib.contextmanager
def _launcher(nodes: str) -> Iterator[subprocess.Popen[str]]:
    """Run nodes in a launcher process, which is killed at the end."""
    launcher = subprocess.Popen([sys.executable, "-c", _script(nodes)], stdout=subprocess.PIPE, text=True)
    try:
        yield launcher
    finally:
        launcher.kill()
        launcher.wait()
        launcher.stdout.close()


def test_interactive_node_reads_the_terminal_and_ctrl_c_stops_all() -> None:
    nodes = "NodeProcess('teleop', ('type',), interactive=True), NodeProcess('deploy', ('polite',))"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", _script(nodes)])
    try:
        _read_until(terminal, "deploy: ready")
        os.write(terminal, b"hello\n")
        _read_until(terminal, "teleop: typed hello")
        os.write(terminal, b"\x03")
        assert "deploy: got SIGINT" in _read_until(terminal, "launch: deploy exited with code 0")
    finally:
        os.kill(pid, signal.SIGKILL)  # teleop ignores SIGINT
        os.waitpid(pid, 0)
        os.close(terminal)


def _read_until(terminal: int, text: str) -> str:
    seen = ""
    while text not in seen:
        seen += os.read(terminal, 4096).decode()
    return seen


def test_starting_order_and_conditions() -> None:
    nodes = [node("c", start_after="b"), node("b", start_after="a"), node("a", start_after="left out")]
    assert [n.name for n in in_starting_order([*nodes, node("left out", condition=False)])] == ["a", "b", "c"]
    with pytest.raises(LaunchError, match="circular: a, b"):
        in_starting_order([node("a", start_after="b"), node("b", start_after="a")])


def _fifo(path: Path) -> int:
    os.mkfifo(path)
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)


def _closed(read_end: int) -> bool:
    """Wait until all writers of the pipe have ended, limited by the test's timeout."""
    os.set_blocking(read_end, True)
    try:
        return os.read(read_end, 1) == b""
    finally:
        os.close(read_end)
