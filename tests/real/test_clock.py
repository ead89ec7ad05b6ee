"""Deadlines, lateness statistics and scheduling, under a clock that the test moves."""

import json
import logging
import os
import random
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from real import clock
from real.clock import SPIN
from real.control.timing import Ticker, Timing, bare_loop, prefer_realtime, say_once
from real.topics import ERROR, OK, WARN

PERIOD = 0.005


class Clock:
    """Clock that advances in `sleep` and by a microsecond at each reading."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        self.now += 1e-6
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=fake.monotonic, sleep=fake.sleep))
    return fake


def test_deadlines_are_absolute(time: Clock) -> None:
    ticker = Ticker(PERIOD)
    first = ticker.next
    for k in range(1000):
        time.now += 0.6 * PERIOD * (k % 2)  # work
        late = ticker.wait()
        assert 0 <= late < 1e-4 and time.now == pytest.approx(first + k * PERIOD, abs=1e-4)
    assert ticker.timing.missed == 0 and len(ticker.timing.late) == 1000


def test_sleeps_until_the_spin(time: Clock) -> None:
    ticker = Ticker(PERIOD)
    ticker.wait()
    assert time.slept == [pytest.approx(PERIOD - SPIN, abs=1e-5)]
    time.now = ticker.next - SPIN / 2
    ticker.wait()
    assert len(time.slept) == 1, "no sleep within the spin"


def test_missed_deadline_is_skipped(time: Clock) -> None:
    """The timeline of the class: wake 1, 2, then 1.4 periods late, then on the grid again."""
    ticker = Ticker(PERIOD)
    start = ticker.next - PERIOD
    ticker.wait()
    ticker.wait()
    time.now = start + 4.4 * PERIOD  # deadlines 3 and 4 pass
    assert ticker.wait() == pytest.approx(1.4 * PERIOD, abs=1e-5) and ticker.timing.missed == 1
    ticker.wait()
    assert time.now == pytest.approx(start + 5 * PERIOD, abs=1e-5)
    ticker.wait()
    assert time.now == pytest.approx(start + 6 * PERIOD, abs=1e-5), "no burst"


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.floats(0, 6 * PERIOD), min_size=1, max_size=40))
def test_every_deadline_is_a_tick_or_counted_as_missed(work: list[float]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fake = Clock()
        patch.setattr(clock, "time", SimpleNamespace(monotonic=fake.monotonic, sleep=fake.sleep))
        ticker = Ticker(PERIOD)
        start = ticker.next - PERIOD
        for seconds in work:
            fake.now += seconds
            before = ticker.next
            assert ticker.wait() >= 0 and fake.now >= before
        timing = ticker.timing
        passed = len(timing.late) + timing.missed
        assert ticker.next == pytest.approx(start + (passed + 1) * PERIOD, abs=1e-9), "always on the grid"
        assert fake.now <= ticker.next + 1e-4, "the next deadline lies ahead"


def test_summary() -> None:
    timing = Timing(PERIOD)
    for k, late in enumerate((0.0, 5e-4, 2e-3, 1.2e-2)):
        timing.add(late, 0, k * PERIOD + late)
    timing.add(1e-5, 3, 4 * PERIOD + 1e-5)
    summary = timing.summary()
    assert summary["rate"] == 200 and summary["ticks"] == 5 and summary["missed"] == 3
    assert summary["seconds"] == pytest.approx(8 * PERIOD)
    assert summary["late_share"] == pytest.approx((2 + 3) / 8), "two late by over 1 ms, three missed"
    line = np.polyfit(np.arange(5), [0.0, 5e-4, 2e-3, 1.2e-2, 1e-5], 1)
    assert summary["drift_us"] == pytest.approx(4e6 * line[0])
    assert summary["longest_run_of_misses"] == 3 and summary["seconds_at_error"] == 0, "no second has passed"
    histogram = summary["histogram"]
    assert len(histogram["counts"]) == len(histogram["edges_us"]) and histogram["counts"][-1] == 1, "12 ms: open bin"
    json.dumps(summary)


def paced(periods: Callable[[int], float], count: int = 450) -> Timing:
    """Return the timing of ticks on the grid, each late by a share of the period."""
    timing, skipped = Timing(PERIOD), 0
    for k in range(count):
        late = periods(k)
        timing.add(late * PERIOD, int(late), (k + skipped + late) * PERIOD)
        skipped += int(late)
    return timing


@pytest.mark.parametrize(
    ("lateness", "level", "message"),
    [
        (lambda k: 0.04 * (k % 2), OK, "on time"),
        (lambda k: 0.07 * (k % 2), WARN, "period off by 0%, deviation 7%"),
        (lambda k: 0.11 * (k % 2), ERROR, "period off by 0%, deviation 11%"),
        (lambda k: 3.0 * (k % 200 == 100), ERROR, "3 deadlines missed in a row"),
        (lambda k: 1.0 * (k % 200 == 100), WARN, "period off by 1%, deviation 7%"),
        (lambda k: 1.0 * (k % 200 in (100, 101, 102)), ERROR, "3 deadlines missed in a row"),
    ],
)
def test_level_of_a_second(lateness: Any, level: int, message: str) -> None:
    timing = paced(lateness)
    assert len(timing.seconds) == 2 and all(second.level == level for second in timing.seconds)
    assert timing.seconds[0].message == message
    summary = timing.summary()
    assert summary["seconds_at_warning"] == 2 * (level == WARN)
    assert summary["seconds_at_error"] == 2 * (level == ERROR)


def test_figures_of_a_second() -> None:
    timing = paced(lambda k: 0.2 if k == 50 else 2.5 if k == 100 else 0.0)
    first, second = timing.seconds
    assert (first.missed, first.longest_run, second.missed, second.longest_run) == (2, 2, 0, 0)
    assert first.rate == pytest.approx(198) and second.rate == pytest.approx(200)
    assert first.error == pytest.approx(200 / 198 - 1) and second.error == pytest.approx(0)
    gaps = np.full(198, PERIOD)
    gaps[[49, 50]] += [0.2 * PERIOD, -0.2 * PERIOD]
    gaps[[99, 100]] += [2.5 * PERIOD, -0.5 * PERIOD]
    assert first.deviation == pytest.approx(gaps.std() / PERIOD) and second.deviation == pytest.approx(0, abs=1e-6)
    assert max(first.late) == pytest.approx(2.5 * PERIOD) and timing.summary()["longest_run_of_misses"] == 2


def test_wrong_rate_is_an_error_of_the_period() -> None:
    timing = Timing(PERIOD)
    for k in range(450):
        timing.add(0.0, 0, 1.07 * k * PERIOD)
    assert timing.seconds[0].error == pytest.approx(0.07) and timing.seconds[0].level == WARN


def test_late_ticks_are_no_drift_but_sliding_deadlines_are(time: Clock) -> None:
    """A period wrong by a thousandth and pauses relative to the work are drift."""
    rng = random.Random(0)

    def drift(wake: Callable[[Ticker], object]) -> float:
        ticker = Ticker(PERIOD)
        for _ in range(2000):
            time.now += PERIOD * rng.choice((0.1, 0.5, 0.9, 1.5, 2.5))  # work
            wake(ticker)
        return float(ticker.timing.summary()["drift_us"])

    def relative(ticker: Ticker) -> None:
        ticker.next = time.now + PERIOD
        ticker.wait()

    def slow(ticker: Ticker) -> None:
        ticker.wait()
        ticker.next += 1e-3 * PERIOD

    assert abs(drift(Ticker.wait)) < 1e6 * PERIOD
    assert drift(relative) > 1e6 * 1000 * PERIOD
    assert drift(slow) == pytest.approx(1e6 * 2000 * 1e-3 * PERIOD, rel=0.5)


def test_timings_of_two_loops_add_up() -> None:
    def loop(slide: float) -> Timing:
        timing = Timing(PERIOD)
        for k in range(100):
            timing.add(0.0, 0, k * (PERIOD + slide))
        return timing

    summary = Timing(PERIOD).summary()
    assert summary["ticks"] == summary["late_share"] == summary["lateness_us"]["max"] == 0
    both = loop(1e-6) + loop(1e-6)
    both.late.add(0.1)
    assert both.late.max == 0.1 and both.late.percentile(50) == 0
    assert both.summary()["drift_us"] == pytest.approx(2 * 99) and both.summary()["ticks"] == 201


def test_statistics_are_exact_in_constant_memory() -> None:
    rng = np.random.default_rng(0)
    seconds = rng.lognormal(-10.0, 1.5, 200_000)
    timing = Timing(PERIOD)
    timing.add(1e-9, 0, 1e-9)
    tracemalloc.start()
    for k, late in enumerate(seconds.tolist(), 1):
        timing.add(late, 0, k * PERIOD + late)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 200_000, "a list would have 8 bytes for each"
    summary = timing.summary()
    for name, percent in (("p50", 50), ("p99", 99), ("p999", 99.9)):
        assert summary["lateness_us"][name] == pytest.approx(1e6 * np.percentile(seconds, percent), rel=0.011)
    assert summary["lateness_us"]["max"] == 1e6 * seconds.max()
    assert abs(summary["drift_us"]) < 10, "late ticks are no drift"
    assert summary["ticks"] == 200_001 == sum(summary["histogram"]["counts"])
    edges = summary["histogram"]["edges_us"]
    exact, _ = np.histogram(1e6 * seconds, [*edges, np.inf])
    assert np.abs(np.array(summary["histogram"]["counts"]) - exact).max() < 0.01 * 200_000


def test_bare_loop_counts_its_ticks(time: Clock) -> None:
    summary = bare_loop(200, 2.0).summary()
    assert summary["ticks"] == 400 and summary["missed"] == 0
    assert sum(time.slept) == pytest.approx(2.0, rel=0.05)


def test_real_time_priority_is_not_inherited() -> None:
    """The learner that `finetune` starts, and the recorder's thread, must have normal priority."""
    children: list[int] = []

    def loop() -> None:
        if prefer_realtime():
            command = [sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"]
            children.append(int(subprocess.run(command, capture_output=True, check=True).stdout))

    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()
    if not children:
        pytest.skip("no permission for real-time priority")
    assert children == [os.SCHED_OTHER]


def test_refused_real_time_priority_is_warned_of(monkeypatch: Any, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(os, "sched_setscheduler", Mock(side_effect=PermissionError))
    say_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert prefer_realtime() is False
        assert prefer_realtime() is False
    assert caplog.text.count("`robot-rl doctor`") == 1


def test_scheduling_is_restored_without_root() -> None:
    """A user of the group realtime may get real-time priority but not clear the flag SCHED_RESET_ON_FORK."""
    script = """
import os
from real.control.timing import prefer_realtime, reschedule, scheduling
before = scheduling()
if os.geteuid() or not prefer_realtime():
    raise SystemExit(77)
os.setuid(65534)
reschedule(before)
assert os.sched_getscheduler(0) == os.SCHED_OTHER | os.SCHED_RESET_ON_FORK
reschedule(scheduling())
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    if ended.returncode == 77:
        pytest.skip("no permission for real-time priority, or to become somebody else")
    assert ended.returncode == 0, ended.stderr


LOCK = """
import logging, mmap, os, resource, sys
logging.basicConfig(format="%(message)s", stream=sys.stdout)
from real.control.memory import lock_memory, may_lock, unlock_memory

def locked():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines["VmLck"].split()[0])

"""


def run_script(body: str) -> str:
    ended = subprocess.run([sys.executable, "-c", LOCK + body], capture_output=True, text=True)
    if ended.returncode == 77:
        pytest.skip("no permission for it")
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_memory_is_locked_also_what_is_allocated_later() -> None:
    run_script("""
if not may_lock():
    raise SystemExit(77)
assert lock_memory() and (before := locked()) > 0
more = mmap.mmap(-1, 64 << 20)
assert locked() >= before + (64 << 10), (before, locked())
resident = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
assert resident < 1024 * locked() / 2, "pages that nobody used are not filled"
if not os.fork():  # a child: for example the learner
    os._exit(locked() > 0)
assert os.wait()[1] == 0
unlock_memory()
assert locked() == 0
""")


@pytest.mark.parametrize("limit", [0, 1 << 40])
def test_refused_lock_is_said_once_and_nothing_is_locked(limit: int) -> None:
    """Below a limit, even a high one, later allocations could fail."""
    said = run_script(f"""
hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
limit = {limit} if hard == resource.RLIM_INFINITY else min({limit}, hard)
resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
if os.geteuid() == 0:
    os.setuid(65534)
if may_lock():
    raise SystemExit(77)
assert not lock_memory() and not lock_memory() and locked() == 0
""")
    assert said.count("memory is not locked (no permission)") == 1 and "`robot-rl doctor`" in said
