"""Health on `/diagnostics`: of a session in lockstep, and of a guard."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from real import clock
from real.bus import qos
from real.control.guard import Guard
from real.control.seconds import Second
from real.control.timing import Histogram
from real.lockstep import START
from real.teleop.commands import Operator
from real.topics import DIAGNOSTICS, DIAGNOSTICS_TOPIC, ERROR, OK, WARN, values_of
from robot_rl.robots.go2 import GO2
from sim.tasks import tasks

Build = Callable[..., Any]
LIFT = tasks.get("panda-lift").interface
HOLDS = torch.tensor([[0.0, 0.0, 0.0, 1.0]])
PARTS = {"policy: command loop", "policy: robot", "policy: policy", "policy: operator"}


class Monitor:
    """What a viewer has received: time of the header, s, and statuses by name."""

    def __init__(self, node: Any):
        self.heard: list[tuple[float, dict[str, Any]]] = []
        self.topic = node.subscribe(DIAGNOSTICS, DIAGNOSTICS_TOPIC, qos.DEFAULT, self._take)

    def _take(self, sample: Any) -> None:
        stamp = sample.msg.header.stamp
        self.heard.append((stamp.sec + 1e-9 * stamp.nanosec, {s.name: s for s in sample.msg.status}))

    def now(self, name: str) -> Any:
        return self.heard[-1][1][name]


@pytest.fixture
def watched(lockstep_arm: Build, simulated: Any) -> Any:
    monitor = Monitor(simulated.node("viewer"))
    arm, env, operator, _ = lockstep_arm(LIFT)
    return SimpleNamespace(monitor=monitor, arm=arm, env=env, operator=operator)


def test_health_at_one_hertz_of_simulated_time(watched: Any) -> None:
    for _ in range(3):
        watched.env.step(HOLDS)  # the episode's first period is a change
    before = len(watched.monitor.heard)
    for _ in range(60):
        watched.env.step(HOLDS)
    times = [time for time, _ in watched.monitor.heard[before:]]
    gaps = [b - a for a, b in zip(times, times[1:], strict=False)]
    assert len(times) == 3 and gaps == pytest.approx([1.0, 1.0], abs=0.06)
    assert START < times[-1] <= clock.now()
    statuses = watched.monitor.heard[-1][1]
    assert set(statuses) == PARTS and all(s.level == OK for s in statuses.values())
    loop = values_of(statuses["policy: command loop"])
    assert float(loop["rate"]) == pytest.approx(200, abs=1) and loop["missed"] == "0"
    assert loop["longest run of misses"] == "0" and float(loop["period std"]) < 1e-3
    assert float(loop["state age p99 ms"]) < 10 and float(loop["lateness p99 ms"]) < 1e-3
    policy = statuses["policy: policy"]
    assert policy.message == "running" and float(values_of(policy)["inference p99 ms"]) == 0.0, "time stands"
    operator = statuses["policy: operator"]
    assert operator.message == "device present" and values_of(operator)["control"] == "autonomous"


def test_a_change_is_published_within_a_control_period(watched: Any) -> None:
    watched.env.step(HOLDS)
    watched.env.loop.stop("test")
    changed = clock.now()
    watched.env.step(HOLDS)
    clock.sleep(0.01)
    time, statuses = watched.monitor.heard[-1]
    assert time - changed < 0.06
    assert statuses["policy: robot"].level == ERROR and statuses["policy: robot"].message == "stopped: test"
    watched.operator.now = Operator(reset=True)
    watched.env.reset(seed=1)
    clock.sleep(0.01)
    assert watched.monitor.now("policy: robot").level == OK


def test_robot_that_holds_for_lack_of_goals_is_a_warning(watched: Any) -> None:
    watched.env.step(HOLDS)
    clock.sleep(0.5)  # the policy hangs
    watched.env.step(HOLDS)
    clock.sleep(0.01)
    robots = [statuses["policy: robot"] for _, statuses in watched.monitor.heard]
    assert any(s.level == WARN and s.message == "holds: stale goal" for s in robots)


def test_end_of_a_session_is_published(watched: Any) -> None:
    watched.env.step(HOLDS)
    watched.env.deactivate()
    watched.env.node.wait_for(lambda: False, 0.2)
    assert all(watched.monitor.now(f"policy: {part}").message == "not active" for part in ("robot", "command loop"))


def test_worst_of_the_last_seconds_is_shown(watched: Any) -> None:
    timing = watched.env.loop.ticker.timing
    for misses in (0, 3, 1):
        second = Second(0.005, 0.0)
        for k in range(200):
            second.add(0.0005, misses if k == 100 else 0, 0.005 * (k + 1), misses if k == 100 else 0)
        timing.seconds.append(second)
    for _ in range(21):
        watched.env.step(HOLDS)
    clock.sleep(0.01)
    status = watched.monitor.now("policy: command loop")
    assert status.level == ERROR and status.message == "3 deadlines missed in a row"
    values = values_of(status)
    assert values["longest run of misses"] == values["missed"] == "3" and values["lateness max ms"] == "0.500"
    for _ in range(21):
        watched.env.step(HOLDS)
    clock.sleep(0.01)
    assert watched.monitor.now("policy: command loop").level == OK


def test_difference_of_histograms() -> None:
    late = Histogram()
    for _ in range(100):
        late.add(1e-3)
    before = late.copy()
    for _ in range(50):
        late.add(5e-3)
    since = late - before
    assert len(before) == 100 and len(since) == 50 and late.newest == 5e-3 and before.newest == 1e-3
    assert since.percentile(50) == pytest.approx(5e-3, rel=0.01) and len(Histogram() - Histogram()) == 0


def test_guard_reports_its_damping(topic_quadruped: Build, nodes: Build, eventually: Build) -> None:
    monitor = Monitor(nodes("viewer"))
    topic_quadruped(commands="lowcmd")
    guard = Guard(nodes("guard"), GO2)
    for _ in range(3):
        guard._step(lambda _text: None, 0.0)
    eventually(lambda: monitor.heard)
    status = monitor.now("guard: guard")
    assert status.level == ERROR and status.message == "silence" and values_of(status)["latched"] == "True"
