"""Run a launch description without ROS 2: start nodes, pass their output on, stop them in order.

Stopping order: nodes that command the robot, then its guard, then all others; of each kind, the last started first.
A node gets SIGINT, after 5 s (plus its time for writing) SIGTERM, after 5 s more SIGKILL. A second Ctrl-C sends the
next signal at once.

    code = ProcessRunner(describe("twin", {}), [sys.executable, "-m", "robot_rl.cli.main"], sink).run()
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from real.launching.child import Child
from real.launching.node import LaunchError, NodeProcess

RESPAWN_DELAY = 2.0  # s
_POLL = 0.1  # s between checks for processes that died while others hold their output open
_BAD_INPUT = 2  # exit status for wrong arguments, after which a restart cannot help

Sink = Callable[[str, str], None]


@dataclass(frozen=True)
class Grace:
    """Time that a process gets to stop, s."""

    interrupt: float = 5.0
    """Time from SIGINT to SIGTERM, s."""
    terminate: float = 5.0
    """Time from SIGTERM to SIGKILL, s."""

    def after(self, sent: signal.Signals) -> float:
        return {signal.SIGINT: self.interrupt, signal.SIGTERM: self.terminate}.get(sent, 0.0)

    def of(self, node: NodeProcess) -> Grace:
        """Return the times for a node, which include the node's time for writing results."""
        return replace(self, interrupt=self.interrupt + node.writes)


