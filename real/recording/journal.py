"""Log of a run on a robot: episodes, command sources, stops, resets, guard reports."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from real import clock
from real.recording.black_box import BlackBox
from real.recording.session import uninterrupted
from real.recording.session_bag import SessionBag
from robot_rl.training.run import write_text
from robot_rl.util import strict_json

if TYPE_CHECKING:
    from real.episode.env import RobotEnv
    from real.episode.stream import Event, StepRecord


class Journal:
    """Write events.jsonl and, per episode, a row of episodes.jsonl.

    An event has `episode`, `seconds` since the episode's start (null between episodes), `event` and `what`. Only the
    thread that steps the environment writes; other threads queue events.
    """

    def __init__(
        self, folder: Path, env: RobotEnv, done: int = 0, more: Callable[[], dict[str, Any]] = dict,
        keep: Callable[[dict[str, Any]], None] = lambda row: None, bag: bool = False,
    ):  # fmt: skip
        """Begin a log after the folder's first `done` episodes. At an episode's end `more` returns additional keys of
        the episode's row, and `keep` receives the row. `bag`: also write the whole session as a bag."""
        self.folder, self.env, self.done, self.more, self.keep = folder, env, done, more, keep
        self.rows: list[dict[str, Any]] = []
        """Rows of the episodes that ended in this run."""
        self.drop_rows_from(done)
        self._notes: deque[tuple[int, Event]] = deque()
        self._files: dict[str, IO[str]] = {}
        self._opened, self._begun = clock.now(), 0.0
        self._falls = self._stalls = 0
        self._command_sources: Counter[str] = Counter()
        self._parts = {"intervention_steps": 0, "takeovers": 0}
        self.black_box = BlackBox(folder, env.wires)
        env.stream.on_event(self.black_box.on_event)
        self.bag = SessionBag(folder, env) if bag else None
        env.stream.on_event(self._note)
        env.stream.on_step(self._record)

    def drop_rows_from(self, done: int) -> None:
        """Drop rows of episodes.jsonl from index `done` on, and incomplete rows, which a killed run may leave."""
        path = self.folder / "episodes.jsonl"
        if path.exists():
            rows = path.read_text().splitlines(keepends=True)
            write_text(path, "".join(r for r in rows if r.endswith("\n") and json.loads(r)["index"] < done))

    def _note(self, event: Event) -> None:
        """Queue an event for events.jsonl. Thread-safe."""
        self._notes.append((self.env.episode, event))
        if event.name == "phase":
            self._flush()

    def _record(self, step: StepRecord) -> None:
        """Count a control period; at the end of an episode, write its row."""
        self._parts["intervention_steps"] += step.intervention
        self._parts["takeovers"] += step.takeover
        if self.env.steering is not None:
            self._command_sources[self.env.steering.command_source] += 1
        self._flush()
        if step.done:
            self._end(step)

    def _end(self, step: StepRecord) -> None:
        env = self.env
        row: dict[str, Any] = {"index": self.done + len(self.rows), "seed": env.seed}
        row |= {"seconds": round(clock.now() - self._opened, 2)}
        row |= {"success": step.success, "steps": step.steps, **self._parts}
        row |= {"stopped": env.loop.stopped}
        row |= {"instruction": env.instructions.text} if env.instructions else {}
        if env.steering is not None:
            row |= {"falls": env.falls - self._falls, "stalls": env.stalls - self._stalls}
            row |= {"commanded_steps": dict(self._command_sources)}
        row |= self.more()
        with uninterrupted():  # row and `keep` are atomic
            self._write("episodes.jsonl", row)
            self.keep(row)
            self.rows.append(row)
        self._falls, self._stalls = env.falls, env.stalls
        self._command_sources.clear()
        self._parts = dict.fromkeys(self._parts, 0)

    def _flush(self) -> None:
        while self._notes:
            episode, event = self._notes.popleft()
            if event.name == "phase":
                self._begun = event.time if event.what == "running" else 0.0
            seconds = round(event.time - self._begun, 3) if self._begun else None
            row = {"episode": episode, "seconds": seconds, "event": event.name, "what": event.what}
            self._write("events.jsonl", row)

    def _write(self, name: str, row: dict[str, Any]) -> None:
        if name not in self._files:
            self._files[name] = open(self.folder / name, "a", buffering=1)  # noqa: SIM115
        self._files[name].write(strict_json.dumps(row) + "\n")

    def close(self) -> None:
        """Write queued events and close the files."""
        self.black_box.close()
        if self.bag is not None:
            self.bag.close()
        self._flush()
        for file in self._files.values():
            file.close()
