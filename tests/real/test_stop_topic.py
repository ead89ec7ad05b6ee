"""Topic `e_stop`: a press, a button that falls silent, and resets, in lockstep."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from real import clock
from real.control.stop import E_STOP, E_STOP_LOST
from real.drivers.state import NotReady
from real.teleop.commands import Operator
from sim.tasks import tasks

Build = Callable[..., Any]
ARRAY = "std_msgs/msg/Float64MultiArray"
LIFT = tasks.get("panda-lift").interface
MOVES = torch.tensor([[0.4, 0.0, 0.0, 1.0]])


@pytest.mark.parametrize("reliable", [True, False])
def test_press_stops_at_once_and_ends_the_episode(lockstep_arm: Build, simulated: Any, reliable: bool) -> None:
    arm, env, _, events = lockstep_arm(LIFT, reliable=reliable)
    env.step(MOVES)
    arm.press(True)
    pressed = clock.now()
    simulated.until(lambda: env.loop.stopped)
    assert env.loop.stopped == E_STOP and clock.now() - pressed <= 2 * simulated.period, "not at a control period"
    assert ("stop", E_STOP) in events and ("e_stop", "pressed") in events
    *_, info = env.step(MOVES)
    assert info["discarded"].item() and not info["success"].item() and "final_obs" in info
    held = arm.position.copy()
    arm.press(False)
    env.step(MOVES)
    assert np.abs(arm.position - held).max() < 1e-3 and env.loop.stopped == E_STOP, "false clears no stop"


def test_silence_of_a_button_counts_as_pressed_while_the_policy_hangs(lockstep_arm: Build, simulated: Any) -> None:
    arm, env, _, events = lockstep_arm(LIFT)
    for _ in range(20):
        env.step(MOVES)
    assert not env.loop.stopped, "without a button nothing changes"
    arm.button = False
    for _ in range(10):
        env.step(MOVES)
    assert not env.loop.stopped
    arm.button, silent = None, clock.now()
    simulated.until(lambda: env.loop.stopped)  # the policy does nothing meanwhile
    assert env.loop.stopped == E_STOP_LOST and ("stop", E_STOP_LOST) in events
    assert 0.24 < clock.now() - silent < 0.32, "within the time-out of the last message"
    assert env.loop.safety.stop_heartbeat == 0.3


def test_only_the_operator_resets_and_only_a_released_button(lockstep_arm: Build) -> None:
    arm, env, operator, _ = lockstep_arm(LIFT)
    arm.button = True
    env.step(MOVES)
    operator.now = Operator(reset=True)
    with pytest.raises(NotReady, match=E_STOP):
        env.await_release(timeout=1.0)
    arm.button = None
    with pytest.raises(NotReady, match=E_STOP):
        env.await_release(timeout=1.0)
    arm.button = False
    env.reset(seed=1)
    operator.now = Operator()
    before = arm.position.copy()
    env.step(MOVES)
    env.step(MOVES)
    assert not env.loop.stopped and np.abs(arm.position - before).max() > 1e-3


def test_press_on_the_way_home_ends_the_reset_with_its_reason(lockstep_arm: Build) -> None:
    arm, env, *_ = lockstep_arm(LIFT)
    for _ in range(20):
        env.step(MOVES)
    home, env.reset_procedure.go_home = env.reset_procedure.go_home, lambda: (arm.press(True), home())
    with pytest.raises(NotReady, match=f"stopped: {E_STOP}"):
        env.reset(seed=1)
