"""Black box of a robot: the messages of the last half minute, written as a bag when the robot stops."""

from __future__ import annotations

import shutil
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from real.bus import Publisher, Subscription
from real.bus.messages import store

if TYPE_CHECKING:
    from real.episode.stream import Event

SECONDS = 30.0
"""Time that is kept, s."""
AFTER = 1.0
"""Time after a stop that is still written, s."""
LARGEST = 65536
"""Largest message that is kept, bytes: no pictures."""


class BlackBox:
    """Ring of messages, sent and received, of a robot's topics, written as rosbag2 bags in MCAP."""

    def __init__(self, folder: Path, wires: Iterable[Publisher | Subscription]):
        """Args: `folder`: run folder; bags go to its folder black_box."""
        self.folder = folder / "black_box"
        self._rows: deque[tuple[int, str, str, bytes]] = deque()
        """Wall time, ns, topic, type and CDR bytes of each message, the newest last."""
        self._lock = threading.Lock()
        self._timers: list[threading.Timer] = []
        self._wires = list(wires)
        for each in self._wires:
            each.taps.append(self._keep)

    def _keep(self, topic: str, type_name: str, raw: bytes | memoryview) -> None:
        if len(raw) > LARGEST:
            return
        now = time.time_ns()
        with self._lock:
            self._rows.append((now, topic, type_name, bytes(raw)))
            while now - self._rows[0][0] > 1e9 * SECONDS:
                self._rows.popleft()

    def on_event(self, event: Event) -> None:
        """Write a bag soon after a stop, in a thread of its own."""
        if event.name == "stop":
            timer = threading.Timer(AFTER, self.write, [f"stop-{len(self._timers)}"])
            timer.daemon = True
            self._timers.append(timer)
            timer.start()

    def write(self, name: str) -> Path:
        """Write the messages as a bag; return its folder, which appears as a whole."""
        from rosbags.rosbag2 import StoragePlugin, Writer

        with self._lock:
            rows = list(self._rows)
        self.folder.mkdir(parents=True, exist_ok=True)
        part, target = self.folder / f".{name}", self.folder / name
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        with Writer(part / name, version=9, storage_plugin=StoragePlugin.MCAP) as bag:
            kinds = {(topic, type_name) for _, topic, type_name, _ in rows}
            wires = {kind: bag.add_connection(*kind, typestore=store()) for kind in sorted(kinds)}
            for stamp, topic, type_name, raw in rows:
                bag.write(wires[topic, type_name], stamp, raw)
        shutil.rmtree(target, ignore_errors=True)
        (part / name).rename(target)
        part.rmdir()
        return target

    def close(self) -> None:
        """Keep no more messages; finish the bags of stops so far."""
        for each in self._wires:
            if self._keep in each.taps:
                each.taps.remove(self._keep)
        for number, timer in enumerate(self._timers):
            waiting = timer.is_alive() and not timer.finished.is_set()
            timer.cancel()
            timer.join()
            if waiting and not (self.folder / f"stop-{number}").exists():
                self.write(f"stop-{number}")
