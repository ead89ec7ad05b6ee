"""Replay of a recorded session in the browser: the live view of its messages, at any speed and from any time."""

import html
import json
import math
import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

from real.bus import Node, Publisher, qos
from real.bus.messages import decode
from real.recording.session_bag import EVENTS, STEPS
from robot_rl.util.errors import UserError, require
from robot_rl.view.live import RATE, LiveView
from robot_rl.view.page import table
from robot_rl.view.simulation import SPEEDS as SIMULATED

NAMESPACE = "/replay"
"""Namespace of the replayed messages: no robot listens there."""
SPEEDS = {name: speed for name, speed in SIMULATED.items() if speed < math.inf}
"""Speed by its name on the page."""
SHOWN = 5
"""Number of events that the page shows."""
Row = tuple[float, str, str, bytes]
"""Time since the bag's first message, s, topic, type and CDR bytes of a message."""


def read(path: Path) -> list[Row]:
    """Return the messages of a rosbag2 folder in the order of their times. UserError if it cannot be read."""
    require("rosbags", use="a rosbag2 folder", extra="real")
    from rosbags.rosbag2 import Reader

    try:
        with Reader(path) as bag:
            found = [(time, each.topic, each.msgtype, bytes(raw)) for each, time, raw in bag.messages()]
    except Exception as error:  # of a damaged file the readers raise whatever they stumble over
        remedy = "name the folder with metadata.yaml, such as RUN/bag or RUN/black_box/stop-0"
        raise UserError(f"{path} cannot be read as a rosbag2 folder ({error}): {remedy}") from error
    if not found:
        raise UserError(f"{path} holds no message")
    found.sort(key=lambda row: row[0])
    return [(1e-9 * (at - found[0][0]), topic, kind, raw) for at, topic, kind, raw in found]


class Replay:
    """Player of a bag for a live view; both have nodes in `NAMESPACE`."""

    def __init__(self, node: Node, view: LiveView, rows: list[Row], speed: float = 1.0):
        if not node.full_name.startswith(f"{NAMESPACE}/"):  # the bag holds commands
            raise ValueError(f"node {node.full_name} is not in {NAMESPACE}: a robot could hear it")
        self.node, self.view, self.rows, self.speed = node, view, rows, speed
        self.times = [row[0] for row in rows]
        self.at = 0.0
        """Time of the replay, s."""
        self.next = 0
        """Index of the next message."""
        self.paused = False
        self._publishers: dict[str, Publisher] = {}
        self._events: list[str] = []
        self._step: dict[str, Any] = {}
        page, gui = view.page, view.page.server.gui
        with page.folder("Replay"):
            self._pause = gui.add_button("Pause")
            names = {value: name for name, value in SPEEDS.items()}
            self._speed = gui.add_dropdown("Speed", tuple(SPEEDS), initial_value=names[speed])
            self._slider = gui.add_slider("Time, s", 0.0, max(0.1, round(self.times[-1], 1)), 0.1, 0.0)
            page.add_text("replay")
        self._pause.on_click(lambda _: self.pause(not self.paused))
        self._speed.on_update(lambda _: setattr(self, "speed", SPEEDS[self._speed.value]))
        self._slider.on_update(lambda event: self.seek(float(self._slider.value)) if event.client else None)

    def pause(self, paused: bool = True) -> None:
        """Pause, or continue if not `paused`."""
        self.paused = paused
        self._pause.label = "Go on" if paused else "Pause"

    def seek(self, at: float) -> None:
        """Go to a time, s, with the newest message of each topic before it."""
        self.at, self.next = at, bisect_right(self.times, at)
        self._events, self._step = [], {}
        newest: dict[str, Row] = {}
        for row in self.rows[: self.next]:
            newest[row[1]] = row
            if row[1] == EVENTS:
                self._send(row)
        for row in newest.values():
            self._send(row)

    def advance(self, seconds: float) -> None:
        """Go on by some seconds of the replay's time, to the end at most."""
        self.at = min(self.at + seconds, self.times[-1])
        end = bisect_right(self.times, self.at)
        for row in self.rows[self.next : end]:
            self._send(row)
        self.next = max(self.next, end)

    def run(self, wait: Callable[[float], Any]) -> None:
        """Play until `wait`(time to the next frame) returns true; at the end, the last moment stays."""
        before = time.monotonic()
        while not wait(max(0.0, before + 1 / RATE - time.monotonic())):
            now = time.monotonic()
            if not self.paused:
                self.advance(self.speed * (now - before))
                self._slider.value = round(self.at, 1)
            before = now
            self.view.show()
            self.view.page.text("replay", self._said())

    def _send(self, row: Row) -> None:
        _, topic, kind, raw = row
        if topic in (EVENTS, STEPS):
            content = json.loads(decode(raw, kind).data)
            if topic == STEPS:
                self._step = content
            else:
                self._events = [*self._events, f"{row[0]:.1f} s  {content['event']}  {content['what']}"][-SHOWN:]
            return
        if topic not in self._publishers:
            self._publishers[topic] = self.node.publisher(kind, topic.lstrip("/"), qos.LATCHED)
        self._publishers[topic].publish(raw)

    def _said(self) -> str:
        """Return the page's text about the moment."""
        step = self._step
        rows = [("time", f"{self.at:.1f} of {self.times[-1]:.1f} s")]
        if step:
            acts = [(who, step.get(who)) for who in ("policy", "person", "executed")]
            rows += [("acts", step["acted"]), ("instruction", step["instruction"] or "none")]
            rows += [(who, ", ".join(f"{v:+.2f}" for v in values)) for who, values in acts if values]
            rows += [("shield", ", ".join(step["shield"]) or "changes nothing")]
        return table(rows) + "<br>".join(map(html.escape, self._events))
