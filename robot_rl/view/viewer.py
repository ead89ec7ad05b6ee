"""The console's 3-D view, in a process of its own: drawing must not delay what a person's hands do.

::

    console                                   viewer: `LiveView` and viser
        <- (PORT, number)                     viser's port; only announced connections are accepted
        (ALLOW, port) ->                      a connection from this port is about to come
        (SEAT, port, turns) ->                show the gizmo to the browser of that connection; port 0: to nobody
        (FOLLOW,) ->                          the gizmo follows the tool again
        <- (DRAG, phase, position, wxyz)      a person drags the gizmo: start, update or end
        (END,) ->                             end; so does the end of the console's process
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from robot_rl.util.errors import UserError

PORT, ALLOW, SEAT, FOLLOW, DRAG, END = "port", "allow", "seat", "follow", "drag", "end"
SIZE = 0.16
"""Length of the gizmo's axes, m."""
NICE = 10
"""Niceness of the viewer: it must never delay a robot's loop."""
STARTS = 120.0
"""Time in which a viewer must have started, s."""


@dataclass(frozen=True)
class Drawn:
    """Options of a viewer, as of `robot-rl console`."""

    robot: str
    task: str | None = None
    profile: str = ""
    cameras: bool = True
    mjcf: str = ""
    ros_args: tuple[str, ...] = ()


class Viewer:
    """A running viewer, from the console's side."""

    def __init__(self, drawn: Drawn, on_drag: Callable[[str, Any, Any], None]):
        """Start it. `on_drag`(phase, position (3,), quaternion w x y z (4,)) is called in a thread of its own.
        UserError if the viewer does not start."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._sending = threading.Lock()
        self._on_drag = on_drag
        self.process = context.Process(target=run, args=(theirs, drawn), name="view", daemon=True)
        self.process.start()
        theirs.close()
        try:
            if not self._pipe.poll(STARTS):
                raise EOFError
            _, self.port = self._pipe.recv()
        except EOFError:
            self.process.kill()
            raise UserError("the view of the console did not start, for the reason that it gave above") from None
        threading.Thread(target=self._listen, name="drags", daemon=True).start()

    def send(self, *message: Any) -> None:
        """Send a message to the viewer; nothing happens once it has ended."""
        with self._sending, suppress(OSError):
            self._pipe.send(message)

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                _, phase, position, wxyz = self._pipe.recv()
                self._on_drag(phase, position, wxyz)

    def close(self) -> None:
        """End the viewer. Idempotent."""
        self.send(END)
        self.process.join(5.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def run(pipe: Connection, drawn: Drawn) -> None:
    """Draw until the console is gone; the target of the viewer's process."""
    from real.bus import open_node
    from robot_rl.robots import robots
    from robot_rl.robots.profiles import with_profile
    from robot_rl.view.live import LiveView
    from sim.tasks import scene_of

    for number in (signal.SIGINT, signal.SIGTERM):  # the console ends this process, after its own tidying up
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICE)
    torch.set_num_threads(1)
    robot, gone = with_profile(robots.get(drawn.robot), drawn.profile), threading.Event()
    with open_node("view", ros_args=list(drawn.ros_args)) as node:
        view = LiveView(node, robot, scene_of(drawn.robot, drawn.task), None, drawn.cameras, mjcf=drawn.mjcf)
        handle = _Handle(view, pipe)
        pipe.send((PORT, view.page.server.get_port()))

        def listen() -> None:
            with suppress(EOFError, OSError):
                while (message := pipe.recv())[0] != END:
                    handle.take(*message)
            gone.set()

        threading.Thread(target=listen, daemon=True).start()

        def pause(left: float) -> bool:
            handle.follow()
            return gone.wait(max(0.0, left))

        view.run(pause)
        view.close()


class _Handle:
    """The gizmo, in the browser of the page that has the seat; and the guard of viser's connections."""

    def __init__(self, view: Any, pipe: Connection):
        from robot_rl.interface.kinematics import Kinematics

        self._view, self._pipe = view, pipe
        self._kinematics = Kinematics(view.robot) if view.robot.tool and not view.robot.base else None
        self._allowed: set[int] = set()
        self._ports: dict[int, int] = {}
        """Port from which each of viser's clients comes, by viser's number."""
        self._seat, self._turns, self._follows = 0, False, True
        self._client: Any = None
        self._handle: Any = None
        view.page.server._websock_server.on_client_connect(self._on_client)

    def take(self, kind: str, *what: Any) -> None:
        """Take a message of the console."""
        if kind == ALLOW:
            self._allowed.add(what[0])
        elif kind == SEAT:
            self._seat, self._turns = what
            self._follows = True
        elif kind == FOLLOW:
            self._follows = True

    async def _on_client(self, client: Any) -> None:
        """Disconnect a client of viser that did not come through the console; called in viser's thread."""
        connection = self._view.page.server._websock_server._live_connections[client.client_id]
        port = connection.remote_address[1]
        for _ in range(100):  # the announcement may be on its way
            if port in self._allowed:
                self._allowed.discard(port)
                self._ports[client.client_id] = port
                return
            await asyncio.sleep(0.01)
        await connection.close(1008, "open the console instead")

    def follow(self) -> None:
        """Show the handle to the browser in the seat, and move it to the tool unless the tool follows it."""
        if self._kinematics is None:
            return
        clients = self._view.page.server.get_clients()
        for number in [n for n in self._ports if n not in clients and n < max(clients, default=0)]:
            del self._ports[number]
        client = next((c for n, c in clients.items() if self._seat and self._ports.get(n) == self._seat), None)
        if client is not self._client:
            self._open(client)
        reading = self._view.driver.reading()
        if self._handle is None or reading is None or not self._follows:
            return
        position, rotation = self._kinematics.forward(torch.from_numpy(reading.position)[None].float())
        self._handle.position = position[0].numpy()
        if self._turns:  # else its arrows are the base's axes
            from robot_rl.interface.rotation import matrix_to_quat

            self._handle.wxyz = matrix_to_quat(rotation)[0].numpy()

    def _open(self, client: Any) -> None:
        if self._handle is not None:
            self._handle.remove()
        self._client, self._handle, self._follows = client, None, True
        if client is None:
            return
        handle = client.scene.add_transform_controls("/tool", SIZE, disable_rotations=not self._turns, depth_test=False)

        async def on_update(event: Any) -> None:  # async: phases in order
            if handle is self._handle:
                self._follows = False
                self._pipe.send((DRAG, event.phase, tuple(event.target.position), tuple(event.target.wxyz)))

        handle.on_update(on_update)
        self._handle = handle
