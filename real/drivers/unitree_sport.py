"""Driver of a robot in Unitree's sport mode: it receives LowState and sends velocities to the robot's service."""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from real import clock
from real.bus import Node, Publisher
from real.control.health import Health
from real.drivers.commands import Commands
from real.drivers.driver import DriverParts
from real.drivers.lowlevel import REPORT
from real.drivers.motion_switcher import MotionSwitcher
from real.drivers.state import NotReady, StateReader
from real.drivers.unitree import LowState
from real.drivers.unitree_api import ApiClient
from real.topics import GUARD_TOPIC, STATUS
from robot_rl.interface.command import BaseVelocity, Command
from robot_rl.interface.driver import UnitreeSport
from robot_rl.interface.robot import RobotSpec

logger = logging.getLogger(__name__)
BALANCE_STAND, STOP_MOVE, MOVE = 1002, 1003, 1008
"""Api ids of sport mode."""
ASK, PATIENCE = 0.5, 2.0
"""Interval at which a request is to be answered, and longest wait for the answer, s."""
UNNAMED = "an unnamed DDS participant"
"""Beginning of the names of programs without a ROS node."""


class SportService(ApiClient):
    """Client that streams requests, and asks for an answer to some of them."""

    fault = ""
    """What is wrong with the answers; empty if nothing."""
    _asked = -float("inf")

    def request(self, api: int, parameter: Mapping[str, Any], must_answer: bool = False) -> None:
        """Send a request without waiting; `must_answer`: and not only every `ASK` s is the service to answer it."""
        now = clock.now()
        ask = must_answer or (not self._awaited and now - self._asked >= ASK)
        if not self._awaited:
            self._asked = now if ask else self._asked
            self._answers.clear()
        self.send(api, parameter, ask)

    def answered(self, identity: int, code: int, data: str) -> None:
        super().answered(identity, code, data)
        if code:
            self.fault = (
                f"service {self.service!r} of the robot answers with error {code}; look at the robot's state in "
                "Unitree's app, and let it stand up"
            )

    def objection(self, now: float) -> str:
        """Return why the service cannot be relied on at `now`, s; empty if it can."""
        if self._awaited and now - self._asked > PATIENCE:
            silent = f"service {self.service!r} of the robot has not answered for {PATIENCE:g} s"
            return f"{silent}; if the robot walks on, press L2 and B on its remote"
        return self.fault

    def forget(self) -> None:
        """Forget requests without an answer, and errors."""
        self._awaited.clear()
        self.fault = ""


class SportState(LowState):
    """Reader of LowState that judges motors and battery too."""

    def __init__(self, node: Node, robot: RobotSpec, realtime: bool = True):
        assert isinstance(robot.driver, UnitreeSport)
        self.health: Health | None = None  # states may arrive while the base class is built
        super().__init__(node, robot, realtime)
        self.health = Health(self.motors, robot.driver)

    def accepted(self, message: np.ndarray, now: float) -> None:
        if self.health:
            self.health.look(message, now)


class SportCommands(Commands):
    """Sender of velocities: Move while they are not zero, StopMove once when they become zero and at every stop.

    It never damps: that would drop a robot that stands, and what it carries. L2 and B of the remote still do.
    """

    accepts = (BaseVelocity,)

    def __init__(self, node: Node, robot: RobotSpec, state: StateReader):
        super().__init__(node, robot, state)
        config = robot.driver
        assert isinstance(config, UnitreeSport)
        self.sport = SportService(node, config.service)
        self.switcher = MotionSwitcher(node, config.motion_switcher)
        self.guard = node.subscribe(STATUS, GUARD_TOPIC, REPORT)
        self.publishers = [self.sport.requests]
        self._moving = self._balances = False
        self._trouble = self._warned = ""
        self._own: list[str] | None = None
        """Programs without a node that sent requests before this one; None before `wait_ready`."""

    def wait_executor(self, timeout: float) -> None:
        """Wait for the robot's services; raise NotReady or UserError unless a mode of its own is active, and no guard
        runs."""
        for client in (self.switcher, self.sport):
            served = partial(getattr, client, "served")
            if not self.node.wait_for(served, timeout):
                raise NotReady(
                    f"service {client.service!r} of the robot is not there; is the robot on, has it started, and is "
                    "this computer on its network (CYCLONEDDS_URI)?"
                )
        if trouble := self._guarded() or self._inactive(self.switcher.check()):
            raise NotReady(trouble)

    def wait_ready(self, timeout: float) -> None:
        self._own = [name for name in self.sport.requests.other_writers() if name.startswith(UNNAMED)]
        if self._own:
            logger.info("%d programs without a ROS node may command the robot too", len(self._own))

    def rivals(self, publisher: Publisher, process: bool = False) -> list[str]:
        """Return other publishers of requests, but for those without a ROS node that were there at the start: programs
        on the robot, such as that of Unitree's app."""
        others = super().rivals(publisher, process)
        own = (UNNAMED,) if self._own is None else tuple(self._own)
        return [name for name in others if not name.startswith(own)]

    def send(self, command: Command, rate: Tensor) -> None:
        x, y, yaw = (round(value, 4) for value in command.values[0].tolist())
        if not self._balances:  # a robot that has stood up by itself locks its joints
            self._balances = True
            self.sport.request(BALANCE_STAND, {}, must_answer=True)
        if x or y or yaw:
            self._moving = True
            self.sport.request(MOVE, {"x": x, "y": y, "z": yaw})
        elif self._moving:
            self.rest()

    def rest(self) -> None:
        self._moving = False
        self.sport.request(STOP_MOVE, {}, must_answer=True)

    def objection(self, now: float) -> str:
        assert isinstance(self.state, SportState) and self.state.health
        return self._trouble or self.sport.objection(now) or self.state.health.hot or self.state.health.low

    def recover(self) -> None:
        self.sport.forget()
        self._balances = False

    def watch(self) -> None:
        self.switcher.look()
        gone = "" if self.sport.served else f"service {self.sport.service!r} of the robot has gone"
        self._trouble = gone or self._guarded() or self._inactive(self.switcher.mode)
        assert isinstance(self.state, SportState) and self.state.health
        if (warning := self.state.health.warning) and warning != self._warned:
            logger.warning("%s", warning)
        self._warned = warning or self._warned

    def executor(self, topic: str) -> str:
        return "is the robot on, and this computer on its network?"

    def _guarded(self) -> str:
        if not (guards := self.guard.writers(process=True)):
            return ""
        return f"{' and '.join(guards)} is a guard, which commands the motors that sport mode commands; end it"

    def _inactive(self, mode: str) -> str:
        return "" if mode else "no mode of the robot is active, so nothing walks: choose sport mode in Unitree's app"


DRIVER = DriverParts(SportState, SportCommands)
