"""The command thread: streams, watchdogs, stops and limits of an arm; damping of a legged robot."""

import gc
import math
import os
import sys
import threading
import time as real_time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from real import clock
from real.control import loop as loop_module
from real.control.loop import CommandLoop
from real.control.timing import Ticker
from real.drivers.state import JointReading, NotReady
from real.drivers.unitree import TrunkReading
from robot_rl.interface.command import Command, GripperCommand
from robot_rl.interface.pipeline import Pipeline
from robot_rl.interface.shield import JointShield, ramp
from robot_rl.interface.state import RobotState
from sim.tasks import tasks

PIPELINE = Pipeline(tasks.get("panda-lift").interface)
HOME = torch.tensor(PIPELINE.robot.home)[None]
TICK = PIPELINE.tick
PERIOD = 1 / PIPELINE.interface.controller.rate
TICKS = round(PERIOD / TICK)
LEGGED = Pipeline(tasks.get("go2-velocity").interface)
STEP_PERIOD = 0.02
STANCE = torch.tensor(LEGGED.robot.home)[None] + 0.03


class FakeDriver:
    """Robot in memory that jumps to each command; `clock` stamps its readings unless `received` is set.

    In `sent`, None is damping.
    """

    dry_run, recovery = False, 3.0

    def __init__(self, pipeline: Pipeline, clock: Callable[[], float], position: Any = None):
        self.clock, self.legged = clock, pipeline.robot.base is not None
        self.position = np.array(pipeline.robot.home if position is None else position, np.float64)
        self.velocity, self.gripper, self.tilt = np.zeros(len(self.position)), 0.05, 0.0
        self.received: float | None = None
        self.sent: list[Any] = []
        self.widths: list[float] = []
        self.follows, self.guard = True, ""
        self.arrived = threading.Condition()
        self.state = SimpleNamespace(next_reading=lambda timeout: self.reading(), jumps=SimpleNamespace(count=0))

    def recover(self) -> None:
        pass

    def objection(self, now: float) -> str:
        return self.guard

    def reading(self) -> JointReading:
        received = self.clock() if self.received is None else self.received
        joints = self.position.copy(), self.velocity.copy(), self.gripper, received
        if not self.legged:
            return JointReading(*joints)
        quat = np.array([math.cos(self.tilt / 2), math.sin(self.tilt / 2), 0.0, 0.0])
        return TrunkReading(*joints, quat, np.zeros(3), np.zeros(4))

    def send(self, command: Command, rate: torch.Tensor, gripper: GripperCommand) -> None:
        position = command.values[0].double().numpy()
        with self.arrived:
            self.sent.append(position.copy())
            self.widths.append(gripper.width)
            if self.follows:
                self.position = position.copy()
            self.arrived.notify_all()

    def rest(self) -> None:
        """Robot that holds its last position."""

    def damp(self) -> None:
        self.sent.append(None)

    def wait_sent(self, holds: Callable[[], bool]) -> None:
        with self.arrived:
            assert self.arrived.wait_for(holds, 30)


