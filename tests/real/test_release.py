"""Reset of a latched stop, in lockstep: only once robot and operator's input have rested, and by a new press."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from real.teleop.commands import RELEASED, Operator
from sim.tasks import tasks

LIFT = tasks.get("panda-lift").interface
PRESS = Operator(reset=True)
RESTLESS = {
    "the enable button is held": Operator(held=True),
    "the operator's input is not neutral": Operator(motion=(0.0, -0.1, 0.0)),
    "the teleop device is silent": None,
    "stop is pressed": Operator(stop=True),
    "a joint moves at 0.30 rad/s": RELEASED,
}


@pytest.mark.parametrize("why", RESTLESS)
def test_early_press_is_refused_with_the_reason_and_forgotten(
    lockstep_arm: Callable[..., Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    arm, env, operator, events = lockstep_arm(LIFT)
    env.loop.stop("test")
    readings = [*[RESTLESS[why]] * 20, *[RELEASED] * 6, PRESS, *[RELEASED] * 20, PRESS]
    stopped: list[str] = []

    def read(now: float | None = None) -> Operator | None:
        stopped.append(env.loop.stopped)
        arm.speed = 0.3 if why.startswith("a joint") and len(stopped) <= 20 else 0.0
        return readings[len(stopped) - 1]

    operator.read = read
    with caplog.at_level(logging.WARNING):
        env.await_release(timeout=10.0)
    assert stopped == ["test"] * len(readings) and not env.loop.stopped, "a refused press clears nothing later"
    assert [what for event, what in events if event == "reset refused"] == [why]
    assert f"not reset: {why}; press again" in caplog.text
    assert [what for event, what in events if event == "reset"] == ["test"]


@pytest.mark.parametrize(("periods", "resets"), [(8, False), (11, True)])
def test_half_a_second_of_rest_is_enough(lockstep_arm: Callable[..., Any], periods: int, resets: bool) -> None:
    _, env, operator, events = lockstep_arm(LIFT)
    env.loop.stop("test")
    readings = [Operator(held=True), *[RELEASED] * periods, PRESS, *[RELEASED] * 20, PRESS]
    operator.read = lambda now=None: readings.pop(0)
    env.await_release(timeout=10.0)
    assert bool(readings) == resets and ("reset", "test") in events


def test_press_from_before_the_wait_is_refused(lockstep_arm: Callable[..., Any]) -> None:
    _, env, operator, events = lockstep_arm(LIFT)
    env.loop.stop("test")
    readings = [PRESS, *[RELEASED] * 11, PRESS]
    operator.read = lambda now=None: readings.pop(0)
    env.await_release(timeout=10.0)
    assert not readings and ("reset refused", "robot and input were not watched before") in events
