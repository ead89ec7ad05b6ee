"""The command thread: from the policy's goals to a stream of commands that the shield has limited."""

from __future__ import annotations

import gc
import logging
import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from real.clock import Ticker, prefer_realtime, reschedule, scheduling
from real.histogram import Histogram
from real.robots.base import Driver, JointReading, NotReady
from robot_rl.interface.pipeline import Pipeline
from robot_rl.interface.spec import RobotSpec

logger = logging.getLogger(__name__)
STALE_STATE, STALE_GOAL = "stale state", "stale goal"
"""Reasons not to move that may pass; only an arm then moves on."""


@dataclass(frozen=True)
class SafetyConfig:
    """When the loop stops trusting what it gets."""

    state_timeout: float = 0.05
    """Oldest joint state to move on, s."""
    goal_timeout: float = 0.15
    """Oldest goal of an arm to move on, s: three control periods at 20 Hz."""
    patience: float = 0.3
    """The same of a robot that walks, s: damping makes it fall, so a short gap is worth standing through."""
    start_mismatch: float = 0.2
    """Largest distance of the first goal after a start or a hold from where the arm can get in its time, rad; and of an
    arm from where it is held."""
    moved_patience: float = 0.1
    """Time for which an arm is further than that from where it is held until it is held where it is, s: one state may
    be wrong."""
    object_timeout: float = 0.2
    """Oldest object pose to post a goal from, s."""
    picture_timeout: float = 0.15
    """Oldest camera picture, s: three pictures at 20 Hz. Of a policy that sees the camera no goal is posted from an
    older one; of other cameras it is recorded again and stops nothing."""
    lost_timeout: float = 0.5
    """Age of the joint state, or of a picture that the policy sees, at which the episode ends with an error, s."""
    max_nonfinite: int = 3
    """Non-finite goals in a row that latch a stop."""
    tilt: float = 60.0
    """Of the trunk of a robot that walks, degrees: above, it has fallen, which latches a stop."""
    overspeed: float = 1.2
    """Share of a joint's speed limit; three states in a row above it latch the stop of a robot that walks."""
    guard_patience: float = 0.2
    """Time that the guard has to pass on the commands that stand a robot up, s; later, its damping latches a stop."""


@dataclass(frozen=True)
class Goal:
    """Where to be after `duration` seconds from `posted` on."""

    position: Tensor
    """(1, J) rad"""
    start: Tensor
    """(1, J) the goal before it, rad"""
    gripper: float
    """m"""
    posted: float
    """Monotonic time, s."""
    duration: float
    """s"""


