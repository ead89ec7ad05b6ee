"""Child process of the launcher: its output line by line, its signals, and its end when the launcher ends."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from real.launching.node import NodeProcess

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_ESCALATION = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
_libc = ctypes.CDLL(None, use_errno=True)  # at import: loading between fork and exec is not safe
_DAMPING = 1.0  # s for a guard to damp the robot when the launcher fails

Wait = Callable[[signal.Signals], float]


def die_with(parent: int, number: signal.Signals) -> Callable[[], None]:
    """Return a preexec function that makes the kernel send the child the signal `number` when the thread that started
    the child ends, even if SIGKILL ends it."""

    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # the parent died before the call above
            os._exit(1)

    return prepare


class Child:
    """Process of a node. It has its own process group, so that the runner forwards Ctrl-C in stopping order. An
    interactive node stays in the terminal's foreground group, since no other group can read the keyboard."""

    def __init__(
        self, node: NodeProcess, command: Sequence[str], environment: Mapping[str, str],
        sink: Callable[[str, str], None],
    ):  # fmt: skip
        self.node = node
        self.sent: signal.Signals | None = None
        """Last signal that `escalate` or `sweep` sent."""
        self.deadline = 0.0
        """Time of the next signal, monotonic s."""
        self.ended = False
        """The process's output is closed."""
        self.exited = False
        """The process has exited; set by `just_exited`."""
        self._sink = sink
        self._line = b""
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=None if node.interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=None if node.interactive else 0,
            # Motors keep a killed guard's last command: at SIGTERM it damps the robot first.
            preexec_fn=die_with(os.getpid(), signal.SIGTERM if node.guards_robot else signal.SIGKILL),
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        self.output = self._process.stdout
        os.set_blocking(self.output.fileno(), False)

    @property
    def code(self) -> int:
        """Return the exit status, -n for signal n; the process must have exited."""
        assert self._process.returncode is not None
        return self._process.returncode

    def read(self) -> bool:
        """Pass the process's complete lines to the sink; return False if there was nothing to read."""
        try:
            data = os.read(self.output.fileno(), 65536)
        except BlockingIOError:
            return False
        self.ended = not data
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            self._emit(line)
        return bool(data)

    def just_exited(self) -> bool:
        """Return True at the first call after the process's exit, and pass on its remaining output; else False."""
        if self.exited or self._process.poll() is None:
            return False
        self.exited = True
        while self.read():
            pass
        return True

    def resumed(self) -> bool:
        """Return whether the process was suspended (SIGSTOP) and has continued since the last call."""
        if self.exited:
            return False
        try:
            return os.waitid(os.P_PID, self.pid, os.WCONTINUED | os.WNOHANG) is not None
        except ChildProcessError:
            return False

    def gone(self) -> bool:
        """Return whether the process and its group have ended."""
        return self.exited and (self.sent is signal.SIGKILL or not self._group_alive())

    def escalate(self, wait: Wait) -> signal.Signals | None:
        """Send the next of SIGINT, SIGTERM and SIGKILL and return it; None after SIGKILL. SIGINT and SIGTERM go to the
        process, which stops its own children; SIGKILL goes to its group."""
        position = -1 if self.sent is None else _ESCALATION.index(self.sent)
        if position + 1 == len(_ESCALATION):
            return None
        self.sent = _ESCALATION[position + 1]
        self.deadline = time.monotonic() + wait(self.sent)
        if self.sent is signal.SIGKILL:
            self.kill()
        elif self.exited:
            self._signal_group(self.sent)
        else:
            self._process.send_signal(self.sent)
        return self.sent

    def sweep(self, wait: Wait) -> None:
        """Send SIGTERM to the processes that are left in the child's group."""
        if self._group_alive():
            self.sent = signal.SIGTERM
            self.deadline = time.monotonic() + wait(self.sent)
            self._signal_group(self.sent)

    def kill(self) -> None:
        """Kill the process and its group, and wait for the process's end. A guard gets time to damp the robot first."""
        if self.node.guards_robot and self.sent is not signal.SIGKILL:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_DAMPING)
        self._signal_group(signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        if self._line:
            self._emit(self._line)
            self._line = b""
        self.output.close()

    def _group_alive(self) -> bool:
        if self.node.interactive:
            return False
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _signal_group(self, number: signal.Signals) -> None:
        if not self.node.interactive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _emit(self, line: bytes) -> None:
        # Of a progress bar, which returns the carriage for each update, pass the last update.
        self._sink(self.node.name, line.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode(errors="replace"))