class ProcessRunner:
    """Start nodes in the main thread, which receives the signals, and wait for the nodes' end. If the main thread ends,
    the nodes end too."""

    def __init__(
        self, nodes: Sequence[NodeProcess], executable: Sequence[str], sink: Sink,
        environment: Mapping[str, str] | None = None, grace: Grace | None = None, respawn_delay: float = RESPAWN_DELAY,
    ):  # fmt: skip
        self._nodes = in_starting_order(nodes)
        self._executable = tuple(executable)
        self._sink = sink
        self._environment = dict(os.environ if environment is None else environment)
        self._grace = grace or Grace()
        self._respawn_delay = respawn_delay
        self._selector = selectors.DefaultSelector()
        self._children: list[Child] = []  # in starting order
        self._waiting: list[tuple[float, NodeProcess]] = []  # (monotonic s, node) to restart
        self._waves: list[list[Child]] | None = None  # groups of children to stop, in order; None: not stopping
        self._received: list[int] = []
        self.interrupted = 0
        """128 + the signal that stopped the launch, as in a shell; 0: no signal did."""
        self._code: int | None = None
        self._failure = 0

    def run(self) -> int:
        """Run until a required node exits, all nodes have exited, or a signal arrives; return the exit status.

        The status is that of the first required node to exit (128 + n for signal n). Otherwise it is 128 + n if signal
        n stopped the launch, else that of the first failed node, else 0.
        """
        with _wakeup(self._selector, self._received), _terminal_restored():
            try:
                for node in self._nodes:
                    if self._waves is None:
                        self._start(node)
                while self._children or self._waiting:
                    self._step()
            finally:
                for child in sorted(self._children, key=lambda child: child.node.guards_robot):  # guard last
                    child.kill()
        return self._code if self._code is not None else self.interrupted or self._failure

    def _start(self, node: NodeProcess) -> None:
        command = [*self._executable, *node.command, *node.ros_arguments()]
        environment = {**self._environment, "PYTHONUNBUFFERED": "1", **node.environment}
        try:
            child = Child(node, command, environment, self._pass_on)
        except OSError as error:
            self._say(f"cannot start {node.name}: {error}")
            self._code = 127
            self._stop()
            return
        self._children.append(child)
        self._selector.register(child.output, selectors.EVENT_READ, child)
        self._say(f"{node.name} started, process {child.pid}")

    def _step(self) -> None:
        for key, _ in self._selector.select(_POLL):
            if isinstance(key.data, Child):
                key.data.read()
                if key.data.ended:
                    self._selector.unregister(key.fileobj)
            else:
                os.read(key.fd, 4096)
        while self._received:
            self._on_signal(signal.Signals(self._received.pop(0)))
        for child in list(self._children):
            self._check(child)
        now = time.monotonic()
        for due in [entry for entry in self._waiting if entry[0] <= now]:
            self._waiting.remove(due)
            self._start(due[1])
        if self._waves is not None:
            self._continue_stopping(now)

    def _on_signal(self, received: signal.Signals) -> None:
        if self._waves is None:
            self.interrupted = 128 + received
            self._say(f"{received.name}: stopping")
            self._stop()
        else:
            self._say(f"{received.name} again: stopping harder")
            self._waves = [list(self._children)]
            for child in self._children:
                child.escalate(self._grace.of(child.node).after)

    def _check(self, child: Child) -> None:
        if child.just_exited():
            code = child.code
            self._say(f"{child.node.name} {_outcome(code)}")
            status = code if code >= 0 else 128 - code
            self._failure = self._failure or (status if self._waves is None else 0)
            if child.node.required and self._code is None:
                self._code = status
                self._stop()
            elif child.node.respawn and code not in (0, _BAD_INPUT) and self._waves is None:
                self._waiting.append((time.monotonic() + self._respawn_delay, child.node))
            child.sweep(self._grace.after)
        elif child.resumed():
            self._say(f"{child.node.name} was suspended and continues")
        elif child.exited and time.monotonic() >= child.deadline:
            child.escalate(self._grace.of(child.node).after)
        if child.gone():
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(child.output)
            child.close()
            self._children.remove(child)

    def _stop(self) -> None:
        self._waiting.clear()
        if self._waves is None:
            last_first = self._children[::-1]
            self._waves = [
                [child for child in last_first if child.node.commands_robot],
                [child for child in last_first if child.node.guards_robot],
                [child for child in last_first if not (child.node.commands_robot or child.node.guards_robot)],
            ]

    def _continue_stopping(self, now: float) -> None:
        waves = [[child for child in wave if child in self._children] for wave in self._waves or []]
        self._waves = [wave for wave in waves if wave]
        for child in self._waves[0] if self._waves else []:
            if child.sent is None or now >= child.deadline:
                sent = child.escalate(self._grace.of(child.node).after)
                if sent is not None and sent is not signal.SIGINT:
                    self._say(f"{child.node.name} did not stop: sent {sent.name}")

    def _say(self, text: str) -> None:
        self._pass_on("launch", text)

    def _pass_on(self, name: str, line: str) -> None:
        try:
            self._sink(name, line)
        except OSError:  # the output's reader has ended, as with `| head`: stop in order
            self._sink = lambda _name, _line: None
            self._received.append(signal.SIGHUP)


def in_starting_order(nodes: Sequence[NodeProcess]) -> list[NodeProcess]:
    """Return the nodes whose condition holds, each after its `start_after` node."""
    remaining = [node for node in nodes if node.condition]
    ordered: list[NodeProcess] = []
    while remaining:
        names = {node.name for node in remaining}
        ready = next((node for node in remaining if node.start_after not in names), None)
        if ready is None:
            raise LaunchError(f"start_after is circular: {', '.join(sorted(names))}; break the circle in one of them")
        remaining.remove(ready)
        ordered.append(ready)
    return ordered


def _outcome(code: int) -> str:
    return f"exited with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"


@contextlib.contextmanager
def _wakeup(selector: selectors.BaseSelector, received: list[int]) -> Iterator[None]:
    """Within the context, append received signals to `received` and wake the selector."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    selector.register(reader, selectors.EVENT_READ)
    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda n, _frame: received.append(n)) for number in handled}
    fd_before = signal.set_wakeup_fd(writer)
    try:
        yield
    finally:
        signal.set_wakeup_fd(fd_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        selector.close()
        os.close(reader)
        os.close(writer)


@contextlib.contextmanager
def _terminal_restored() -> Iterator[None]:
    """Restore the terminal at the end, since a killed keyboard node leaves it without echo."""
    if not (sys.stdin and sys.stdin.isatty()):
        yield
        return
    settings = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, settings)
