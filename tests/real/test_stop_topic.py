"""Topic `e_stop`: a press, a button that falls silent, and resets, in lockstep."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from real import clock
from real.bus import make, qos
from real.control.stop import E_STOP, E_STOP_LOST
from real.drivers.state import NotReady
from real.episode.env import RobotEnv
from real.teleop.commands import Operator
from real.topics import BOOL
from robot_rl.robots.panda import PANDA
from sim.tasks import tasks

Build = Callable[..., Any]
ARRAY = "std_msgs/msg/Float64MultiArray"
LIFT = tasks.get("panda-lift").interface
MOVES = torch.tensor([[0.4, 0.0, 0.0, 1.0]])


class Arm:
    """Panda that jumps to each commanded position, a cube, and the emergency stop button beside it."""

    def __init__(self, node: Any, reliable: bool = True):
        self.position, self.commands = np.array(PANDA.home), 0
        self.button: bool | None = None  # level that the button repeats at 20 Hz; None: no messages
        self._ticks = 0
        self.states = node.publisher("sensor_msgs/msg/JointState", "joint_states", qos.SENSOR)
        self.pose = node.publisher("geometry_msgs/msg/PoseStamped", "objects/cube/pose", qos.SENSOR)
        self.stop = node.publisher(BOOL, "e_stop", replace(qos.COMMAND, reliable=reliable))
        self.placer = node.subscribe("std_msgs/msg/Int64", "twin/reset", qos.DEFAULT)
        node.subscribe(ARRAY, PANDA.driver.command, qos.COMMAND, self._move)  # type: ignore[attr-defined]
        node.subscribe(ARRAY, PANDA.driver.gripper_command, qos.COMMAND)  # type: ignore[attr-defined]

    def _move(self, sample: Any) -> None:
        self.position, self.commands = np.array(sample.msg.data), self.commands + 1

    def press(self, down: bool) -> None:
        self.stop.publish(make(BOOL, data=down))

    def tick(self) -> None:
        names, position = [*PANDA.joint_names, *PANDA.fingers], np.append(self.position, [0.04, 0.04])
        state = {"name": names, "position": position, "velocity": 0 * position}
        self.states.publish(make("sensor_msgs/msg/JointState", **state))
        self.pose.publish(make("geometry_msgs/msg/PoseStamped", pose={"position": {"x": 0.5, "y": 0.0, "z": 0.02}}))
        self._ticks += 1
        if self.button is not None and self._ticks % 10 == 0:
            self.press(self.button)


@pytest.fixture
def start(simulated: Any, hands: Build) -> Iterator[Build]:
    """Start the arm and its environment, with an operator, and begin an episode."""
    opened = []

    def build(**options: Any) -> tuple[Arm, RobotEnv, Any, list[Any]]:
        arm, operator = Arm(simulated.node("arm"), **options), hands()
        simulated.run(arm.tick)
        env = RobotEnv(simulated.node("policy"), LIFT, operator=operator)
        opened.append(env)
        events: list[Any] = []
        env.stream.on_event(lambda event: events.append((event.name, event.what)))
        env.activate()
        env.reset(seed=0)
        return arm, env, operator, events

    yield build
    for env in opened:
        env.close()


@pytest.mark.parametrize("reliable", [True, False])
def test_press_stops_at_once_and_ends_the_episode(start: Build, simulated: Any, reliable: bool) -> None:
    arm, env, _, events = start(reliable=reliable)
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


def test_silence_of_a_button_counts_as_pressed_while_the_policy_hangs(start: Build, simulated: Any) -> None:
    arm, env, _, events = start()
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


def test_only_the_operator_resets_and_only_a_released_button(start: Build) -> None:
    arm, env, operator, _ = start()
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


def test_press_on_the_way_home_ends_the_reset_with_its_reason(start: Build) -> None:
    arm, env, *_ = start()
    for _ in range(20):
        env.step(MOVES)
    home, env.reset_procedure.go_home = env.reset_procedure.go_home, lambda: (arm.press(True), home())
    with pytest.raises(NotReady, match=f"stopped: {E_STOP}"):
        env.reset(seed=1)
