"""A whole session as a rosbag2 bag in MCAP: every message of the robot's topics, what each control period wanted and
did, did, and every event."""

from __future__ import annotations

import logging
import queue
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from real import clock
from real.bus import Publisher, Subscription, encode, make
from real.bus.messages import store
from real.recording.black_box import LARGEST
from real.topics import TEXT
from robot_rl.interface.shield import REASONS
from robot_rl.util import strict_json

if TYPE_CHECKING:
    from real.episode.env import RobotEnv
    from real.episode.stream import Event, StepRecord

logger = logging.getLogger(__name__)
WAITING = 20_000
"""Number of messages that may wait for the disk."""
STEPS, EVENTS = "/robot_rl/step", "/robot_rl/event"
"""Topics, in the bag only, of control periods and events, as JSON in std_msgs/String."""
Row = tuple[int, str, str, bytes]
"""Time, ns, by the wall or in lockstep by the simulation, topic, type and CDR bytes of a message."""


class SessionBag:
    """Recorder of a session. A thread of its own writes, so the robot waits for no disk; what the disk is too slow for
    is dropped and counted."""

    def __init__(self, folder: Path, env: RobotEnv):
        """`folder`: run folder. The bag is its folder bag, or in a resumed session bag-1 and so on; its name ends with
        .part until it is complete."""
        names = ("bag", *(f"bag-{k}" for k in range(1, 1000)))
        free = (folder / name for name in names if not any((folder / f"{name}{end}").exists() for end in ("", ".part")))
        self.folder = next(free)
        self.dropped, self.error = 0, ""
        """Number of lost messages; why the recording ended early, empty if it did not."""
        self._rows: queue.Queue[Row | None] = queue.Queue(WAITING)
        self._wires: list[Publisher | Subscription] = list(env.wires)
        for each in self._wires:
            each.taps.append(self.keep)
        env.stream.on_step(self._step)
        env.stream.on_event(self._event)
        self._thread = threading.Thread(target=self._write, name="bag", daemon=True)
        self._thread.start()

    def keep(self, topic: str, type_name: str, raw: bytes | memoryview) -> None:
        """Queue a message, unless it is as large as a picture. Thread-safe; never waits."""
        if len(raw) > LARGEST or self.error:
            return
        stamp = round(1e9 * clock.now()) if clock.in_lockstep() else time.time_ns()
        try:
            self._rows.put_nowait((stamp, topic, type_name, bytes(raw)))
        except queue.Full:
            self.dropped += 1

    def _tell(self, topic: str, content: dict[str, Any]) -> None:
        self.keep(topic, TEXT, encode(make(TEXT, data=strict_json.dumps(content)), TEXT))

    def _step(self, step: StepRecord) -> None:
        wanted, executed = step.policy_action[0].tolist(), step.executed[0].tolist()
        self._tell(STEPS, {
            "step": step.steps, "acted": "person" if step.intervention else "policy", "takeover": step.takeover,
            "policy": wanted, "person": executed if step.intervention else None, "executed": executed,
            "shield": [reason for k, reason in enumerate(REASONS) if step.shield >> k & 1],
            "success": step.success, "done": step.done, "marked": step.marked, "discarded": step.discarded,
            "instruction": step.instruction, "state_age": step.state_age,
        })  # fmt: skip

    def _event(self, event: Event) -> None:
        self._tell(EVENTS, {"event": event.name, "what": event.what})

    def _write(self) -> None:
        """Write rows until None arrives; an error ends the recording, not the session."""
        from rosbags.rosbag2 import StoragePlugin, Writer

        part = self.folder.with_name(f"{self.folder.name}.part")
        wires: dict[tuple[str, str], Any] = {}
        try:
            part.mkdir()
            made = part / self.folder.name  # the name of the file, too
            with Writer(made, version=9, storage_plugin=StoragePlugin.MCAP) as bag:
                while row := self._rows.get():
                    stamp, *kind, raw = row
                    key = (kind[0], kind[1])
                    if key not in wires:
                        wires[key] = bag.add_connection(*key, typestore=store())
                    bag.write(wires[key], stamp, raw)
            made.rename(self.folder)
            part.rmdir()
        except Exception as error:  # such as a full disk
            self.error = str(error) or repr(error)
            logger.warning("the bag %s ended early: %s; the robot goes on", part, self.error)

    def close(self) -> None:
        """Keep no more messages, and complete the bag. Idempotent."""
        for each in self._wires:
            if self.keep in each.taps:
                each.taps.remove(self.keep)
        while self._thread.is_alive():
            try:
                self._rows.put(None, timeout=0.1)
                break
            except queue.Full:
                continue
        self._thread.join()
        if self.dropped:
            logger.warning("the bag %s lacks %d messages: the disk was too slow", self.folder, self.dropped)
