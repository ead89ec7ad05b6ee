"""The operator's console: the live view of a robot, and the seat from which a person moves it, in the browser.

This process passes the person's input on and does nothing else; a `Viewer` draws.
"""

from __future__ import annotations

import math
import signal
import ssl
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from real import clock
from real.bus import Node, make
from real.drivers import open_driver
from real.teleop.commands import QOS
from real.teleop.talk import InstructionPublisher
from real.topics import EVENT_TOPIC, TEXT
from robot_rl.interface.robot import RobotSpec
from robot_rl.util.errors import UserError
from robot_rl.view.gizmo import Gizmo
from robot_rl.view.page import HOST
from robot_rl.view.seat import MESSAGE, Event, Input, Say, Seat, Take
from robot_rl.view.server import ConsoleServer, Refused
from robot_rl.view.session import Session
from robot_rl.view.viewer import FOLLOW, SEAT, Drawn, Viewer

PAUSED = "paused"
"""`Episode.control` of a robot that waits for a lost device."""
RATE = 20.0
"""Rate of news to the pages, Hz."""
OLD = 0.5
"""Age above which a joint state counts as old, s."""


class Console:
    """Page of one robot, with one person who moves it and any number who watch."""

    def __init__(
        self, node: Node, robot: RobotSpec, drawn: Drawn, *, host: str = HOST, port: int = 0,
        tls: ssl.SSLContext | None = None, turns: bool = False, present: bool = False, token: str = "",
    ):  # fmt: skip
        """`turns`: the policy turns the tool, so the gizmo does too; `port` and `tls` as of `ConsoleServer`, `present`
        as of `Seat`."""
        self.robot, self.session = robot, Session(node)
        self.driver = open_driver(node, robot, (), (), dry_run=True)
        gizmo = Gizmo(robot, self.driver.reading, turns) if robot.tool and not robot.base else None
        self.seat = Seat(node, robot.name, gizmo, self._follow, self._paused, present)
        self._running: tuple[int, str] = (-1, "")
        """Number and phase of the episode in which the gizmo was dragged."""
        self._lost = False
        self._voice, self._events = InstructionPublisher(node), node.publisher(TEXT, EVENT_TOPIC, QOS)
        self._shown = 0, False
        """Port of the viewer that shows the gizmo, and whether the gizmo turns."""
        self.viewer = Viewer(drawn, self._on_drag)
        try:
            self.server = ConsoleServer(self.viewer, self, host, port, tls, token)
        except UserError:
            self.viewer.close()
            raise

    def run(self, wait: Callable[[float], Any], seconds: float = 0.0) -> None:
        """Serve until `wait`(time to the next news) returns true, for at most `seconds`; 0: no limit. UserError if the
        viewer ends."""
        ends, ended, self._lost = clock.now() + seconds if seconds else math.inf, 0, True
        while clock.now() < ends and not (ended := wait(1 / RATE)):
            if not self.viewer.process.is_alive():
                raise UserError("the view of the console has ended, for the reason that it gave above")
            self.server.call(self._update)
        self._lost = ended == signal.SIGHUP

    def close(self) -> None:
        """Leave the seat, and close server and viewer; the caller closes the node. After an error, or if the terminal
        was closed, nothing is handed back: the robot holds."""
        self.server.call(lambda: self.seat.close(self._lost))
        self.server.close()
        self.viewer.close()

    # ---- pages, in the server's thread -------------------------------------------------------------------------
    def closed(self, page: str) -> None:
        """Take the seat from a page that is gone."""
        self.seat.leave(page, lost=True)

    def received(self, page: str, text: str) -> str:
        """Do what a page asks; return why not, empty if it is done."""
        try:
            message = MESSAGE.validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise Refused(f"a message that no console sends ({where}: {first['msg']})") from None
        if isinstance(message, Input):
            self.seat.receive(page, message)
        elif isinstance(message, Take):
            return self._take(page, message.take)
        elif isinstance(message, Event) and message.word == "terminate":
            self._events.publish(make(TEXT, data=message.word))
            return "" if self._events.matched else "NOT STOPPED: no session listens; press the robot's own stop"
        elif page != self.seat.holder:
            return "take the controls first"
        elif isinstance(message, Say):
            return self._say(message.text)
        else:
            self._events.publish(make(TEXT, data=message.word))
        return ""

    def _take(self, page: str, take: bool) -> str:
        refusal = ""
        if take:
            refusal = self.seat.take(page)
        else:
            self.seat.leave(page)
        self._seat_gizmo()
        return refusal

    def _say(self, text: str) -> str:
        if not self._voice.subscribed:
            return "no policy listens to instructions"
        try:
            self._voice.say(text)
        except UserError as error:
            return str(error)
        return ""

    # ---- gizmo -------------------------------------------------------------------------------------------------
    def _seat_gizmo(self) -> None:
        """Let the viewer show the gizmo to the page in the seat, once that has a viewer."""
        gizmo, holder = self.seat.gizmo, self.seat.holder
        shown = (self.server.scene_of(holder) if holder else 0, bool(gizmo and gizmo.turns))
        if gizmo and shown != self._shown:
            self._shown = shown
            self.viewer.send(SEAT, *shown)

    def _follow(self) -> None:
        self.viewer.send(FOLLOW)

    def _on_drag(self, phase: str, position: Any, wxyz: Any) -> None:
        self.server.call(lambda: self.seat.drag(phase, position, wxyz))

    def _paused(self) -> bool:
        return self.session.episode.control == PAUSED

    # ---- news --------------------------------------------------------------------------------------------------
    def _update(self) -> None:
        """Send news, and let go of the gizmo in another phase or episode: its goal was meant for that one."""
        episode = self.session.episode
        if (episode.number, episode.phase) != self._running:
            self._running = episode.number, episode.phase
            self.seat.drop()
        self._seat_gizmo()
        self.server.post(self._news() | {"count": self.seat.number_news(), "latched": self.seat.latched})

    def _news(self) -> dict[str, Any]:
        session, reading = self.session, self.driver.reading()
        episode, age = session.episode, math.inf if reading is None else clock.now() - reading.received
        return {
            "robot": self.robot.name, "legged": self.robot.base is not None, "holder": self.seat.holder,
            "phase": episode.phase, "number": episode.number, "control": episode.control, "alive": age < OLD,
            "instruction": episode.instruction, "won": episode.won, "episodes": episode.ended,
            "warning": session.guard.damping or session.guard.warning or session.message,
        }  # fmt: skip
