"""Page in this machine's browser: 3D scene, pictures and text, by viser (Yi et al. 2025, arXiv 2507.22885)."""

import contextlib
import html
import io
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from robot_rl.util.errors import UserError

HOST = "127.0.0.1"
"""Listening address: only this machine can connect."""
PORT = 8080
"""First port that the server tries."""
PICTURE_RATE = 5.0
"""Maximum rate of pictures per camera, Hz; a picture is a JPEG of several kilobytes."""
TEXT_RATE = 10.0
"""Maximum rate of text updates, Hz."""
CHART_RATE = 1.0
"""Maximum rate of a chart's updates, Hz."""
COLOURS = ("#1c7ed6", "#a5d8ff", "#a5d8ff", "#e8590c")
"""Colours of a chart's curves."""
_STYLE = "font-size:0.8em;line-height:1.45;margin:0.4em 1em 0.4em 0.75em"


class Page:
    """Viser server with a panel of texts and pictures, shared by all browsers that open the page."""

    def __init__(self, title: str, port: int | None = 0):
        """Start the server; port 0: 8080 or the next free port; None: any, for another server that passes it on.
        Raises UserError without viser or for a used port."""
        try:
            import viser
        except ImportError as error:
            needed = f"the view needs the package viser ({error})"
            raise UserError(f"{needed}: pip install -c constraints.txt -e '.[view]'") from None
        with contextlib.redirect_stdout(io.StringIO()):  # hide viser's own output
            self.server: Any = viser.ViserServer(HOST, 0 if port is None else port or PORT, title, verbose=False)
        if port and self.server.get_port() != port:  # viser took another port
            self.close()
            raise UserError(f"port {port} is in use or not permitted; name another with --port, or leave it out")
        # Keep the page from opening viser's tunnel to the internet.
        self.server.request_share_url = lambda verbose=True: None  # type: ignore[method-assign]
        self.server.gui.configure_theme(show_logo=False, show_share_button=False)
        self.server.gui.main_panel.dock_right()
        self._texts: dict[str, tuple[Any, float]] = {}
        self._pictures: dict[str, tuple[Any, float]] = {}
        self._charts: dict[str, tuple[Any, float]] = {}

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server.get_port()}"

    @property
    def watched(self) -> bool:
        """Return whether a browser has the page open."""
        return bool(self.server.get_clients())

    def folder(self, name: str, open_: bool = True) -> Any:
        """Return a section of the panel, to use in a `with` block that adds texts and pictures to it."""
        return self.server.gui.add_folder(name, expand_by_default=open_)

    def add_text(self, name: str) -> None:
        """Add a named text to the panel."""
        self._texts[name] = self.server.gui.add_html(""), -np.inf

    def add_picture(self, name: str, height: int, width: int) -> None:
        """Add a named picture to the panel."""
        self._pictures[name] = self.server.gui.add_image(np.zeros((height, width, 3), np.uint8), label=name), -np.inf

    def text(self, name: str, content: str, now: bool = False) -> None:
        """Set a named text to HTML; updates faster than TEXT_RATE are skipped unless `now`."""
        handle, changed = self._texts[name]
        clock = time.monotonic()
        if now or clock - changed >= 1 / TEXT_RATE:
            handle.content = f'<div style="{_STYLE}" id="{name}">{content}</div>'
            self._texts[name] = handle, clock

    def add_chart(self, name: str, x: str, series: tuple[str, ...]) -> None:
        """Add a named chart of curves over x to the panel."""
        curves = tuple({"label": s, "stroke": c, "width": 2} for s, c in zip(series, COLOURS, strict=False))
        handle = self.server.gui.add_uplot(
            tuple(np.zeros(0) for _ in range(len(series) + 1)), ({"label": x}, *curves), aspect=1.8,
            scales={"x": {"time": False}}, legend={"show": True},
        )  # fmt: skip
        self._charts[name] = handle, -np.inf

    def chart(self, name: str, data: np.ndarray) -> None:
        """Set a named chart's columns (1 + curves, points): x, then the curves."""
        handle = self._charts[name][0]
        handle.data = tuple(np.ascontiguousarray(row, np.float64) for row in data)
        # The chart keeps the range of x that it was made with, unless it gets a new one.
        handle.scales = {"x": {"time": False, "range": (float(data[0, 0]), float(data[0, -1]))}}
        self._charts[name] = handle, time.monotonic()

    def due(self, name: str) -> bool:
        """Return whether it is time for a new picture, or a chart's update, and a browser has the page open."""
        if name in self._charts:
            return self.watched and time.monotonic() - self._charts[name][1] >= 1 / CHART_RATE
        return self.watched and time.monotonic() - self._pictures[name][1] >= 1 / PICTURE_RATE

    def picture(self, name: str, picture: np.ndarray) -> None:
        """Set a named picture (H, W, 3) uint8."""
        handle = self._pictures[name][0]
        handle.image = picture
        self._pictures[name] = handle, time.monotonic()

    def close(self) -> None:
        """Stop the server. Idempotent."""
        with contextlib.redirect_stdout(io.StringIO()):
            self.server.stop()


def table(rows: Iterable[Iterable[str]]) -> str:
    """Return an HTML table of plain texts; columns after the first are aligned to the right."""
    lines = []
    for row in rows:
        first, *rest = (html.escape(cell) for cell in row)
        cells = "".join(f'<td style="text-align:right;padding:0 0 0 0.6em">{cell}</td>' for cell in rest)
        lines.append(f'<tr><td style="padding:0">{first}</td>{cells}</tr>')
    return f'<table style="width:100%;border-collapse:collapse">{"".join(lines)}</table>'