class Bench:
    """The loop without its thread: the test runs each tick under its own clock."""

    def __init__(self, patch: pytest.MonkeyPatch, pipeline: Pipeline = PIPELINE, position: Any = None):
        self.now, self.tick = 100.0, pipeline.tick
        patch.setattr(clock, "now", lambda: self.now)
        self.driver = FakeDriver(pipeline, lambda: self.now, position)
        self.loop = CommandLoop(self.driver, pipeline)
        self.ticker = self.loop.ticker = Ticker(self.tick, SimpleNamespace(now=lambda: self.now))
        patch.setattr(self.loop, "_start", lambda: None)
        patch.setattr(loop_module, "prefer_realtime", lambda *_: False)
        patch.setattr(loop_module, "gc", SimpleNamespace(collect=int, freeze=int, disable=int))
        self.loop.arm()

    def run(self, seconds: float) -> list[bool]:
        """Return which commands of this period are damping."""
        before = len(self.driver.sent)
        with torch.inference_mode():
            for _ in range(round(seconds / self.tick)):
                self.now = max(self.now, self.ticker.next)
                self.ticker.tick()
                self.loop._tick(self.now)
        return [command is None for command in self.driver.sent[before:]]

    def goal(self, goal: torch.Tensor, seconds: float = PERIOD) -> None:
        """Post a goal for the next control period, and run."""
        self.loop.set_goal(goal, 0.08, PERIOD)
        self.run(seconds)

    def move(self, seconds: float = 0.3) -> None:
        """Run a motion of 1 rad/s for a part of its half second."""
        self.loop.set_goal(HOME, 0.08, PERIOD)
        self.loop.set_goal(turned(0.5), 0.08, 0.5)
        self.run(seconds)
        assert self.speed > 0.5

    def walk(self, seconds: float) -> list[bool]:
        """Run with a policy that posts a goal in every control period; return which commands are damping."""
        damped = []
        for _ in range(round(seconds / STEP_PERIOD)):
            self.loop.set_goal(STANCE, 0.0, STEP_PERIOD)
            damped += self.run(STEP_PERIOD)
        return damped

    @property
    def sent(self) -> torch.Tensor:
        return torch.from_numpy(np.stack(self.driver.sent))

    @property
    def speed(self) -> float:
        return float((self.sent[-1] - self.sent[-2]).abs().max() / TICK)

    @property
    def counts(self) -> dict[str, int]:
        return self.loop.events.counts


