"""A leader arm: its joint states and the robot's arrive over the bus, and the robot's tool follows."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from real import clock
from real.bus import make, open_node, qos
from real.drivers.joint_states import TYPE
from real.teleop.commands import RELEASED, Operator
from real.teleop.leader import NEAR, TOPIC, Leader
from real.teleop.towards import FULL, TURN
from robot_rl.cli.teleop import Teleop
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.rotation import rotation_error
from robot_rl.robots import robots
from robot_rl.util.errors import ConfigError

PANDA = robots.get("panda")
HOME = np.array(PANDA.home)
CHAIN = Kinematics(PANDA, torch.float64)


def pose(q: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tool's position (1, 3), m, and rotation (1, 3, 3)."""
    return CHAIN.forward(torch.from_numpy(q)[None])


class Desk:
    """A leader, a robot that moves by what it is told, and the keyboard of a person."""

    def __init__(self, leader: Any, robot: Any, teleop: Any):
        self.said: list[str] = []
        self.keyboard = SimpleNamespace(read=lambda: self.keys, kept=True, begin=lambda: None, close=lambda: None)
        self.keys, keyboard = RELEASED, cast(Any, self.keyboard)
        self.device = Leader(teleop, PANDA, keyboard, self.said.append, clock=lambda: self.now)
        self.now, self.q = clock.now(), HOME.copy()
        self.theirs = leader.publisher(TYPE, TOPIC, qos.SENSOR)
        self.ours = robot.publisher(TYPE, PANDA.driver.joint_states, qos.SENSOR)
        self.wires = self.device._leader, self.device._robot
        assert clock.wait(lambda: all(wire.matched for wire in self.wires), 10)

    def read(self, q: Any, fingers: float | None = None, names: tuple[str, ...] = PANDA.driver_names()) -> Operator:
        """Publish both states, and return the reading when they have arrived."""
        values = [*np.asarray(q, float), *([] if fingers is None else [fingers, fingers])]
        before = [wire.latest.count if wire.latest else 0 for wire in self.wires]
        self.theirs.publish(make(TYPE, name=list(names)[: len(values)], position=values))
        self.ours.publish(make(TYPE, name=list(PANDA.driver_names()), position=[*self.q, 0.04, 0.04]))
        new = lambda: all(w.latest and w.latest.count > k for w, k in zip(self.wires, before, strict=True))  # noqa: E731
        assert clock.wait(new, 10)
        self.now = clock.now()
        return self.device.read()

    def move(self, operator: Operator) -> None:
        """Move the robot's tool as a control period does."""
        if not operator.held:
            return
        step = torch.tensor([*(FULL * np.array(operator.motion)), *(TURN * np.array(operator.rotation))])
        _, _, jacobian = CHAIN.jacobian(torch.from_numpy(self.q)[None])
        j = jacobian[0]
        self.q += (j.T @ torch.linalg.solve(j @ j.T + 1e-6 * torch.eye(6, dtype=j.dtype), step)).numpy()


@pytest.fixture
def desk(private_domain: int) -> Iterator[Desk]:
    with open_node("leader") as leader, open_node("robot") as robot, open_node("teleop") as teleop:
        made = Desk(leader, robot, teleop)
        yield made
        made.device.close()


def test_tool_follows_the_leaders(desk: Desk) -> None:
    target = HOME + np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    for k in range(60):
        target = HOME + 0.3 * math.sin(math.pi / 2 * min(k / 40, 1.0)) * np.array([1, -0.5, 0.5, 0.5, -0.5, 0.5, -1])
        operator = desk.read(target)
        assert operator.held
        assert all(-1 <= value <= 1 for value in (*operator.motion, *operator.rotation))
        desk.move(operator)
    (wanted, turned), (reached, turn) = pose(target), pose(desk.q)
    assert (pose(target)[0] - pose(HOME)[0]).norm() > 0.1, "it went somewhere"
    assert (wanted - reached).norm() < 1e-3 and rotation_error(turn, turned).norm() < 2e-3
    assert not desk.said


def test_takes_over_only_near_the_robot(desk: Desk) -> None:
    """Then there is no jump; a leader that runs away later is followed at the limit."""
    far = HOME + np.array([0.3, 0, 0, 0, 0, 0, 0])
    assert (pose(far)[0] - pose(HOME)[0]).norm() > NEAR
    assert not desk.read(far).held and not desk.read(far).held
    assert not desk.read(far + 0.05).held and len(desk.said) == 1, "not with every reading"
    assert len(desk.said) == 1 and "bring the leader to the robot" in desk.said[0]
    assert desk.read(HOME).held
    ahead = desk.read(far)
    assert ahead.held and max(map(abs, ahead.motion)) == 1.0
    desk.keyboard.kept = False
    assert not desk.read(HOME).held
    desk.keyboard.kept = True
    assert not desk.read(far).held, "each takeover begins near"


def test_leader_that_falls_silent_lets_go(desk: Desk) -> None:
    assert desk.read(HOME).held
    desk.now += 1.0
    assert desk.device.read() == RELEASED and "no joint state of the leader" in desk.said[-1]
    assert not desk.read(HOME + np.nan).held and "not complete" in desk.said[-1]
    assert not desk.read(HOME, names=("a", "b", "c", "d", "e", "f", "g")).held, "an arm of another shape"
    assert not desk.read(HOME[:5]).held and "leader's joint state" in desk.said[-1]


def test_fingers_and_keys_move_the_gripper(desk: Desk) -> None:
    assert desk.read(HOME).gripper == 0.0, "no fingers: the width stays"
    assert desk.read(HOME, fingers=0.035).gripper == 1.0 and desk.read(HOME, fingers=0.005).gripper == -1.0
    desk.keys = Operator(gripper=1.0, success=True, stop=True)
    pressed = desk.read(HOME, fingers=0.005)
    assert pressed.gripper == 1.0 and pressed.success and pressed.stop
    desk.keyboard.kept = False
    released = desk.read(HOME, fingers=0.005)
    assert released == replace(RELEASED, success=True, stop=True), "marks and stop need no control"


def test_robot_without_tool_is_refused(nodes: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="go2"):
        Leader(nodes("teleop"), robots.get("go2"), SimpleNamespace(), print)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="--map is for a gamepad"):
        Teleop("leader", map="pad.txt").run()
