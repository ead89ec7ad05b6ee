"""What happened on a robot besides the policy: who commanded it, what was asked, stops, resets, the guard."""

from __future__ import annotations

import time
from collections import Counter, deque
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from robot_rl import strict_json

if TYPE_CHECKING:
    from real.env import RobotEnv


class Journal:
    """Writes events.jsonl as things happen, and a row of episodes.jsonl for each episode, keys as `finetune` has them.

    An event is `episode`, `seconds` of it (null while the robot gets ready), `event` and `what`. Written by the thread
    that steps the robot; the command thread only leaves a note.
    """

    def __init__(self, folder: Path, env: RobotEnv):
        self.folder, self.env = folder, env
        self._notes: deque[tuple[float, int, str, Any]] = deque()
        self._files: dict[str, IO[str]] = {}
        self._opened, self._begun, self._falls, self._index = time.monotonic(), 0.0, 0, 0
        self._commanders: Counter[str] = Counter()
        self._parts = {"intervention_steps": 0, "takeovers": 0}
        self._others = env.on_step
        env.note, env.on_step = self.note, self._record

    def note(self, event: str, what: Any) -> None:
        """Remember an event, from any thread."""
        self._notes.append((time.monotonic(), self.env.episode, event, what))
        if event == "phase":
            self._flush()

    def _record(self, step: dict[str, Any]) -> None:
        """The end of a control period."""
        if self._others is not None:
            self._others(step)
        self._parts["intervention_steps"] += int(step["intervention"])
        self._parts["takeovers"] += int(step["takeover"])
        if self.env.steering is not None:
            self._commanders[self.env.steering.commander] += 1
        self._flush()
        if step["done"]:
            self._end(step)

    def _end(self, step: dict[str, Any]) -> None:
        env = self.env
        row: dict[str, Any] = {
            "index": self._index,
            "seed": env.seed,
            "seconds": round(time.monotonic() - self._opened, 2),
        }
        row |= {"success": bool(step["success"]), "steps": int(step["episode_steps"]), **self._parts}
        row |= {"stopped": env.loop.stopped}
        if env.steering is not None:
            row |= {"falls": env.falls - self._falls, "commanded_steps": dict(self._commanders)}
        self._write("episodes.jsonl", row)
        self._falls, self._index = env.falls, self._index + 1
        self._commanders.clear()
        self._parts = dict.fromkeys(self._parts, 0)

    def _flush(self) -> None:
        while self._notes:
            at, episode, event, what = self._notes.popleft()
            if event == "phase":
                self._begun = at if what == "running" else 0.0
            seconds = round(at - self._begun, 3) if self._begun else None
            self._write("events.jsonl", {"episode": episode, "seconds": seconds, "event": event, "what": what})

    def _write(self, name: str, row: dict[str, Any]) -> None:
        if name not in self._files:
            self._files[name] = open(self.folder / name, "a", buffering=1)  # noqa: SIM115
        self._files[name].write(strict_json.dumps(row) + "\n")

    def close(self) -> None:
        """Write what is left."""
        self._flush()
        for file in self._files.values():
            file.close()
