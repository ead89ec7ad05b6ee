"""An arm whose process has latched a stop before a session starts, in lockstep: the operator's reset recovers it."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from real.bus import qos
from real.drivers.lowlevel import REPORT
from real.drivers.state import NotReady
from real.episode.env import RobotEnv
from real.teleop.commands import RELEASED, Operator
from real.topics import GUARD_TOPIC, INT, RECOVER_TOPIC, STATUS, GuardReport
from sim.tasks import tasks
from tests.real.conftest import LockstepArm

LIFT = tasks.get("fr3-lift").interface
REFLEX = GuardReport("robot mode Reflex", True)
PRESS = Operator(reset=True)


class HeldArm(LockstepArm):
    """FR3 that is stopped by a reflex. While it recovers, in `takes` s, it sends nothing."""

    def __init__(self, node: Any, takes: float):
        super().__init__(node, robot="fr3")
        self.report, self.takes, self.requests = REFLEX, takes, 0
        self._silent = 0
        self.guard = node.publisher(STATUS, GUARD_TOPIC, REPORT)
        node.subscribe(INT, RECOVER_TOPIC, qos.DEFAULT, self._on_recover)

    def _on_recover(self, _: Any) -> None:
        self.requests += 1
        self._silent = round(self.takes / 0.005)

    def tick(self) -> None:
        if self._silent:
            self._silent -= 1
            self.report = self.report if self._silent else GuardReport()
            return
        super().tick()
        self.guard.publish(self.report.message())


@pytest.fixture
def held(simulated: Any, hands: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Start a session with an arm that is stopped; the operator's readings are given, and RELEASED after them."""
    opened: list[RobotEnv] = []

    def start(takes: float, readings: list[Operator] | None) -> tuple[HeldArm, RobotEnv]:
        arm, operator = HeldArm(simulated.node("arm"), takes), hands()
        simulated.run(arm.tick)
        operator.read = lambda now=None: (readings.pop(0) if readings else RELEASED) if readings is not None else None
        opened.append(RobotEnv(simulated.node("policy"), LIFT, operator=operator))
        opened[-1].activate()
        return arm, opened[-1]

    yield start
    for env in opened:
        with closing(env):
            pass


@pytest.mark.parametrize("takes", [0.01, 1.5])
def test_session_waits_for_the_operators_reset(held: Callable[..., Any], takes: float) -> None:
    arm, env = held(takes, [RELEASED] * 20 + [PRESS])
    assert env.loop.stopped == "the robot stopped: robot mode Reflex"
    env.reset(seed=0)
    assert arm.requests == 1 and not env.loop.stopped


def test_session_without_a_device_says_what_to_start(held: Callable[..., Any]) -> None:
    _, env = held(0.01, None)
    env.arbiter.operator = None
    with pytest.raises(NotReady, match="robot-rl teleop keyboard --robot fr3.*press its reset: Enter on the keyboard"):
        env.reset(seed=0)