@pytest.fixture
def b(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


@pytest.fixture
def legged(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch, LEGGED)


def turned(angle: float) -> torch.Tensor:
    """Return home with joint 1 turned; the tool stays inside the workspace up to 0.7 rad."""
    goal = HOME.clone()
    goal[0, 0] += angle
    return goal


# ---- seeding -----------------------------------------------------------------------------------------------------
def test_starts_at_the_measured_position_and_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = HOME[0] + torch.tensor([0.1, -0.1, 0.05, 0.1, 0.0, -0.1, 0.2])
    b = Bench(monkeypatch, position=measured.tolist())
    b.run(0.5)
    assert (b.sent - measured).abs().max() < 1e-6
    assert b.driver.widths == [0.0] * 100, "a half-open gripper may hold something: it goes on pressing"


def test_first_goal_far_from_the_arm_is_refused(b: Bench) -> None:
    """It comes from a policy that observes another robot."""
    assert not b.loop.set_goal(turned(0.6), 0.08, PERIOD)
    b.run(0.15)
    assert b.counts["start mismatch"] == 1
    assert (b.sent - HOME).abs().max() < 1e-6


# ---- following ---------------------------------------------------------------------------------------------------
def test_stream_of_goals_is_followed_as_in_simulation(b: Bench) -> None:
    """`sim.env` follows a ramp through each goal; the loop sends the same within 4 mrad.

    At each goal the loop does not know yet that another one follows, and brakes for one tick.
    """
    position, velocity, goal = HOME, torch.zeros_like(HOME), HOME
    simulated = []
    for k in range(1, 11):
        b.goal(turned(0.02 * k))
        path, step = ramp(goal, turned(0.02 * k), TICKS)
        for t in range(TICKS):
            position, velocity = PIPELINE.shield.follow(position, velocity, path[t], step / TICK, TICK)
            simulated.append(position[0])
        goal = turned(0.02 * k)
    assert (b.sent - torch.stack(simulated)).abs().max() < 4e-3
    assert (b.sent[50:, 0].diff() / TICK - 0.4).abs().max() < 0.061, "no stop and go between goals"
    assert not b.counts


# ---- watchdogs ---------------------------------------------------------------------------------------------------
def test_stale_state_brakes_holds_and_is_counted_once(b: Bench) -> None:
    b.move(0.2)
    b.driver.received = b.now  # the driver falls silent
    b.run(0.05)
    assert "stale state" not in b.counts, "50 ms are allowed"
    b.run(0.3)
    assert b.counts["stale state"] == 1
    held = b.sent[-1]
    b.run(0.2)
    assert (b.sent[-20:] - held).abs().max() < 1e-6 and len(b.driver.sent) == 150, "keeps sending the held position"
    b.driver.received = None
    b.goal(turned(float(held[0]) + 0.01), 0.1)
    assert b.sent[-1][0] == pytest.approx(float(held[0]) + 0.01, abs=1e-4), "moves again with new states"


def test_stale_goal_holds(b: Bench) -> None:
    b.goal(turned(0.02), PERIOD + 0.14)
    assert "stale goal" not in b.counts
    b.run(0.05)
    assert b.counts == {"stale goal": 1}
    held = b.sent[-1]
    b.run(0.3)
    assert (b.sent[-60:] - held).abs().max() < 1e-6
    b.goal(turned(0.03))
    assert b.counts == {"stale goal": 1}
    b.run(0.5)
    assert b.counts == {"stale goal": 2}, "a second silence is a second event"


def test_path_after_a_hold_begins_at_the_measured_position(b: Bench) -> None:
    """For example after a push."""
    b.run(0.5)
    b.driver.follows = False
    b.driver.position[0] += 0.05
    b.loop.set_goal(turned(0.06), 0.08, 1.0)
    b.run(0.5)
    assert b.sent[-1][0] == pytest.approx(0.055, abs=1e-3), "halfway from 0.05 to 0.06"


def test_stopped_arm_stays_at_its_command_if_its_encoder_jumps(b: Bench) -> None:
    """The states are refused at first, and accepted once an arm could have moved so far."""
    b.loop.stop("operator")
    b.driver.follows = False
    b.run(0.1)
    b.driver.received, b.driver.state.jumps.count = b.now, 50
    b.run(0.3)
    b.driver.received = None
    b.driver.position[0] += 1.0
    b.run(1.0)
    assert (b.sent - HOME).abs().max() < 1e-6, "no jump of the command"


def test_stopped_arm_moved_by_hand_is_held_there(b: Bench) -> None:
    """After its own brake was used and its drives come back, the command must not jerk it back."""
    b.loop.stop("operator")
    b.driver.follows = False
    b.run(0.1)
    home = b.driver.position.copy()
    for error in (2.5, -2.5):
        b.driver.position[1] += error
        b.run(0.05)
        b.driver.position[:] = home
        b.run(0.1)
    assert (b.sent - HOME).abs().max() < 1e-6, "one state, or ten, may be wrong"
    for angle, held in ((0.15, 0.0), (0.6, 0.6)):
        b.driver.position[0] = float(HOME[0, 0]) + angle
        b.run(0.2)
        assert b.sent[-1][0] == pytest.approx(float(HOME[0, 0]) + held, abs=1e-6)
    assert b.counts == {"stop": 1, "moved while held": 1}
    b.driver.received = b.now  # no more states
    b.run(0.1)
    b.driver.position[0] = float(HOME[0, 0]) - 0.6
    b.run(0.3)
    assert b.sent[-1][0] == pytest.approx(float(HOME[0, 0]) + 0.6, abs=1e-6), "the last known position"
    b.driver.received, b.driver.position[0] = None, float(PIPELINE.robot.limit("high")[0])
    b.run(0.2)
    assert b.sent[-1][0] == pytest.approx(float(PIPELINE.shield.high[0]), abs=1e-6), "within the limits of commands"


def test_after_a_suspension_the_command_starts_at_rest(b: Bench) -> None:
    """SIGSTOP in full motion: the arm has come to rest at the last command."""
    b.move()
    last = b.sent[-1]
    b.now += 5.0
    b.run(TICK)
    step = PIPELINE.shield.acceleration.max() * TICK * TICK
    assert float((b.sent[-1] - last).abs().max()) <= float(step) + 1e-6
    b.run(0.3)
    assert (b.sent[-1] - last).abs().max() < 1e-3, "its goal is old"


def late(b: Bench, periods: float) -> None:
    """Run a tick that is late by this many periods."""
    b.now = b.ticker.next + periods * TICK
    b.run(TICK)


def test_arm_holds_after_five_missed_deadlines_until_a_new_goal(b: Bench) -> None:
    b.move()
    late(b, 4.5)
    assert b.speed > 0.5 and not b.counts, "four may be missed"
    last = b.sent[-1]
    b.now = b.ticker.next + 5.5 * TICK
    assert b.loop.set_goal(turned(0.4), 0.08, PERIOD), "accepted before the loop knows of its gap"
    b.run(0.1)
    assert (b.sent[-20:] - last).abs().max() < 1e-6, "at rest, and no goal from before the gap's end is followed"
    assert b.counts == {"command gap": 1} and b.loop.holding == "command gap"
    assert not b.loop.set_goal(turned(float(last[0]) + 0.6), 0.08, PERIOD), "checked against the measured posture"
    b.goal(turned(float(last[0]) + 0.01), 0.15)
    assert b.sent[-1][0] == pytest.approx(float(last[0]) + 0.01, abs=1e-4)
    assert b.counts == {"command gap": 1, "start mismatch": 1} and not b.loop.stopped


def test_arm_holds_while_each_tick_is_late(b: Bench) -> None:
    b.move(0.1)
    for _ in range(4):
        late(b, 1.5)
        assert b.speed > 0.1
    for k in range(10):
        b.loop.set_goal(turned(0.02 * k), 0.08, PERIOD)
        late(b, 1.5)
    assert (b.sent[-9:] - b.sent[-1]).abs().max() < 1e-6 and b.counts == {"command gap": 1}
    held = float(b.sent[-1][0])
    b.goal(turned(held + 0.01), 0.15)
    assert b.sent[-1][0] == pytest.approx(held + 0.01, abs=1e-4), "on time again"


@pytest.mark.parametrize(("seconds", "holds"), [(0.095, False), (0.106, True)])
def test_one_long_gap_holds_a_slow_loop_too(b: Bench, seconds: float, holds: bool) -> None:
    b.loop.safety = replace(b.loop.safety, max_misses=1000)
    b.move()
    b.now = b.ticker.next - TICK + seconds
    b.run(TICK)
    assert (b.loop.holding == "command gap") == holds and b.counts == ({"command gap": 1} if holds else {})


# ---- not finite --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_three_consecutive_nonfinite_goals_latch_a_stop(b: Bench, bad: float) -> None:
    goal = HOME.clone()
    goal[0, 3] = bad
    for _ in range(2):
        b.goal(goal)
    b.goal(turned(0.01))
    assert not b.loop.stopped, "two, and then a good one"
    before = b.sent[-1]
    for _ in range(3):
        assert not b.loop.stopped
        b.goal(goal)
    assert "non-finite" in b.loop.stopped
    assert b.counts["nonfinite"] == 5 and b.counts["stop"] >= 1
    assert b.sent.isfinite().all() and (b.sent[-10:] - before).abs().max() < 3e-3


# ---- stop --------------------------------------------------------------------------------------------------------
def test_stop_brakes_and_is_latched_until_reset(b: Bench) -> None:
    b.move()
    b.loop.stop("operator")
    b.run(0.3)
    b.loop.stop("operator again")
    held = b.sent[-1]
    for _ in range(5):
        assert not b.loop.set_goal(turned(float(held[0]) - 0.1), 0.01, PERIOD)
        b.run(PERIOD)
    assert (b.sent[-50:] - held).abs().max() < 1e-6, "no goal moves a stopped robot"
    assert b.driver.widths[-1] == 0.08, "nor its gripper"
    assert b.loop.stopped == "operator" and b.counts["stop"] == 1
    b.run(0.5)
    b.loop.reset_stop()
    b.run(0.2)
    assert (b.sent[-40:] - held).abs().max() < 1e-6, "stays where it is until the next goal"
    b.goal(turned(float(held[0]) + 0.01), 0.1)
    assert b.sent[-1][0] == pytest.approx(float(held[0]) + 0.01, abs=1e-4)


@pytest.mark.parametrize("seconds", [0.02, 0.5, 2.9])
def test_reset_is_over_once_the_robot_has_recovered(b: Bench, seconds: float) -> None:
    b.move(0.1)
    b.driver.guard = "the robot stopped: reflex"
    b.run(0.3)
    b.loop.reset_stop()
    b.run(seconds)
    assert b.loop.recovering and b.loop.stopped == "the robot stopped: reflex"
    b.loop.set_goal(turned(0.1), 0.08, PERIOD)
    assert b.speed == 0, "it does not move before"
    b.driver.guard = ""
    b.run(TICK)
    assert not b.loop.stopped and not b.loop.recovering
    b.run(1.0)
    assert not b.loop.stopped and b.speed == 0, "goals from before are forgotten"
    b.goal(torch.from_numpy(b.driver.position).float()[None], 0.1)
    assert not b.loop.holding


def test_stop_stays_if_the_robot_does_not_recover(b: Bench) -> None:
    b.driver.guard = "the robot stopped: user stop"
    b.run(0.1)
    b.loop.reset_stop()
    b.driver.guard = "the robot stopped: recovery refused"
    b.run(3.1)
    assert not b.loop.recovering and b.loop.stopped == "the robot stopped: recovery refused"
    b.driver.guard = ""
    b.run(1.0)
    assert b.loop.stopped, "only another reset clears it"
    b.loop.reset_stop()
    assert not b.loop.stopped


def test_stop_while_the_robot_recovers_is_another_stop(b: Bench) -> None:
    b.driver.guard = "the robot stopped: reflex"
    b.run(0.1)
    b.loop.reset_stop()
    b.loop.stop("operator")
    b.driver.guard = ""
    b.run(0.1)
    assert b.loop.stopped == "operator"


def test_arm_whose_robot_is_stopped_at_the_start_is_stopped(b: Bench) -> None:
    b.driver.guard = "the robot stopped: reflex"
    b.loop.arm()
    assert b.loop.stopped == "the robot stopped: reflex"


def test_goals_from_before_a_reset_are_forgotten(b: Bench) -> None:
    b.loop.stop("operator")
    b.run(0.1)
    b.goal(turned(0.1), 2 * TICK)
    b.loop.reset_stop()
    b.run(0.2)
    assert (b.sent - HOME).abs().max() < 1e-6


# ---- limits ------------------------------------------------------------------------------------------------------
STEP = st.tuples(
    st.sampled_from(["near", "far", "nan", "outside", "same"]),
    st.integers(0, 2**31),
    st.sampled_from([TICK, PERIOD, 0.2]),  # duration
    st.sampled_from([0.0, TICK, PERIOD, 0.3]),  # pause before the next goal
    st.sampled_from(["", "", "", "stop", "reset", "silence", "voice"]),
)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.lists(STEP, min_size=1, max_size=10))
def test_every_command_is_within_every_limit(steps: list[tuple[str, int, float, float, str]]) -> None:
    shield = PIPELINE.shield
    with pytest.MonkeyPatch.context() as patch:
        b = Bench(patch)
        b.loop.set_goal(HOME, 0.08, PERIOD)
        for kind, seed, duration, pause, event in steps:
            rng = torch.Generator().manual_seed(seed)
            share = torch.rand(1, 7, generator=rng)
            goal = {
                "near": HOME + 0.1 * (2 * share - 1),
                "far": shield.low + share * (shield.high - shield.low),
                "nan": torch.where(share < 0.3, float("nan"), HOME),
                "outside": HOME + 40 * (share - 0.5),
                "same": HOME,
            }[kind]
            if event == "stop":
                b.loop.stop("test")
            elif event == "reset":
                b.loop.reset_stop()
            elif event:
                b.driver.received = b.now if event == "silence" else None
            b.loop.set_goal(goal, 0.08, duration)
            b.run(pause)
        b.run(0.1)
        sent = torch.cat([HOME.double(), HOME.double(), b.sent])
    assert sent.isfinite().all()
    # Braking overshoots by at most an eighth of a step of speed (see test_shield).
    rest = float((shield.acceleration * TICK * TICK).max()) / 8 + 1e-6
    assert (sent >= shield.low - rest).all() and (sent <= shield.high + rest).all()
    speed = sent.diff(dim=0) / TICK
    assert (speed.abs() <= shield.velocity * 1.001 + 2e-4).all()  # commands are rounded to float32
    assert (speed.diff(dim=0).abs() / TICK <= shield.acceleration * 1.001 + 0.1).all()


