"""Progress of a recording in the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.live import Live
from rich.text import Text

from real.recording.record import Progress
from robot_rl.cli.console import console
from robot_rl.interface.pipeline import Interface

STYLES = {"running": "bold red", "waiting": "bold yellow", "let go": "bold yellow", "saved": "bold green"}
WORDS = {
    "resetting": "resetting",
    "let go": "let go of the keys to begin",
    "waiting": "waiting for your first input",
    "running": "RECORDING",
    "saved": "saved",
    "failed": "failed, not saved",
    "discarded": "discarded; the same again",
}
KEYS = (
    "The robot stands still while you give no input. The episode ends when the task is solved, or by your mark:",
    "y success    n failure    enter discard and repeat    q quit    (gamepad: A, X, Menu, Ctrl-C)",
)


@contextmanager
def display(interface: Interface, seconds: float) -> Iterator[Any]:
    """Show a recording's state in a live line, or without a terminal a new line per state change.

    Yield the update function, which takes the recording's `Progress`.
    """
    for text in (f"{interface.task}: {interface.instruction}", *KEYS):
        console.print(text, soft_wrap=True, markup=False)
    limit = f" of {seconds:g} s" if seconds else " s"
    before = ""

    def line(progress: Progress) -> Text:
        number = progress.saved + (progress.phase != "saved")
        text = Text(f"episode {number} of {progress.episodes}  ")
        text.append(WORDS.get(progress.phase, progress.phase), STYLES.get(progress.phase, ""))
        if progress.phase == "running":
            text.append(f" {time.monotonic() - progress.began:4.1f}{limit}")
        counts = f"   saved {progress.new}, failed {progress.failures}, discarded {progress.discarded}"
        text.append(counts, "dim")
        return text.append(f"   {progress.instruction}", "bold") if progress.instruction else text

    if not console.is_terminal:

        def say(progress: Progress) -> None:
            nonlocal before
            if progress.phase != before and progress.phase != "resetting":
                console.print(line(progress), soft_wrap=True)
            before = progress.phase

        yield say
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        shown = [0.0]

        def update(progress: Progress) -> None:
            nonlocal before
            now, changed = time.monotonic(), progress.phase != before
            if progress.phase in ("saved", "failed", "discarded") and changed:
                live.console.print(line(progress))
            if changed or now - shown[0] > 0.2:
                live.update(line(progress), refresh=True)
                shown[0] = now
            before = progress.phase

        yield update
