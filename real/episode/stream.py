"""What happens on a robot, as typed records: one per control period, and one per event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from real import clock


@dataclass(frozen=True)
class StepRecord:
    """One control period: what was observed, wanted and executed, and what came of it."""

    state: Tensor
    """(1, S) `observation.state` before the action."""
    policy_action: Tensor
    """(1, A) action that the policy wanted, in [-1, 1]."""
    executed: Tensor
    """(1, A) action that was executed: the policy's, the person's, or a hold."""
    reward: float
    success: bool
    done: bool
    """The episode ends with this control period."""
    truncated: bool
    """It ends without a result of the task: by the time limit or a stop."""
    intervention: bool
    """A person's action was executed."""
    takeover: bool
    """A correction begins."""
    marked: bool
    """A person marked success or failure."""
    discarded: bool
    """The episode is stopped, or a person discards it."""
    steps: int
    """Control periods of the episode so far."""
    instruction: str = ""
    """Instruction that the policy followed; empty without instructions."""
    shield: int = 0
    """Why the goal was changed, as bits in the order of `shield.REASONS`; 0: it was not."""
    state_age: float = 0.0
    """Age of the joint state at the observation, s."""


@dataclass(frozen=True)
class Event:
    """A change: of phase, command source, stop, guard, device, and so on."""

    name: str
    what: Any
    """Details, as JSON values."""
    time: float
    """Time by `real.clock`, s."""


class Stream:
    """Stream of records, to which journal, recorder, video and console subscribe. Subscribers are called in the order
    of their subscription: of steps by the thread that steps the environment, of events by any thread."""

    def __init__(self) -> None:
        self._steps: list[Callable[[StepRecord], None]] = []
        self._events: list[Callable[[Event], None]] = []

    def on_step(self, subscriber: Callable[[StepRecord], None]) -> None:
        """Call the subscriber with every control period from now on."""
        self._steps.append(subscriber)

    def on_event(self, subscriber: Callable[[Event], None]) -> None:
        """Call the subscriber with every event from now on."""
        self._events.append(subscriber)

    def step(self, record: StepRecord) -> None:
        """Pass a control period on."""
        for subscriber in self._steps:
            subscriber(record)

    def note(self, name: str, what: Any) -> None:
        """Pass an event on. Thread-safe."""
        event = Event(name, what, clock.now())
        for subscriber in list(self._events):
            subscriber(event)
