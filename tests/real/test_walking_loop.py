"""The command thread of a legged robot: reasons for damping, and its latch."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from real.control import loop as loop_module
from real.control.loop import CommandLoop
from real.robots.unitree import TrunkReading
from robot_rl.interface.pipeline import Pipeline
from sim.tasks import tasks

PIPELINE = Pipeline(tasks.get("go2-velocity").interface)
HOME = torch.tensor(PIPELINE.robot.home)[None]
TICK, PERIOD = PIPELINE.tick, 0.02


class FakeDriver:
    """Quadruped in memory that jumps to each command; `None` in `sent` is damping."""

    dry_run = False

    def __init__(self, clock: Callable[[], float]):
        self.clock, self.received = clock, None
        self.position, self.velocity = np.array(PIPELINE.robot.home), np.zeros(12)
        self.tilt = 0.0
        self.sent: list[Any] = []
        self.guard = ""

    def objection(self, now: float) -> str:
        return self.guard

    def wait_ready(self, timeout: float = 10.0) -> None:
        pass

    def reading(self) -> TrunkReading:
        received = self.clock() if self.received is None else self.received
        quat = np.array([math.cos(self.tilt / 2), math.sin(self.tilt / 2), 0.0, 0.0])
        return TrunkReading(
            self.position.copy(), self.velocity.copy(), 0.0, received, quat, np.zeros(3), np.zeros(4)
        )  # fmt: skip

    def next_reading(self, timeout: float) -> TrunkReading:
        return self.reading()

    def send(self, position: np.ndarray, gripper: float) -> None:
        self.sent.append(position.copy())
        self.position = position.copy()

    def damp(self) -> None:
        self.sent.append(None)


class Bench:
    """The loop without its thread: the test runs each tick under its own clock."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.now = 100.0
        patch.setattr(loop_module, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.driver = FakeDriver(lambda: self.now)
        self.loop = CommandLoop(self.driver, PIPELINE)  # type: ignore[arg-type]
        patch.setattr(self.loop, "start", lambda: None)
        patch.setattr(loop_module, "prefer_realtime", lambda *_: False)
        patch.setattr(loop_module, "gc", SimpleNamespace(collect=int, freeze=int, disable=int))
        self.loop.arm()

    def run(self, seconds: float) -> list[Any]:
        """Return the commands of this period."""
        before = len(self.driver.sent)
        with torch.inference_mode():
            for _ in range(round(seconds / TICK)):
                self.now += TICK
                self.loop._tick(self.now)
        return self.driver.sent[before:]

    def walk(self, seconds: float, offset: float = 0.05) -> list[Any]:
        """Run with a policy that posts a goal in every control period; return the commands."""
        sent = []
        for _ in range(round(seconds / PERIOD)):
            self.loop.set_goal(HOME + offset, 0.0, PERIOD)
            sent += self.run(PERIOD)
        return sent

    @property
    def counts(self) -> dict[str, int]:
        return self.loop.events.counts


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def damped(sent: list[Any]) -> list[bool]:
    return [command is None for command in sent]


def test_robot_is_damped_until_the_first_goal(bench: Bench) -> None:
    assert all(damped(bench.run(1.0))) and bench.loop.is_damped and not bench.counts
    sent = bench.walk(0.1)
    assert not any(damped(sent)) and not bench.loop.is_damped


def test_set_points_jump_to_the_goal(bench: Bench) -> None:
    sent = bench.walk(PERIOD, 0.03)
    assert np.allclose(sent[0], HOME[0] + 0.03, atol=1e-6)


def assert_latched_until_reset(bench: Bench, reason: str) -> None:
    """The robot has sunk meanwhile: a fresh goal at full stiffness would jerk it up."""
    assert bench.loop.stopped == reason
    assert all(damped(bench.walk(0.2))) and bench.loop.is_damped
    assert bench.counts == {reason: 1, "stop": 1}
    bench.loop.reset_stop()
    assert all(damped(bench.run(0.1))) and not any(damped(bench.walk(0.1))) and not bench.loop.stopped


def test_stale_state_latches_damping(bench: Bench) -> None:
    bench.walk(0.1)
    bench.driver.received = bench.now
    sent = bench.walk(0.1)
    first = damped(sent).index(True)
    assert 0.05 <= first * TICK <= 0.055 and all(damped(sent[first:]))
    bench.driver.received = None
    assert_latched_until_reset(bench, "stale state")


def test_stale_goal_latches_damping_after_a_wait(bench: Bench) -> None:
    bench.walk(0.1)
    sent = bench.run(0.5)
    first = damped(sent).index(True)
    assert 0.3 <= first * TICK <= 0.31 and all(damped(sent[first:]))
    assert_latched_until_reset(bench, "stale goal")


def test_short_silence_of_a_damped_robot_latches_nothing(bench: Bench) -> None:
    bench.driver.received = bench.now
    assert all(damped(bench.run(0.1))) and bench.counts == {"stale state": 1}
    bench.driver.received = None
    assert not any(damped(bench.walk(0.1))) and not bench.loop.stopped


@pytest.mark.parametrize(("tilt", "falls"), [(58, False), (62, True)])
def test_fall_latches_damping(bench: Bench, tilt: float, falls: bool) -> None:
    bench.walk(0.1)
    bench.driver.tilt = math.radians(tilt)
    assert all(damped(bench.walk(0.1))) == falls
    assert bench.counts == ({"tilt": 1, "stop": 1} if falls else {})
    bench.driver.tilt = 0.0
    assert all(damped(bench.walk(0.1))) == falls
    if falls:
        bench.loop.reset_stop()
        assert all(damped(bench.run(0.1))) and not any(damped(bench.walk(0.1)))


def test_third_consecutive_overspeed_latches_damping(bench: Bench) -> None:
    bench.walk(0.1)
    fast, limit = bench.driver, PIPELINE.robot.joints[4].velocity
    for samples, stops in ((2, False), (3, True)):
        fast.velocity[4] = -1.25 * limit
        bench.run(samples * TICK)
        fast.velocity[4] = 1.15 * limit
        bench.run(5 * TICK)
        assert (bench.loop.stopped == "joint speed") == stops
    assert bench.counts["joint speed"] == 1 and bench.driver.sent[-1] is None


def test_stop_damps_at_the_next_tick_until_reset(bench: Bench) -> None:
    bench.walk(0.1)
    bench.loop.stop("operator")
    assert all(damped(bench.walk(0.2)))
    assert bench.counts["stop"] == 1
    bench.loop.reset_stop()
    assert all(damped(bench.run(0.2)))


def test_first_goal_far_from_a_lying_robot_latches_damping(bench: Bench) -> None:
    bench.driver.position = np.array(PIPELINE.robot.base.lying)  # type: ignore[union-attr]
    sent = bench.walk(0.1)
    assert all(damped(sent)) and bench.counts["start mismatch"] >= 1
    assert bench.loop.stopped == "the robot is not where the policy expects it"


def test_damping_by_the_guard_latches_with_its_reason(bench: Bench) -> None:
    bench.driver.guard = "the guard damps the robot: silence"
    assert not any(damped(bench.walk(0.2))), "the guard may unlatch during standing up"
    bench.driver.guard = ""
    bench.walk(0.1)
    bench.driver.guard = "the guard damps the robot: silence"
    assert all(damped(bench.run(0.1)))
    bench.driver.guard = ""
    assert all(damped(bench.walk(0.2))) and bench.loop.stopped == "the guard damps the robot: silence"
    assert bench.counts["the guard damps the robot: silence"] == 1


def test_three_nonfinite_goals_latch_damping(bench: Bench) -> None:
    bench.walk(0.1)
    for _ in range(3):
        bench.loop.set_goal(torch.full_like(HOME, float("nan")), 0.0, PERIOD)
        bench.run(PERIOD)
    assert "non-finite" in bench.loop.stopped and bench.driver.sent[-1] is None


def test_close_ends_with_damping(bench: Bench) -> None:
    bench.walk(0.1)
    bench.loop._closing.set()
    assert all(damped(bench.run(3 * TICK))) and "closing" not in bench.counts