@dataclass
class Events:
    """What the shield and the watchdogs did, by reason."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, reason: str, times: int = 1) -> None:
        if times:
            self.counts[reason] = self.counts.get(reason, 0) + times


class CommandLoop(threading.Thread):
    """Publishes at the robot's command rate from `arm()` until `close()`.

    Each tick moves along a straight line from the previous goal to the present one and through `Shield.follow`; the
    set-points of compliant joints are no path and jump to the goal, as in simulation. With a stale state, a stale goal
    or a latched stop an arm brakes and holds, and a robot that walks is damped; either goes on sending that, because a
    forward controller would keep the last command for ever anyway. What damps a robot on its legs latches a stop, but
    for a stale goal while it rests between episodes, and at its end: it sinks meanwhile, and full stiffness would tear
    it up again.
    """

    def __init__(self, driver: Driver, pipeline: Pipeline, safety: SafetyConfig | None = None):
        super().__init__(name="command-loop", daemon=True)
        self.driver, self.pipeline, self.safety = driver, pipeline, safety or SafetyConfig()
        self.events = Events()
        self.goals = 0
        """Number of goals posted, refused ones included."""
        self.stopped = ""
        """Reason of a latched stop, empty while running."""
        self.ticker: Ticker | None = None
        self.state_ages = Histogram()
        """Age of the joint state at the ticks, s."""
        self.error: BaseException | None = None
        self.note: Callable[[str, str], None] = lambda _event, _what: None
        """Hears of stops and their end, in whatever thread they happen."""
        self._goal: Goal | None = None
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._nonfinite = 0
        self._holding = ""
        self._fresh = True
        self._ticked = math.inf
        """When the last tick was, monotonic s."""
        self._together = math.inf
        """When a held arm was last where it is held, monotonic s."""
        self._before: tuple[Any, ...] = ()
        """How the interpreter changed threads, and this one was scheduled, before `arm`."""
        self.walks = pipeline.robot.base is not None
        self.limp = self.walks
        """A robot that walks is damped, and has to be stood up."""
        self.resting = False
        """Between episodes nobody owes goals: a robot on its legs sinks without a latch, and is stood up again."""
        self._risen = -math.inf
        """When the newest stretch of commands with stiffness began, monotonic s."""
        self._limits = Limits(pipeline.robot, self.safety)

    # ---- policy side -------------------------------------------------------------------------------------------
    def arm(self) -> None:
        """Seed the command with the measured position and start sending: an arm stands still, others stay limp."""
        self.driver.wait_ready()
        # The garbage collector takes tenths of a second over torch's objects, in which no state is read.
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
        sys.setswitchinterval(0.0002)  # the policy thread must not keep the interpreter for its default 5 ms
        # Nor may the garbage collector; episodes begin with a small round.
        gc.freeze()
        gc.disable()
        prefer_realtime(20)
        self.start()

    @property
    def goal(self) -> Tensor:
        """(1, J) the newest goal that the shield admitted, rad."""
        with self._lock:
            assert self._goal is not None, "arm() first"
            return self._goal.position

    @property
    def width(self) -> float:
        """Distance between the fingers that the newest goal asks for, m."""
        with self._lock:
            assert self._goal is not None, "arm() first"
            return self._goal.gripper

    def set_goal(self, position: Tensor, gripper: float, duration: float) -> bool:
        """Post a goal (1, J) to reach `duration` seconds from now; the shield decides what becomes of it.

        False if it was refused whole: not finite, too far from where the robot is, or a stop is latched.
        """
        self.check()
        self.goals += 1
        with self._lock:
            assert self._goal is not None, "arm() first"
            previous, width = self._goal.position, self._goal.gripper
        if not (math.isfinite(gripper) and bool(position.isfinite().all())):
            position, gripper = torch.full_like(position, math.nan), width  # one bad number spoils all of them
        if self._holding or self._fresh:
            previous = self._measured()
            reach = self.safety.start_mismatch + duration * self.pipeline.shield.velocity
            if bool(position.isfinite().all() and ((position - previous).abs() > reach).any()):
                self.events.add("start mismatch")
                if self.walks and not self.driver.dry_run:
                    self.stop("the robot is not where the policy takes it to be")
                return False
        admitted, events = self.pipeline.shield.admit(position, previous)
        for reason, mask in events.items():
            self.events.add(reason, int(mask.sum()))
        self._nonfinite = self._nonfinite + 1 if events["nonfinite"].any() else 0
        if self._nonfinite >= self.safety.max_nonfinite:
            self.stop(f"{self._nonfinite} non-finite goals in a row")
        with self._lock:
            self._goal = Goal(admitted, previous, gripper, time.monotonic(), duration)
        self._fresh = False  # the tick in between must not take the goal from before a hold for a stale one
        return not (self.stopped or events["nonfinite"].any())

    def stop(self, reason: str) -> None:
        """Latch a stop: brake and hold, or damp, until `reset_stop`."""
        if not self.stopped:
            self.stopped = reason
            logger.error("stopped: %s", reason)
            self.note("stop", reason)

    def reset_stop(self) -> None:
        """Clear a latched stop; the robot stays as it is until the next goal, and old goals are forgotten."""
        with self._lock:
            here = self._measured()
            assert self._goal is not None
            self._goal = Goal(here, here, self._goal.gripper, time.monotonic(), self.pipeline.tick)
        self._fresh = True
        self.note("reset", self.stopped)
        self.stopped = ""

    def check(self) -> None:
        """Raise what ended the thread, if anything did."""
        if self.error is not None:
            raise NotReady(f"the command loop ended: {self.error}") from self.error

    def close(self) -> None:
        """Brake, hold or damp, and end the thread; an arm's last command is the position where it stands."""
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
                while still < 3:  # closing: brake first, then send the place where the robot stands
                    self.ticker.wait()
                    self._tick(time.monotonic())
                    moving = float(self._velocity.abs().max()) > 1e-5
                    still = 0 if moving or not self._closing.is_set() else still + 1
        except BaseException as error:
            self.error = error
            logger.exception("the command loop ended")

    def _tick(self, now: float) -> None:
        reading = self.driver.reading()
        with self._lock:
            goal = self._goal
        assert goal is not None and reading is not None
        self.state_ages.add(now - reading.received)
        if self.walks and not (self.limp or self.stopped) and (event := self._broken(now, reading)):
            self.events.add(event)
            self.stop(event)
        reason = self._reason(now, reading, goal)
        if self.walks and not self.limp and reason in ((STALE_STATE,) if self.resting else (STALE_STATE, STALE_GOAL)):
            self.stop(reason)
        if reason and reason not in (self._holding, "closing", "idle"):
            self.events.add(reason)
        self._holding = reason
        if reason and self.walks:
            self._position, self._velocity = self._measured(), torch.zeros_like(self._velocity)
            self.limp = True
            self.driver.damp()
            return
        self._risen = now if self.limp else self._risen
        self.limp = False
        tick = self.pipeline.tick
        if now - self._ticked > self.safety.state_timeout:  # nobody sent anything: the arm has stopped meanwhile
            self._velocity = torch.zeros_like(self._velocity)
        self._ticked = now
        if reason:
            self._yield_to(now, reading)
            # Brake: the goal is wherever the command already is.
            at, speed = self._position, torch.zeros_like(self._velocity)
            self._width = self._width if reason == "stop" else goal.gripper
        else:
            self._together = now
            self._width = goal.gripper
            share = min(1.0, (now - goal.posted + tick) / goal.duration)
            share = 1.0 if self.pipeline.robot.compliant else share
            at = goal.start + share * (goal.position - goal.start)
            speed = (goal.position - goal.start) / goal.duration if share < 1 else torch.zeros_like(at)
        self._position, self._velocity = self.pipeline.shield.follow(self._position, self._velocity, at, speed, tick)
        self.driver.send(self._position[0].double().numpy(), self._width)

    def _yield_to(self, now: float, reading: JointReading) -> None:
        """Hold an arm where it is, once it rests, that was moved away from where it is held: by a person who guides it
        while its drives are off, say. They would tear it back when they come on again."""
        heard, rests = now - reading.received <= self.safety.state_timeout, not self._velocity.any()
        shield = self.pipeline.shield
        measured = torch.from_numpy(reading.position).float()[None].clamp(shield.low, shield.high)
        moved = bool(((measured - self._position).abs() > self.safety.start_mismatch).any())
        if not (heard and rests and moved):
            self._together = now
        elif now - self._together > self.safety.moved_patience:
            self.events.add("moved while held")
            self._position = measured

    def _broken(self, now: float, reading: JointReading) -> str:
        """What a robot on its legs must not go on with: a limit that is broken, or a guard that does not let it."""
        # While we do not hear the robot we would not hear the guard either, and are damping anyway.
        hears = now - reading.received <= self.safety.state_timeout
        asks = hears and now - self._risen > self.safety.guard_patience
        return self._limits.broken(reading) or (self.driver.objection(now) if asks else "")

    def _reason(self, now: float, reading: JointReading, goal: Goal) -> str:
        """Why the robot must not follow its goal; empty if it may."""
        if self.stopped:
            return "stop"
        if self._closing.is_set():
            return "closing"
        if now - reading.received > self.safety.state_timeout:
            return STALE_STATE
        if self.walks and self._fresh:
            return "idle"
        patience = self.safety.patience if self.walks else self.safety.goal_timeout
        return STALE_GOAL if now - goal.posted - goal.duration > patience else ""

    def _measured(self) -> Tensor:
        reading = self.driver.reading()
        assert reading is not None
        return torch.from_numpy(reading.position).float()[None]

    def summary(self) -> dict[str, Any]:
        """Timing and events for the report."""
        timing = self.ticker.timing.summary() if self.ticker else {}
        counts = {"goals": self.goals, "shield": dict(self.events.counts)}
        return timing | {"state_age_ms": self.state_ages.milliseconds()} | counts


class Limits:
    """What a robot that walks must not do, whoever asks for it."""

    def __init__(self, robot: RobotSpec, safety: SafetyConfig):
        self.upright = math.cos(math.radians(safety.tilt))
        self.speed = safety.overspeed * np.array([j.velocity for j in robot.joints])
        self._fast, self._seen = 0, -math.inf

    def broken(self, reading: JointReading) -> str:
        """The limit that the newest state breaks; empty if none."""
        if reading.upright < self.upright:
            return "tilt"
        if reading.received > self._seen:
            self._seen = reading.received
            self._fast = self._fast + 1 if (np.abs(reading.velocity) > self.speed).any() else 0
        return "joint speed" if self._fast >= 3 else ""