def test_an_arm_that_is_pushed_into_the_table_brakes_before_it() -> None:
    pipeline = Pipeline(tasks.get("ur5e-reach").interface)
    shield, period = pipeline.shield, 1 / pipeline.interface.controller.rate
    assert isinstance(shield, JointShield) and shield.stopping and shield.stopping.clearance
    with pytest.MonkeyPatch.context() as patch:
        b = Bench(patch, pipeline)
        for _ in range(20):
            joints = b.loop.measured()
            state = RobotState(joints, torch.zeros_like(joints), torch.zeros(1, 3))
            target = pipeline.target(state, torch.tensor([[1.0, -1.0, -1.0]]))
            b.loop.set_goal(target.command.values, 0.0, period)
            before = b.loop.rate
            b.run(period)
            if b.loop._newest().refused and before.abs().max() > 0.2:
                along = torch.nn.functional.cosine_similarity(before, b.loop.rate)
                assert float(along) > 0.999 and b.loop.rate.norm() < before.norm(), "straight, and slower"
        sent = b.sent.float()
    chain = shield.stopping.kinematics.chain(sent)
    assert shield.stopping.clearance(*chain[2:]).min() > 0
    assert b.loop.events.counts.get("collision", 0) + b.loop.events.counts.get("workspace", 0) > 2
    low, high = (end[:, None] for end in shield.stopping.box)
    assert ((chain[0] > low - 0.005) & (chain[0] < high + 0.005)).all()


