"""What a session's topics tell: outcomes, interventions, times, and what changed the policy's commands."""

import html
import time
from collections import deque

import numpy as np

from real.bus import Node, Stamped, qos
from real.topics import (
    DIAGNOSTICS,
    DIAGNOSTICS_TOPIC,
    EPISODE_TOPIC,
    GUARD_TOPIC,
    STATUS,
    Episode,
    GuardReport,
    values_of,
)
from robot_rl.util.statistics import wilson
from robot_rl.view.page import Page, table

RECENT = 10
"""Number of episodes over which interventions are averaged."""
KEPT = 600
"""Number of seconds in the chart of times."""
CORRECTING = "correcting"
_SHIELD = "shield: "


class Session:
    """Statistics of a running session."""

    def __init__(self, node: Node):
        self.episode = Episode(-1, "")
        """Newest report of the session's episode."""
        self.outcomes: list[tuple[int, int, int]] = []
        """Number of ended episodes, of successes, and of interventions, whenever an episode had ended."""
        self.reasons: dict[str, int] = {}
        """How often the shield changed or refused a command, by reason, since the session began."""
        self.guard = GuardReport()
        """Newest report of the guard, or of the process that holds an arm."""
        self.message = ""
        """Why the robot does not follow the policy's goals, if that is worth a warning; else empty."""
        self._drawn, self._robot = -1, ""
        self._times: deque[tuple[float, float, int]] = deque(maxlen=KEPT)
        """Time, s, slowest inference, ms, and number of shield events, of each second."""
        self._started = time.monotonic()
        self._namespace = node.full_name.lstrip("/").rpartition("/")[0]
        node.subscribe(STATUS, EPISODE_TOPIC, qos.LATCHED, self._on_episode)
        node.subscribe(STATUS, GUARD_TOPIC, qos.DEFAULT, self._on_guard)
        node.subscribe(DIAGNOSTICS, DIAGNOSTICS_TOPIC, qos.VIEWER, self._on_diagnostics)

    @property
    def controlled(self) -> bool:
        """Return whether a person's actions are executed."""
        return self.episode.control == CORRECTING

    def add_to(self, page: Page) -> None:
        """Add a text and two charts that grow to a page, which `show` fills."""
        with page.folder("Session"):
            page.add_text("session")
            curves = "success", "lower bound", "upper bound", f"interventions, last {RECENT}"
            page.add_chart("success", "episode", curves)
            page.add_chart("times", "s", ("inference p99, ms", "shield, events per s"))

    def show(self, page: Page) -> None:
        """Draw what has changed."""
        page.text("session", table(self._rows()) + self._why())
        if len(self.outcomes) != self._drawn and len(self.outcomes) > 1:  # one point is no curve
            self._drawn = len(self.outcomes)
            page.chart("success", self._success())
        if self._times and page.due("times"):
            page.chart("times", np.array(self._times).T)

    # ---- topics ------------------------------------------------------------------------------------------------
    def _on_episode(self, sample: Stamped) -> None:
        try:
            now = Episode.of(sample.msg)
        except ValueError:  # a message of another program
            now = Episode(-1, "")
        if now.ended < self.episode.ended:  # another session
            self.outcomes.clear()
        if now.ended > (self.outcomes[-1][0] if self.outcomes else 0):
            self.outcomes.append((now.ended, now.won, now.takeovers))
        self.episode = now

    def _on_guard(self, sample: Stamped) -> None:
        self.guard = GuardReport.of(sample.msg)

    def _on_diagnostics(self, sample: Stamped) -> None:
        slowest, events, seen = 0.0, 0, False
        for status in sample.msg.status:
            sender, _, part = status.name.rpartition(": ")
            values = values_of(status)
            if sender.rpartition("/")[0] != self._namespace:  # of another robot
                continue
            if part == "robot":
                counts = {k.removeprefix(_SHIELD): int(v) for k, v in values.items() if k.startswith(_SHIELD)}
                events = sum(counts.values()) - sum(self.reasons.values())
                self.reasons, self._robot, seen = counts, status.message, True
                self.message = status.message if status.level else ""
            elif part == "policy":
                value = values.get("inference p99 ms", "none")
                slowest = 0.0 if value == "none" else float(value)
        if seen:
            now = time.monotonic() - self._started
            if self._times and now - self._times[-1][0] < 0.9:  # sent early, because something changed
                now, slower, more = self._times.pop()
                slowest, events = max(slowest, slower), events + more
            self._times.append((now, slowest, max(0, events)))

    # ---- drawing -----------------------------------------------------------------------------------------------
    def _rows(self) -> list[tuple[str, str]]:
        episode = self.episode
        rows = [("episode", f"{episode.number}: {episode.phase}" if episode.phase else "none heard")]
        if episode.control:
            rows.append(("control", episode.control))
        if self.outcomes:
            ended, success, low, high, recent = self._success_of(len(self.outcomes) - 1)
            rows.append(("success", f"{success:.0%} of {ended:.0f} [{low:.2f}, {high:.2f}]"))
            rows.append((f"interventions, last {min(RECENT, int(ended))}", f"{recent:.1f} per episode"))
        if self._robot:
            rows.append(("robot", self._robot))
        return rows + [(_SHIELD + reason, str(count)) for reason, count in sorted(self.reasons.items()) if count]

    def _why(self) -> str:
        said = self.guard.damping or self.guard.warning
        return f'<b style="color:#c92a2a">{html.escape(said)}</b>' if said else ""

    def _success(self) -> np.ndarray:
        """Return the chart's columns (5, episodes): episode, success with its interval, and recent interventions."""
        return np.array([self._success_of(k) for k in range(len(self.outcomes))]).reshape(-1, 5).T

    def _success_of(self, index: int) -> tuple[float, ...]:
        """Return the chart's column at an outcome."""
        ended, won, takeovers = self.outcomes[index]
        earlier = (row for row in reversed(self.outcomes[max(0, index - RECENT) : index]) if row[0] <= ended - RECENT)
        then, _, before = next(earlier, (0, 0, 0) if ended <= RECENT else self.outcomes[max(0, index - RECENT)])
        share = (takeovers - before) / max(1, ended - then)
        return (ended, won / ended, *wilson(won, ended), share)
