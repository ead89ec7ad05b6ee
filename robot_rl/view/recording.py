"""View of a simulation in which a person records demonstrations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from robot_rl.view.simulation import SimulationView


class RecordingView:
    """Callback for `real.recording.record.Recording` that draws the environment after every control period."""

    def __init__(self, say: Callable[[str], None], port: int = 0):
        """`say` is called with the page's address once the page is open."""
        self.say, self.port = say, port
        self.view: SimulationView | None = None
        self._state = ""

    def __call__(self, env: Any) -> None:
        """Show the current state of a `RehearsalEnv`, which waits for the person before its first step."""
        if self.view is None:
            self.view = SimulationView(env.env, self.port, f"{env.env.task.name}, recording", controls=False)
            self.say(self.view.page.address)
        state = "recording" if env.steps else "waiting for your first input"
        if not env.steps and self._state != state:
            self.view.begin(self.view.number + 1, env.env.seed)
        self._state = state
        self.view.note(state)
        self.view.show(env.observation) if env.steps else self.view.redraw(env.observation)

    def close(self) -> None:
        """Close the page."""
        if self.view is not None:
            self.view.close()
