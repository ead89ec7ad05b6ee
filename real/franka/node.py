"""The node in front of a Franka arm: the topics of an arm on one side, the processes of arm and hand on the other."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from real.bus import Node
from real.bus.layout import template
from real.bus.stamps import stamped
from real.control.timing import STALL
from real.drivers.names import driver_names, frames
from real.franka.link import ArmState, Goal, Grip, HandState, Link, Recover
from real.held.node import STATE, HeldNode, start
from robot_rl.interface.driver import FrankaControl
from robot_rl.interface.robot import RobotSpec
from robot_rl.util.errors import ConfigError, UserError

SLOW = 500.0
"""Rate of the robot's states below which it is not moved, Hz."""
LOADED = 0.5
"""Share of the limits of external force and torque above which an arm at rest is not moved."""
NARROW = 0.005
"""Distance by which a hand that is homed may open less than the spec says, m."""


class FrankaNode(HeldNode):
    """Robot process of a Franka arm, which also publishes the external wrench."""

    SILENT = "is it a Franka, and is FCI activated in Desk? Its network must be this computer's"

    def __init__(
        self, node: Node, robot: RobotSpec, host: str, dry_run: bool = False, realtime: bool = False,
        limits: dict[str, float] | None = None,
    ):  # fmt: skip
        if not isinstance(robot.driver, FrankaControl):
            raise ConfigError(f"robot {robot.name!r} does not speak Franka's protocol; see `robot-rl robots`")
        changed = dict[str, Any](limits or {})
        try:
            self.config = replace(robot.driver, **changed)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        super().__init__(node, robot, host)
        self.arm_state: ArmState | None = None
        self.hand_state = HandState(robot.gripper.width if robot.gripper else 0.0, 0.0, 0.0, 0.0, -math.inf)
        settings = {"robot": robot.name, "host": host, "dry_run": dry_run, "realtime": realtime, "limits": changed}
        for part in ("arm", "hand") if robot.gripper else ("arm",):
            self.parts.append(start(part, [sys.executable, "-m", f"real.franka.{part}"], Link, settings))
        names = list(driver_names(node, robot))
        zero = np.zeros(len(names))
        base = {"header": {"frame_id": frames(node, robot)[0]}}
        fields = {"name": names, "position": zero, "velocity": zero, "effort": zero}
        self._joints = template("sensor_msgs/msg/JointState", **base, **fields)
        self._wrench = template("geometry_msgs/msg/WrenchStamped", **base)
        self.wrench = node.publisher("geometry_msgs/msg/WrenchStamped", "external_wrench", STATE)
        self.listen()

    def follow(self, q: tuple[float, ...], received: float) -> None:
        self.parts[0].link.send(Goal(received, q))

    def grip(self, width: float) -> None:
        assert self.robot.gripper
        self.parts[1].link.send(Grip(width, self.robot.gripper.force))

    def recover(self, number: int) -> None:
        self.parts[0].link.send(Recover(number))

    def remedy(self, reason: str) -> str:
        return "; correct --host: the robot's address, as in the browser for Desk" if "Host not found" in reason else ""

    def missing(self) -> str:
        if self.arm_state is None:
            return "arm"
        return "hand" if not self.arm_state.rate or (len(self.parts) > 1 and self.hand_state.time < 0) else ""

    def preflight(self) -> str:
        state = self.arm_state
        assert state is not None
        if state.rate < SLOW:
            raise UserError(
                f"{self.robot.name} at {self.where}: {state.rate:.0f} states arrive in a second, and the robot sends "
                "1000; use a wired network of its own, and a computer with nothing else to do"
            )
        self._check_hand()
        self._check_load(state)
        home = np.abs(np.array(state.q) - self.robot.home).max()
        where = f"{home:.2f} rad from home, {state.mass:.2f} kg on the flange, {state.rate:.0f} states a second"
        return f"{where}; {self.states.topic} at {self.robot.state_rate:g} Hz"

    def _check_hand(self) -> None:
        """Raise UserError if the hand has not been homed: it then knows no widths."""
        gripper, widest = self.robot.gripper, self.hand_state.max_width
        if gripper and widest < gripper.width - NARROW:
            raise UserError(
                f"{self.robot.name} at {self.where}: its hand opens to {1000 * widest:.0f} mm, and the spec says "
                f"{1000 * gripper.width:.0f}, as if it were not homed; take out what it holds and home it, in Desk or "
                f"by python -c \"import pylibfranka; pylibfranka.Gripper('{self.where}').homing()\""
            )

    def _check_load(self, state: ArmState) -> None:
        """Raise UserError if forces act on the arm at rest: it does not know its load, or something presses on it."""
        force, torque = math.hypot(*state.wrench[:3]), max(map(abs, state.tau_external))
        if force > LOADED * self.config.max_force or torque > LOADED * self.config.max_torque:
            raise UserError(
                f"{self.robot.name} at {self.where}: at rest, {force:.0f} N and {torque:.1f} N m at a joint act on it, "
                f"and {self.config.max_force:g} N or {self.config.max_torque:g} N m would stop it; set end effector "
                f"and load in Desk ({state.mass:.2f} kg are set), or the load in the spec, and let nothing touch it"
            )

    @property
    def state_time(self) -> float | None:
        return self.arm_state.time if self.arm_state else None

    @property
    def stalls(self) -> int:
        return int(self.arm_state.stalls) if self.arm_state else 0

    def take(self, message: Any) -> None:
        if isinstance(message, ArmState):
            self.arm_state = message
            self._publish(message)
        elif isinstance(message, HandState):
            self.hand_state = message

    def _publish(self, state: ArmState) -> None:
        fingers = len(self.robot.fingers)
        half = self.hand_state.width / max(1, fingers)
        position, velocity = np.array([*state.q, *[half] * fingers]), np.array([*state.dq, *[0.0] * fingers])
        effort = np.array([*state.tau, *[0.0] * fingers])
        self.publish(self._joints.write(position=position, velocity=velocity, effort=effort, **stamped()))
        if self.wrench.matched:
            names = [f"wrench.{kind}.{axis}" for kind in ("force", "torque") for axis in "xyz"]
            self.wrench.publish(self._wrench.write(**stamped(), **dict(zip(names, state.wrench, strict=True))))

    def values(self) -> dict[str, Any]:
        state = self.arm_state
        assert state is not None
        share = state.lost / max(1.0, state.cycles)
        return {
            "success rate": f"{state.success_rate:.3f}", "cycles": int(state.cycles), "lost": int(state.lost),
            "lost share": f"{share:.5f}", "states, Hz": f"{state.rate:.0f}", "answer, ms": f"{1000 * state.answer:.2f}",
            "mass on the flange, kg": f"{state.mass:.2f}", "lost in a row": int(state.lost_in_row),
            f"stalls over {1000 * STALL:.0f} ms": int(state.stalls),
            "failed motions of the hand": int(self.hand_state.failed),
        }  # fmt: skip

    def summary(self) -> str:
        state = self.arm_state
        if state is None:
            return "the robot was not reached"
        lost = f"{int(state.lost)} of {int(state.cycles)} cycles lost, at most {int(state.lost_in_row)} in a row"
        return f"{lost}; stood still {int(state.stalls)} times; not following: {json.dumps(self.counts)}"
