"""Read a teleop device: publish its input until the operator quits or a signal arrives, or use it in this process."""

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Protocol

from real import clock
from real.bus import Node
from real.teleop.commands import QOS, RELEASED, TYPE, Operator, OperatorInput, joy_topic, to_joy
from robot_rl.util.errors import UserError

_CHECK = 1.0  # s between checks of the topic's other nodes


class Finished(Exception):  # noqa: N818 - not an error
    """Raised by a device's `read` when the operator quits."""


class Device(Protocol):
    """Source of operator input."""

    def read(self) -> Operator:
        """Return the current input without waiting. Raise `Finished` or `UserError` to end the stream."""

    def close(self) -> None:
        """Restore the device's state, such as a terminal's mode. Idempotent."""


class DeviceInput(OperatorInput):
    """Reader of operator input from a device in the same process, for simulation."""

    def __init__(self, device: Device):
        super().__init__(None)
        self.device = device

    @property
    def devices(self) -> int:
        """Return 1, as the device is open."""
        return 1

    def read(self, now: float | None = None) -> Operator | None:
        """Read the device; raise `Finished` when the operator quits and `UserError` when the device is lost."""
        now = clock.now() if now is None else now
        self.receive(self.device.read(), now)
        return super().read(now)

    def begin(self) -> None:
        """Begin an episode on the device, if the device has a method `begin`, as the keyboard has."""
        if begin := getattr(self.device, "begin", None):
            begin()

    def close(self) -> None:
        """Close the device."""
        self.device.close()


def stream(
    node: Node, device: Device, robot: str, rate: float, wait: Callable[[float], int],
    say: Callable[[str], None] = lambda _text: None,
) -> None:  # fmt: skip
    """Publish the device's input for a robot at ``rate`` Hz, and released input at the end.

    If the device is lost during a correction (unplugged, terminal closed), no released input follows: the operator has
    not handed control back. ``wait`` sleeps for the given seconds and returns the signal that ends the stream, else 0
    (see `until_signal`). ``say`` shows messages to the operator. Raises the device's `UserError`.
    """
    publisher = node.publisher(TYPE, joy_topic(robot), QOS)
    peers = _Peers(publisher.topic, say)
    held = lost = False
    clock.join()
    due = checked = clock.now()
    try:
        while True:
            operator = device.read()
            publisher.publish(to_joy(operator))
            if operator.held != held:
                held = operator.held
                say("control: you" if held else "control: released")
            now = clock.now()
            if now >= checked:
                checked = now + _CHECK
                peers.check(publisher.matched, publisher.other_writers())
            due = max(due + 1.0 / rate, now)  # no burst after a late tick
            if ended := clock.pause(due - now, wait):
                lost = ended == signal.SIGHUP
                break
    except Finished:
        pass
    except BaseException:
        lost = True
        raise
    finally:
        last = RELEASED
        with suppress(Finished, UserError):
            last = device.read()  # may contain a stop
        last = replace(last, held=False, motion=(0.0, 0.0, 0.0), rotation=(0.0, 0.0, 0.0), gripper=0.0)
        if last.stop or not (held and lost):
            publisher.publish(to_joy(last))
        publisher.close()
        clock.leave()


class _Peers:
    """Reporter to the operator of missing subscribers and other publishers on the topic of operator input."""

    def __init__(self, topic: str, say: Callable[[str], None]):
        self._topic, self._say = topic, say
        self._reported: tuple[bool, tuple[str, ...]] | None = None

    def check(self, subscribers: int, publishers: list[str]) -> None:
        """Report to the operator if subscribers have appeared or vanished, or if the other publishers have changed."""
        state = (subscribers > 0, tuple(publishers))
        if state == self._reported:
            return
        if self._reported is None or state[0] != self._reported[0]:
            self._say(f"a robot subscribes to {self._topic}" if subscribers else f"no subscriber on {self._topic}")
        if publishers:
            names = ", ".join(publishers)
            self._say(f"warning: {names} publishes on {self._topic} too; stop one, or the robot obeys both")
        self._reported = state


@contextmanager
def until_signal() -> Iterator[Callable[[float], int]]:
    """Yield a sleep function that returns SIGINT, SIGTERM, SIGQUIT or SIGHUP instead of raising; main thread only::

    with until_signal() as wait:
        while not wait(0.1): ...
    """
    received: list[int] = []
    handled = [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
        handled.append(signal.SIGHUP)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def wait(seconds: float) -> int:
        if not received and select.select([reader], [], [], max(seconds, 0.0))[0]:
            os.read(reader, 64)
        return received[0] if received else 0

    before = {number: signal.signal(number, lambda n, _frame: received.append(n)) for number in handled}
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield wait
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)
