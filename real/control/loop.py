"""Command thread: turn the policy's goals into a stream of commands limited by the shield."""

import gc
import logging
import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from real.control.clock import STALL, Histogram, Ticker, prefer_realtime, reschedule, scheduling
from real.control.safety import STALE_GOAL, STALE_STATE, PostureLimits, SafetyConfig
from real.robots.base import Driver, JointReading, NotReady
from robot_rl.interface.pipeline import Pipeline

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Goal:
    """Joint positions to reach `duration` seconds after `posted`."""

    position: Tensor
    """Joint positions to reach, (1, J) rad."""
    start: Tensor
    """Previous goal, (1, J) rad."""
    gripper: float
    """Finger distance, m."""
    posted: float
    """Time at which the goal was posted, monotonic s."""
    duration: float
    """Time from `posted` until the goal is to be reached, s."""


@dataclass
class Events:
    """Number of interventions of shield and watchdogs, by reason."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, reason: str, times: int = 1) -> None:
        if times:
            self.counts[reason] = self.counts.get(reason, 0) + times


class CommandLoop(threading.Thread):
    """Publish commands at the robot's command rate from `arm()` until `close()`.

    Each tick moves the set-points along a straight line from the previous goal to the present goal, and through
    `Shield.follow`. Set-points of compliant joints jump to the goal, as in simulation. With a stale state, a stale goal
    or a latched stop an arm brakes and holds, and a legged robot is damped. In both cases the loop keeps sending,
    because a forward controller keeps the last command. Damping a standing robot latches a stop, since full stiffness
    would jerk the robot up again; exceptions are `close` and a stale goal between episodes.
    """

    def __init__(self, driver: Driver, pipeline: Pipeline, safety: SafetyConfig | None = None):
        super().__init__(name="command-loop", daemon=True)
        self.driver, self.pipeline, self.safety = driver, pipeline, safety or SafetyConfig()
        self.events = Events()
        self.goals = 0
        """Number of posted goals, including refused ones."""
        self.stopped = ""
        """Reason of the latched stop; empty if no stop is latched."""
        self.ticker: Ticker | None = None
        self.state_ages = Histogram()
        """Age of the joint state at the ticks, s."""
        self.stall = -math.inf, 0.0
        """End, monotonic s, and duration, s, of this thread's last stall."""
        self.error: BaseException | None = None
        self.note: Callable[[str, Any], None] = lambda _event, _what: None
        """Called with an event and its details at stops and resets, from any thread."""
        self._goal: Goal | None = None
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._nonfinite = 0
        self._holding = ""
        self._fresh = True
        """No goal was accepted since `arm` or `reset_stop`."""
        self._ticked = math.inf
        """Time of the last tick, monotonic s."""
        self._last_tracking_ok = math.inf
        """Last time at which a held arm was at its held position, monotonic s."""
        self._before: tuple[Any, ...] = ()
        """Thread switch interval, s, and scheduling of the calling thread before `arm`."""
        self.legged = pipeline.robot.base is not None
        self.is_damped = self.legged
        """The robot is legged and damped, and has to stand up."""
        self.resting = False
        """No goals are expected between episodes: for lack of goals, a legged robot is then damped without a stop."""
        self._stiff_since = -math.inf
        """Start of the newest sequence of commands with stiffness, monotonic s."""
        self._limits = PostureLimits(pipeline.robot, self.safety)

    # ---- policy side -------------------------------------------------------------------------------------------
    def arm(self) -> None:
        """Start sending commands: an arm holds its measured position, a legged robot stays damped."""
        self.driver.wait_ready()
        # Collecting torch's objects takes tenths of a second, during which no state is read.
        gc.collect()
        reading = self.driver.next_reading(self.safety.lost_timeout)
        assert reading is not None
        self._position = torch.from_numpy(reading.position).float()[None]
        self._velocity = torch.zeros_like(self._position)
        self._width = reading.gripper
        with self._lock:
            now = time.monotonic()
            self._goal = Goal(self._position, self._position, reading.gripper, now, self.pipeline.tick)
        self._before = (sys.getswitchinterval(), scheduling())
        sys.setswitchinterval(0.0002)  # the default of 5 ms lets the policy thread delay commands
        # Garbage is collected at the start of episodes only.
        gc.freeze()
        gc.disable()
        prefer_realtime(20)
        self.start()

    @property
    def goal(self) -> Tensor:
        """Return the newest accepted goal (1, J), rad."""
        return self._newest().position

    @property
    def width(self) -> float:
        """Return the finger distance of the newest goal, m."""
        return self._newest().gripper

    def _newest(self) -> Goal:
        with self._lock:
            assert self._goal is not None, "arm() first"
            return self._goal

    def set_goal(self, position: Tensor, gripper: float, duration: float) -> bool:
        """Post a goal (1, J), rad, to reach in `duration` s. Return False if the goal is non-finite or too far away, or
        if a stop is latched."""
        self.check()
        self.goals += 1
        previous, width = self.goal, self.width
        if not (math.isfinite(gripper) and bool(position.isfinite().all())):
            position, gripper = torch.full_like(position, math.nan), width  # reject all of it
        if self._holding or self._fresh:
            previous = self._measured()
            reach = self.safety.start_mismatch + duration * self.pipeline.shield.velocity
            if bool(position.isfinite().all() and ((position - previous).abs() > reach).any()):
                self.events.add("start mismatch")
                if self.legged and not self.driver.dry_run:
                    self.stop("the robot is not where the policy expects it")
                return False
        admitted, events = self.pipeline.shield.admit(position, previous)
        for reason, mask in events.items():
            self.events.add(reason, int(mask.sum()))
        self._nonfinite = self._nonfinite + 1 if events["nonfinite"].any() else 0
        if self._nonfinite >= self.safety.max_nonfinite:
            self.stop(f"{self._nonfinite} non-finite goals in a row")
        with self._lock:
            self._goal = Goal(admitted, previous, gripper, time.monotonic(), duration)
        self._fresh = False  # only now: a tick before it would report the old goal as stale
        return not (self.stopped or events["nonfinite"].any())

    def stop(self, reason: str) -> None:
        """Latch a stop: until `reset_stop`, an arm brakes and holds, and a legged robot is damped."""
        if not self.stopped:
            self.stopped = reason
            logger.error("stopped: %s", reason)
            self.note("stop", reason)

    def explain(self, cause: str) -> None:
        """Append the cause to the reason of the latched stop."""
        self.stopped = f"{self.stopped}: {cause}"
        logger.error("stopped: %s", self.stopped)
        self.note("cause", self.stopped)

    def reset_stop(self) -> None:
        """Clear a latched stop and forget old goals; until the next goal, an arm holds and a legged robot is damped."""
        with self._lock:
            position = self._measured()
            assert self._goal is not None
            self._goal = Goal(position, position, self._goal.gripper, time.monotonic(), self.pipeline.tick)
        self._fresh = True
        self.note("reset", self.stopped)
        self.stopped = ""

    def check(self) -> None:
        """Raise NotReady if an error ended the thread."""
        if self.error is not None:
            raise NotReady(f"the command loop ended: {self.error}") from self.error

    def close(self) -> None:
        """Brake and hold an arm, or damp a legged robot, and end the thread. The last command to an arm is the position
        where it stopped."""
        self._closing.set()
        if self.is_alive():
            self.join(timeout=2.0)
        if self._before:
            interval, scheduled = self._before
            gc.unfreeze()
            gc.enable()
            sys.setswitchinterval(interval)
            reschedule(scheduled)
            self._before = ()

    # ---- command side ------------------------------------------------------------------------------------------
    def run(self) -> None:
        prefer_realtime()
        torch.set_num_threads(1)
        self.ticker = Ticker(self.pipeline.tick)
        try:
            with torch.inference_mode():
                still = 0
                while still < 3:  # closing: brake first, then send the resting position
                    late = self.ticker.wait()
                    if late > STALL:
                        self.stall = time.monotonic(), late
                        self.events.add("stood still")
                        self.note("stall", {"process": "this", "seconds": round(late, 3)})
                    self._tick(time.monotonic())
                    moving = float(self._velocity.abs().max()) > 1e-5
                    still = 0 if moving or not self._closing.is_set() else still + 1
        except BaseException as error:
            self.error = error
            logger.exception("the command loop ended")

    def _tick(self, now: float) -> None:
        reading, goal = self.driver.reading(), self._newest()
        assert reading is not None
        self.state_ages.add(now - reading.received)
        if self.legged and not (self.is_damped or self.stopped) and (event := self._broken(now, reading)):
            self.events.add(event)
            self.stop(event)
        reason = self._reason(now, reading, goal)
        stale = (STALE_STATE,) if self.resting else (STALE_STATE, STALE_GOAL)
        if self.legged and not self.is_damped and reason in stale:
            self.stop(reason)
        if reason and reason not in (self._holding, "closing", "idle"):
            self.events.add(reason)
            if reason in (STALE_STATE, STALE_GOAL):
                self.note("hold", reason)
        self._holding = reason
        if reason and self.legged:
            self._position, self._velocity = self._measured(), torch.zeros_like(self._velocity)
            self.is_damped = True
            self.driver.damp()
            return
        self._stiff_since = now if self.is_damped else self._stiff_since
        self.is_damped = False
        tick = self.pipeline.tick
        if now - self._ticked > self.safety.state_timeout:  # after a gap in commands the arm is at rest
            self._velocity = torch.zeros_like(self._velocity)
        self._ticked = now
        if reason:
            self._yield_to(now, reading)
            # Brake towards the present command.
            at, speed = self._position, torch.zeros_like(self._velocity)
            self._width = self._width if reason == "stop" else goal.gripper
        else:
            self._last_tracking_ok = now
            self._width = goal.gripper
            share = min(1.0, (now - goal.posted + tick) / goal.duration)
            share = 1.0 if self.pipeline.robot.compliant else share
            at = goal.start + share * (goal.position - goal.start)
            speed = (goal.position - goal.start) / goal.duration if share < 1 else torch.zeros_like(at)
        self._position, self._velocity = self.pipeline.shield.follow(self._position, self._velocity, at, speed, tick)
        self.driver.send(self._position[0].double().numpy(), self._width)

    def _yield_to(self, now: float, reading: JointReading) -> None:
        """Hold a resting arm at its measured position after it was moved by hand with its drives off: otherwise the
        drives would jerk the arm back when they are switched on."""
        current, rests = now - reading.received <= self.safety.state_timeout, not self._velocity.any()
        shield = self.pipeline.shield
        measured = torch.from_numpy(reading.position).float()[None].clamp(shield.low, shield.high)
        moved = bool(((measured - self._position).abs() > self.safety.start_mismatch).any())
        if not (current and rests and moved):
            self._last_tracking_ok = now
        elif now - self._last_tracking_ok > self.safety.moved_patience:
            self.events.add("moved while held")
            self._position = measured

    def _broken(self, now: float, reading: JointReading) -> str:
        """Return the violated limit or the guard's objection for which a legged robot must stop; empty if none."""
        # Without the robot's states the guard's reports are missing too, and the robot is damped in any case.
        current = now - reading.received <= self.safety.state_timeout
        expected = current and now - self._stiff_since > self.safety.guard_patience
        return self._limits.broken(reading) or (self.driver.objection(now) if expected else "")

    def _reason(self, now: float, reading: JointReading, goal: Goal) -> str:
        """Return the reason not to follow the goal; empty if there is none."""
        if self.stopped:
            return "stop"
        if self._closing.is_set():
            return "closing"
        if now - reading.received > self.safety.state_timeout:
            return STALE_STATE
        if self.legged and self._fresh:
            return "idle"
        patience = self.safety.patience if self.legged else self.safety.goal_timeout
        return STALE_GOAL if now - goal.posted - goal.duration > patience else ""

    def _measured(self) -> Tensor:
        reading = self.driver.reading()
        assert reading is not None
        return torch.from_numpy(reading.position).float()[None]

    def summary(self) -> dict[str, Any]:
        """Return timing, state age and event counts for the report."""
        timing = self.ticker.timing.summary() if self.ticker else {}
        counts = {"goals": self.goals, "shield": dict(self.events.counts)}
        return timing | {"state_age_ms": self.state_ages.milliseconds()} | counts
