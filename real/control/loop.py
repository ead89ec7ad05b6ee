"""Command thread: turn the policy's goals into a stream of commands limited by the shield."""

import gc
import logging
import math
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from real import clock
from real.control.follow import FOLLOWERS, Follower, Goal
from real.control.memory import lock_memory, unlock_memory
from real.control.stop import GAP, STALE_GOAL, STALE_STATE, STOPS, SafeStop
from real.control.timing import STALL, Histogram, Ticker, prefer_realtime, reschedule, scheduling
from real.drivers.driver import Driver
from real.drivers.state import JointReading, NotReady
from robot_rl.interface.command import GripperCommand, may_hold
from robot_rl.interface.driver import SafetyConfig
from robot_rl.interface.pipeline import Pipeline
from robot_rl.interface.shield import TICKS, as_bits
from robot_rl.interface.stopping import Motion

logger = logging.getLogger(__name__)


@dataclass
class Events:
    """Number of interventions of shield and watchdogs, by reason."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, reason: str, times: int = 1) -> None:
        if times:
            self.counts[reason] = self.counts.get(reason, 0) + times


class CommandLoop:
    """Publish commands at the robot's command rate from `arm()` until `close()`.

    Each tick the driver's `Follower` moves the set-point towards the goal, through `Shield.follow`. With a stale state,
    a stale goal or a latched stop, the driver's `SafeStop` holds the robot instead. Stopping a robot that sinks latches
    a stop; exceptions are `close` and a stale goal between episodes.
    """

    setpoint: Tensor
    """Set-point of the last command, (1, D)."""
    rate: Tensor
    """Rate of the set-point, (1, E)."""

    def __init__(self, driver: Driver, pipeline: Pipeline, safety: SafetyConfig | None = None):
        config = pipeline.robot.driver
        self.driver, self.pipeline, self.safety = driver, pipeline, safety or config.safety
        self.shield, self._kind = pipeline.shield, pipeline.controller.command
        self.follower: Follower = FOLLOWERS[config.follow](pipeline)
        self.safe_stop: SafeStop = STOPS[config.stop](self)
        self.events = Events()
        self.goals = 0
        """Number of posted goals, including refused ones."""
        self.changed = 0
        """Why the shield changed the newest goal, as bits, see `shield.REASONS`; 0: it did not."""
        self.stopped = ""
        """Reason of the latched stop; empty if no stop is latched."""
        self.ticker: Ticker | None = None
        self.state_ages = Histogram()
        """Age of the joint state at the ticks, s."""
        self.stall = -math.inf, 0.0
        """End, s, and duration, s, of this thread's last stall."""
        self.error: BaseException | None = None
        self.note: Callable[[str, Any], None] = lambda _event, _what: None
        """Called with an event and its details at stops and resets, from any thread."""
        self.watchdog: Callable[[float], str] = lambda _now: ""
        """Called in each tick with the time, s; returns a reason to latch a stop, or an empty text."""
        self.record: Callable[[float, JointReading], None] | None = None
        """Called at the end of each tick with its time, s, and the state that it used."""
        self.resting = False
        """No goals are expected between episodes: for lack of goals, a robot that sinks then does so without a stop."""
        self.sent_width = 0.0
        """Finger distance of the last command, m."""
        self._goal: Goal | None = None
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._task: clock.Task | None = None
        self._still = 0
        """Number of last ticks in which a closing loop has been at rest."""
        self._nonfinite = 0
        self._recover_by = -math.inf
        """Time by which the robot must have recovered for a reset stop to be cleared, s."""
        self.holding = ""
        """Reason for which the robot held in the last tick; empty if it followed the goal."""
        self._fresh = True
        """No goal was accepted since `arm` or `reset_stop`."""
        self._ticked = math.inf
        """Time of the last tick, s."""
        self._gaps = 0
        """Number of gaps in the commands, see `_paused`."""
        self._arrived: tuple[Any, ...] = (None,) * 4
        """Set-point, its rate, the goal and its rate for which `Shield.follow` changes nothing."""
        self._before: tuple[Any, ...] = ()
        """Thread switch interval, s, and scheduling of the calling thread before `arm`."""

    # ---- policy side -------------------------------------------------------------------------------------------
    def arm(self) -> None:
        """Start sending commands: an arm holds its measured position, a legged robot stays damped."""
        # Collecting torch's objects takes tenths of a second, during which no state is read.
        gc.collect()
        lock_memory()
        reading = self.driver.state.next_reading(self.safety.lost_timeout)
        if reading is None:
            raise NotReady("no joint state has arrived; is the robot's driver still running?")
        self.setpoint = self.measured()
        _, change = self.shield.path(self.setpoint, self.setpoint, 0.0)
        self.rate = torch.zeros_like(change)
        # A gripper that may hold something goes on pressing.
        self.sent_width = 0.0 if may_hold(self.pipeline.robot, reading.gripper) else reading.gripper
        with self._lock:
            now, tick = clock.now(), self.pipeline.tick
            self._goal = Goal(self.setpoint, self.setpoint, self.sent_width, now, tick, self._gaps)
        self._before = (sys.getswitchinterval(), scheduling())
        sys.setswitchinterval(0.0002)  # the default of 5 ms lets the policy thread delay commands
        # Garbage is collected at the start of episodes only.
        gc.freeze()
        gc.disable()
        prefer_realtime(20)
        self._fresh, self._ticked = True, math.inf
        self._look(clock.now(), reading)
        self._closing.clear()
        self._start()

    def _start(self) -> None:
        def prepare() -> None:
            prefer_realtime()
            torch.set_num_threads(1)

        self.ticker, self._still = Ticker(self.pipeline.tick), 0
        self._task = clock.repeat(self.ticker, self._step, "command-loop", prepare)

    @property
    def armed(self) -> bool:
        """Return whether commands are being sent."""
        return self._task is not None and self._task.is_alive()

    @property
    def sinks(self) -> bool:
        """Return whether the robot sinks to the ground when it stops."""
        return self.safe_stop.sinks

    @property
    def is_damped(self) -> bool:
        """Return whether the robot sinks and is damped now, so that it has to stand up."""
        return self.safe_stop.is_damped

    @property
    def goal(self) -> Tensor:
        """Return the newest accepted goal (1, D)."""
        return self._newest().setpoint

    @property
    def width(self) -> float:
        """Return the finger distance of the newest goal, m."""
        return self._newest().gripper

    def _newest(self) -> Goal:
        with self._lock:
            assert self._goal is not None, "arm() first"
            return self._goal

    def set_goal(self, values: Tensor, gripper: float, duration: float) -> bool:
        """Post a goal (1, D), in units of the command's kind, to reach in `duration` s. Return False if the goal is
        non-finite or too far away, or if a stop is latched."""
        self.check()
        self.goals, self.changed = self.goals + 1, 0
        gaps, newest = self._gaps, self._newest()  # first: a gap may begin during this call
        previous, width, joints = newest.setpoint, newest.gripper, self._joints()
        if not (math.isfinite(gripper) and bool(values.isfinite().all())):
            values, gripper = torch.full_like(values, math.nan), width  # reject all of it
        if self.holding or self._fresh or self._outdated(newest):
            previous = self.shield.hold(joints)
            if bool(values.isfinite().all()) and self.shield.mismatch(values, joints, duration, self.safety):
                self.events.add("start mismatch")
                if self.sinks and not self.driver.dry_run:
                    self.stop("the robot is not where the policy expects it")
                return False
        motion = Motion(self.setpoint, self.rate, duration / TICKS, TICKS)
        admitted, events = self.shield.admit(values, previous, joints, motion)
        for reason, mask in events.items():
            self.events.add(reason, int(mask.sum()))
        self.changed = int(as_bits(events))
        refused = any(bool(events[reason].any()) for reason in self.shield.refusals if reason in events)
        self._nonfinite = self._nonfinite + 1 if events["nonfinite"].any() else 0
        if self._nonfinite >= self.safety.max_nonfinite:
            self.stop(f"{self._nonfinite} non-finite goals in a row")
        with self._lock:
            self._goal = Goal(admitted, previous, gripper, clock.now(), duration, gaps, refused)
        self._fresh = False  # only now: a tick before it would report the old goal as stale
        return not (self.stopped or events["nonfinite"].any())

    def stop(self, reason: str) -> None:
        """Latch a stop: until `reset_stop`, the robot stops as its driver says."""
        if not self.stopped or self.recovering:
            self.stopped, self._recover_by = reason, -math.inf
            logger.error("stopped: %s", reason)
            self.note("stop", reason)

    def explain(self, cause: str) -> None:
        """Append the cause to the reason of the latched stop."""
        self.stopped = f"{self.stopped}: {cause}"
        logger.error("stopped: %s", self.stopped)
        self.note("cause", self.stopped)

    def reset_stop(self) -> None:
        """Clear a latched stop, of a robot that has to recover once it has, and forget old goals; until the next goal,
        an arm holds and a legged robot is damped."""
        with self._lock:
            assert self._goal is not None
            at = self.measured()
            self._goal = Goal(at, at, self._goal.gripper, clock.now(), self.pipeline.tick, self._gaps)
        self._fresh, now = True, clock.now()
        self.driver.recover()
        self.note("reset", self.stopped)
        if self.driver.recovery and self.driver.objection(now):
            self._recover_by = now + self.driver.recovery
        else:
            self.stopped = ""

    @property
    def recovering(self) -> bool:
        """Return whether a stop was reset and the robot has not recovered yet."""
        return math.isfinite(self._recover_by)

    def check(self) -> None:
        """Raise NotReady if an error ended the thread."""
        if self.error is not None:
            raise NotReady(f"the command loop ended: {self.error}") from self.error

    def close(self) -> None:
        """Stop the robot and end the thread. The last command to an arm is the position where it stopped. `arm` may
        follow."""
        self._closing.set()
        if self._task is not None:
            self._task.wait(2.0)
        if self._before:
            interval, scheduled = self._before
            gc.unfreeze()
            gc.enable()
            sys.setswitchinterval(interval)
            reschedule(scheduled)
            unlock_memory()
            self._before = ()

    # ---- command side ------------------------------------------------------------------------------------------
    def _step(self, late: float) -> bool:
        """Send a command `late` s late; return whether another one follows."""
        try:
            with torch.inference_mode():
                if late > STALL:
                    self.stall = clock.now(), late
                    self.events.add("stood still")
                    self.note("stall", {"process": "this", "seconds": round(late, 3)})
                self._tick(clock.now())
        except BaseException as error:
            self.error = error
            logger.exception("the command loop ended")
            self._rest()
            return False
        rests = self._closing.is_set() and not self.shield.moving(self.setpoint, self.rate)
        self._still = self._still + 1 if rests else 0
        if self._still < 3:  # closing: brake first, then send the resting position
            return True
        self._rest()
        return False

    def _rest(self) -> None:
        try:
            self.driver.rest()
        except Exception:
            logger.exception("the last command could not be sent")

    def _tick(self, now: float) -> None:
        reading, goal = self.driver.reading(), self._newest()
        assert reading is not None
        self.state_ages.add(now - reading.received)
        self._look(now, reading)
        if self._paused(now):
            self._gaps += 1
            self.rate = torch.zeros_like(self.rate)  # meanwhile the arm came to rest at the last command
        self._ticked = now
        reason = self._reason(now, reading, goal)
        stale = (STALE_STATE,) if self.resting else (STALE_STATE, STALE_GOAL)
        if self.sinks and not self.is_damped and reason in stale:
            self.stop(reason)
        if reason and reason not in (self.holding, "closing", "idle"):
            self.events.add(reason)
            if reason in (STALE_STATE, STALE_GOAL, GAP):
                self.note("hold", reason)
        self.holding = reason
        if reason:
            self.safe_stop.hold(now, reading, goal, reason)
        else:
            self.safe_stop.follows(now)
            at = self.setpoint, self.rate
            moving = self.follower.brake(*at) if goal.refused else self.follower.follow(goal, now, *at)
            self.advance(*moving, goal.gripper)
        if self.record is not None:
            self.record(now, reading)

    def _look(self, now: float, reading: JointReading) -> None:
        """Latch a stop if there is a reason to; clear it if the robot has recovered after a reset."""
        if self.recovering:
            fault = self.driver.objection(now)
            if not fault:
                self.stopped, self._recover_by = "", -math.inf
            elif now > self._recover_by:
                self.stop(fault)
        if not self.stopped and (event := self.watchdog(now) or self.safe_stop.violated(now, reading)):
            self.events.add(event)
            self.stop(event)

    def advance(self, at: Tensor, rate: Tensor, width: float) -> None:
        """Move the set-point through the shield towards a goal `at` (1, D) that moves at `rate` (1, E), and send it."""
        before = self.setpoint, self.rate
        if not all(new is old for new, old in zip((*before, at, rate), self._arrived, strict=True)):
            self.setpoint, self.rate = self.shield.follow(*before, at, rate, self.pipeline.tick)
            if torch.equal(self.setpoint, before[0]) and torch.equal(self.rate, before[1]):
                self._arrived = self.setpoint, self.rate, at, rate
        self.sent_width = width
        gripper = GripperCommand.of(self.pipeline.robot, width)
        self.driver.send(self._kind(self.setpoint), self.rate, gripper)

    def _reason(self, now: float, reading: JointReading, goal: Goal) -> str:
        """Return the reason not to follow the goal; empty if there is none."""
        if self.stopped:
            return "stop"
        if self._closing.is_set():
            return "closing"
        if now - reading.received > self.safety.state_timeout:
            return STALE_STATE
        if self.sinks and self._fresh:
            return "idle"
        if self._outdated(goal):
            return GAP
        return STALE_GOAL if now - goal.posted - goal.duration > self.safety.goal_timeout else ""

    def _paused(self, now: float) -> bool:
        """Return whether the commands have just paused: too many deadlines were missed in a row, or for too long."""
        missed = self.ticker.timing.run if self.ticker else 0
        return missed >= self.safety.max_misses or now - self._ticked > self.safety.max_gap

    def _outdated(self, goal: Goal) -> bool:
        """Return whether a goal is older than a gap in an arm's commands. Legs that held still would topple the robot;
        its guard damps it."""
        return goal.gaps < self._gaps and not self.sinks

    def _joints(self) -> Tensor:
        reading = self.driver.reading()
        assert reading is not None
        return torch.from_numpy(reading.position).float()[None]

    def measured(self) -> Tensor:
        """Return the set-point (1, D) that keeps the robot where it is measured."""
        return self.shield.hold(self._joints())

    def summary(self) -> dict[str, Any]:
        """Return timing, state age and event counts for the report."""
        timing = self.ticker.timing.summary() if self.ticker else {}
        counts = {"goals": self.goals, "shield": dict(self.events.counts)}
        return timing | {"state_age_ms": self.state_ages.milliseconds()} | counts
