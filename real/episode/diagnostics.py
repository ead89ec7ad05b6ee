"""Health of a session on `/diagnostics`: command loop, robot, policy, operator, at 1 Hz and on change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from real import clock
from real.bus import qos
from real.control.seconds import Second
from real.control.stop import GAP, STALE_GOAL, STALE_STATE
from real.control.timing import Histogram
from real.episode.intervention import Phase
from real.episode.stream import Event
from real.topics import DIAGNOSTICS, DIAGNOSTICS_TOPIC, ERROR, OK, WARN, diagnostics, status

if TYPE_CHECKING:
    from real.episode.env import RobotEnv

EVERY = 1.0
"""Interval between messages without a change, and time over which they measure, s."""


class Diagnostics:
    """Publisher of one environment's health. The thread that steps the environment does all of the work; events of
    other threads only mark that there may be something new."""

    def __init__(self, env: RobotEnv):
        self._env, self._changed, self._due = env, False, clock.now()
        self._node = env.node.full_name.lstrip("/")
        self._phase = "not active"
        self._sent: list[tuple[int, str]] = []
        """Levels and messages that were published last."""
        self._ages, self._inference, self._shown = Histogram(), Histogram(), Histogram()
        self._second: Second | None = None
        """The worst of the seconds that the command loop finished last."""
        self._measured: tuple[Any, dict[str, Any]] = self._loop(), {}
        """Status of the command loop, and values of the policy's, of the last interval."""
        self.publisher = env.node.publisher(DIAGNOSTICS, DIAGNOSTICS_TOPIC, qos.VIEWER)
        env.stream.on_event(self._on_event)
        env.each_period.append(self.update)

    def _on_event(self, event: Event) -> None:
        self._changed = True
        if event.name == "phase":
            self._phase = str(event.what)
        if event.name == "active":  # only the environment's thread notes it, and it may be the last event
            self._due = event.time
            self.update()

    def update(self) -> None:
        """Publish, if something has changed or a second has passed."""
        now = clock.now()
        due = now >= self._due
        if not (due or self._changed):
            return
        self._changed = False
        if due:
            self._due = now + EVERY
            self._measured = self._loop(), self._inferences()
        loop, inferences = self._measured
        statuses = [loop, self._robot(), self._policy(inferences), self._operator()]
        content = [(s.level, s.message) for s in statuses]
        if due or content != self._sent:
            self._sent = content
            self.publisher.publish(diagnostics(*statuses))

    def _status(self, part: str, level: int, message: str, values: dict[str, Any]) -> Any:
        return status(f"{self._node}: {part}", level, message, values)

    def _loop(self) -> Any:
        """Return the command loop's status since the last call."""
        loop = self._env.loop
        if loop.ticker is None:
            return self._status("command loop", OK, "not active", {})
        timing, ages = loop.ticker.timing, loop.state_ages.copy()
        age, self._ages = ages - self._ages, ages
        if done := [timing.seconds.popleft() for _ in range(len(timing.seconds))]:
            self._second = max(done, key=lambda second: second.level)
        self._second = self._second if loop.armed else None
        if self._second is None:
            return self._status("command loop", OK, "first second" if loop.armed else "not active", {})
        values = self._second.values() | {"state age p99 ms": _ms(age, 99)}
        return self._status("command loop", self._second.level, self._second.message, values)

    def _robot(self) -> Any:
        env, loop = self._env, self._env.loop
        holding = loop.holding
        level, message = OK, "follows the goals"
        if loop.error is not None:
            level, message = ERROR, f"the command loop ended: {loop.error}"
        elif loop.stopped:
            level, message = ERROR, f"stopped: {loop.stopped}"
        elif not loop.armed:
            message = "not active"
        elif holding == STALE_STATE or (holding in (STALE_GOAL, GAP) and not loop.resting):
            level, message = WARN, f"holds: {holding}"
        elif loop.is_damped:
            message = "damped"
        elif holding:
            message = "holds"
        rejected = {f"rejected: {reason}": count for reason, count in env.driver.rejected.items()}
        shield = {f"shield: {reason}": count for reason, count in loop.events.counts.copy().items()}
        return self._status("robot", level, message, rejected | shield)

    def _inferences(self) -> dict[str, Any]:
        """Return the policy's times to answer since the last call, and the ages of the pictures that it saw."""
        inference, shown = self._env.inference.copy(), self._env.picture_ages.copy()
        recent, self._inference = inference - self._inference, inference
        ages, self._shown = shown - self._shown, shown
        values = {"inference p50 ms": _ms(recent, 50), "inference p99 ms": _ms(recent, 99)}
        values["inference newest ms"] = f"{1e3 * inference.newest:.3f}" if len(inference) else "none"
        if self._env.pictures.pictures:
            values["picture age p99 ms"] = _ms(ages, 99)
            values["picture age newest ms"] = f"{1e3 * shown.newest:.3f}" if len(shown) else "none"
        return values

    def _policy(self, inferences: dict[str, Any]) -> Any:
        env = self._env
        return self._status("policy", OK, self._phase, {"episode": env.episode, "steps": env.steps} | inferences)

    def _operator(self) -> Any:
        arbiter = self._env.arbiter
        lost = arbiter.phase is Phase.PAUSED
        present = "device present" if arbiter.attended else "no device"
        message = "the device fell silent during a correction" if lost else present
        return self._status("operator", WARN if lost else OK, message, {"control": arbiter.phase.value})


def _ms(durations: Histogram, percent: float) -> str:
    return f"{1e3 * durations.percentile(percent):.3f}" if len(durations) else "none"