# ---- the thread itself -------------------------------------------------------------------------------------------
@pytest.fixture
def running() -> Iterator[CommandLoop]:
    loop = CommandLoop(FakeDriver(PIPELINE, real_time.monotonic), PIPELINE)
    loop.arm()
    yield loop
    loop.close()


def test_close_in_full_motion_ends_at_rest(running: CommandLoop) -> None:
    driver: Any = running.driver
    running.set_goal(HOME, 0.08, PERIOD)
    running.set_goal(turned(0.6), 0.08, 0.6)
    driver.wait_sent(lambda: len(driver.sent) > 2 and driver.sent[-1][0] - driver.sent[-2][0] > 0.8 * TICK)
    running.close()
    assert not running.armed and running.error is None
    last = np.stack(driver.sent[-3:])
    assert np.abs(np.diff(last, axis=0)).max() < 1e-6, "the last commands are equal"
    shield = PIPELINE.shield
    speed = torch.from_numpy(np.stack(driver.sent)).diff(dim=0) / TICK
    assert (speed.diff(dim=0).abs() / TICK <= shield.acceleration * 1.001 + 0.1).all(), "braked within limits"


def test_close_may_be_called_twice_and_before_arm(running: CommandLoop) -> None:
    running.close()
    running.close()
    assert not running.armed and running.error is None
    CommandLoop(FakeDriver(PIPELINE, real_time.monotonic), PIPELINE).close()


