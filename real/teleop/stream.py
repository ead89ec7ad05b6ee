"""The loop that publishes any device's readings until it ends or a signal comes."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Protocol

from real.bus import Node
from real.teleop.commands import QOS, RELEASED, TYPE, Operator, joy_topic, to_joy
from robot_rl.util.errors import UserError

_CHECK = 1.0  # s between checks of the topic's other nodes


class Finished(Exception):  # noqa: N818 - no error: the operator is done
    """A device's `read` raises this when the operator quits."""


class Device(Protocol):
    """A source of operator input."""

    def read(self) -> Operator:
        """Return the current input without waiting; `Finished` or `UserError` ends the stream."""

    def close(self) -> None:
        """Restore the device. Idempotent."""


def stream(
    node: Node,
    device: Device,
    robot: str,
    rate: float,
    wait: Callable[[float], int],
    say: Callable[[str], None] = lambda _text: None,
) -> None:
    """Publish the device's readings for the robot with this name at ``rate`` Hz, and a released one at the end, unless
    the device is lost during a correction (unplugged, its terminal closed): then the operator has not handed back.

    ``wait`` sleeps for the given seconds and returns the signal that ends the stream, see `until_signal`; ``say`` shows
    messages to the operator. Raises the device's `UserError`.
    """
    publisher = node.publisher(TYPE, joy_topic(robot), QOS)
    company = _Peers(publisher.topic, say)
    held = lost = False
    due = looked = time.monotonic()
    try:
        while True:
            operator = device.read()
            publisher.publish(to_joy(operator))
            if operator.held != held:
                held = operator.held
                say("control: you" if held else "control: released")
            now = time.monotonic()
            if now >= looked:
                looked = now + _CHECK
                company.look(publisher.matched, publisher.other_writers())
            due = max(due + 1.0 / rate, now)  # no burst to catch up after a late tick
            if ended := wait(due - now):
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
            last = device.read()  # may hold a stop
        last = replace(last, held=False, motion=(0.0, 0.0, 0.0), rotation=(0.0, 0.0, 0.0), gripper=0.0)
        if last.stop or not (held and lost):
            publisher.publish(to_joy(last))
        publisher.close()


class _Peers:
    """Report changes on the topic once: no subscriber, or a second publisher."""

    def __init__(self, topic: str, say: Callable[[str], None]):
        self._topic, self._say = topic, say
        self._said: tuple[bool, tuple[str, ...]] | None = None

    def look(self, listeners: int, others: list[str]) -> None:
        found = (listeners > 0, tuple(others))
        if found == self._said:
            return
        if self._said is None or found[0] != self._said[0]:
            self._say(f"a robot subscribes to {self._topic}" if listeners else f"no subscriber on {self._topic}")
        if others:
            names = ", ".join(others)
            self._say(f"warning: {names} publishes on {self._topic} too; stop one, or the robot obeys both")
        self._said = found


@contextmanager
def until_signal() -> Iterator[Callable[[float], int]]:
    """Turn SIGINT, SIGTERM, SIGQUIT and SIGHUP into the result of a sleep; only in the main thread::

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