def test_close_restores_scheduling_and_garbage_collection() -> None:
    loop = CommandLoop(FakeDriver(PIPELINE, real_time.monotonic), PIPELINE)

    def process() -> tuple[object, ...]:
        return gc.isenabled(), gc.get_freeze_count(), sys.getswitchinterval(), os.sched_getscheduler(0)

    before = process()
    loop.arm()
    loop.close()
    assert process() == before


def test_error_in_the_thread_is_raised_at_the_next_goal(running: CommandLoop) -> None:
    running.driver.send = Mock(side_effect=OSError("the cable is out"))
    assert running._task.wait(30)
    with pytest.raises(NotReady, match="the cable is out"):
        running.set_goal(HOME, 0.08, PERIOD)


# ---- legged robots -----------------------------------------------------------------------------------------------
def test_robot_is_damped_until_the_first_goal_to_which_its_set_points_jump(legged: Bench) -> None:
    damped = legged.run(1.0)
    assert all(damped) and legged.loop.is_damped and not legged.counts
    sent = legged.walk(0.1)
    assert not any(sent) and not legged.loop.is_damped
    assert np.allclose(legged.driver.sent[len(damped)], STANCE[0], atol=1e-6)


def assert_latched_until_reset(legged: Bench, reason: str) -> None:
    """The robot has sunk meanwhile: a fresh goal at full stiffness would jerk it up."""
    assert legged.loop.stopped == reason and all(legged.walk(0.2)) and legged.loop.is_damped
    assert legged.counts == {reason: 1, "stop": 1}
    legged.loop.reset_stop()
    assert all(legged.run(0.1)) and not any(legged.walk(0.1)) and not legged.loop.stopped


def test_stale_state_latches_damping(legged: Bench) -> None:
    legged.walk(0.1)
    legged.driver.received = legged.now
    sent = legged.walk(0.1)
    first = sent.index(True)
    assert 0.05 <= first * LEGGED.tick <= 0.055 and all(sent[first:])
    legged.driver.received = None
    assert_latched_until_reset(legged, "stale state")


def test_legs_go_on_after_missed_deadlines(legged: Bench) -> None:
    """To hold them in mid-stride would topple the robot; after 50 ms the guard damps it."""
    legged.walk(0.1)
    legged.now = legged.ticker.next + 10 * LEGGED.tick
    assert not any(legged.walk(0.1)) and not legged.counts and not legged.loop.stopped


def test_stale_goal_latches_damping_after_a_wait(legged: Bench) -> None:
    legged.walk(0.1)
    sent = legged.run(0.5)
    first = sent.index(True)
    assert 0.3 <= first * LEGGED.tick <= 0.31 and all(sent[first:])
    assert_latched_until_reset(legged, "stale goal")


def test_short_silence_of_a_damped_robot_latches_nothing(legged: Bench) -> None:
    legged.driver.received = legged.now
    assert all(legged.run(0.1)) and legged.counts == {"stale state": 1}
    legged.driver.received = None
    assert not any(legged.walk(0.1)) and not legged.loop.stopped


@pytest.mark.parametrize(("tilt", "falls"), [(58, False), (62, True)])
def test_fall_latches_damping(legged: Bench, tilt: float, falls: bool) -> None:
    legged.walk(0.1)
    legged.driver.tilt = math.radians(tilt)
    assert all(legged.walk(0.1)) == falls
    assert legged.counts == ({"tilt": 1, "stop": 1} if falls else {})
    legged.driver.tilt = 0.0
    assert all(legged.walk(0.1)) == falls
    if falls:
        legged.loop.reset_stop()
        assert all(legged.run(0.1)) and not any(legged.walk(0.1))


def test_third_consecutive_overspeed_latches_damping(legged: Bench) -> None:
    legged.walk(0.1)
    limit = LEGGED.robot.joints[4].velocity
    for samples, stops in ((2, False), (3, True)):
        legged.driver.velocity[4] = -1.25 * limit
        legged.run(samples * LEGGED.tick)
        legged.driver.velocity[4] = 1.15 * limit
        legged.run(5 * LEGGED.tick)
        assert (legged.loop.stopped == "joint speed") == stops
    assert legged.counts["joint speed"] == 1 and legged.driver.sent[-1] is None


def test_stop_damps_at_the_next_tick_until_reset(legged: Bench) -> None:
    legged.walk(0.1)
    legged.loop.stop("operator")
    assert all(legged.walk(0.2)) and legged.counts["stop"] == 1
    legged.loop.reset_stop()
    assert all(legged.run(0.2))


def test_first_goal_far_from_a_lying_robot_latches_damping(legged: Bench) -> None:
    legged.driver.position = np.array(LEGGED.robot.base.lying)
    sent = legged.walk(0.1)
    assert all(sent) and legged.counts["start mismatch"] >= 1
    assert legged.loop.stopped == "the robot is not where the policy expects it"


def test_damping_by_the_guard_latches_with_its_reason(legged: Bench) -> None:
    legged.driver.guard = "the guard damps the robot: silence"
    assert not any(legged.walk(0.2)), "the guard may unlatch during standing up"
    legged.driver.guard = ""
    legged.walk(0.1)
    legged.driver.guard = "the guard damps the robot: silence"
    assert all(legged.run(0.1))
    legged.driver.guard = ""
    assert all(legged.walk(0.2)) and legged.loop.stopped == "the guard damps the robot: silence"
    assert legged.counts["the guard damps the robot: silence"] == 1


def test_three_nonfinite_goals_latch_damping(legged: Bench) -> None:
    legged.walk(0.1)
    for _ in range(3):
        legged.loop.set_goal(torch.full_like(STANCE, float("nan")), 0.0, STEP_PERIOD)
        legged.run(STEP_PERIOD)
    assert "non-finite" in legged.loop.stopped and legged.driver.sent[-1] is None


def test_close_ends_with_damping(legged: Bench) -> None:
    legged.walk(0.1)
    legged.loop._closing.set()
    assert all(legged.run(3 * LEGGED.tick)) and "closing" not in legged.counts
