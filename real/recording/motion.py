"""Log of a robot's motion: at each tick of the command loop what was measured and what was sent."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from real import clock
from robot_rl.data.motion import OBJECT, write_motion

if TYPE_CHECKING:
    from real.control.loop import CommandLoop
    from real.drivers.state import JointReading

SECONDS = 60.0
"""Length of the log, s: of a longer run its end is kept. It takes 2 MB of an arm at 200 Hz, 8 MB of a Go2."""


class MotionLog:
    """Record a command loop in arrays that are allocated once, so that a tick only copies numbers."""

    def __init__(self, loop: CommandLoop, task: str = "", period: float = 0.0):
        """Args: `period`: of the policy's actions, s."""
        self.loop, robot = loop, loop.pipeline.robot
        self._task, self._period = task, period
        self.facts: dict[str, Any] = {}
        """Further facts of the log."""
        self._ticks, joints = round(SECONDS * robot.command_rate), len(robot.joints)
        self._rows: dict[str, np.ndarray] = {}
        self._joints, self.count = joints, 0
        """`count`: number of recorded ticks, including those that were overwritten."""
        loop.record = self.add

    def add(self, now: float, reading: JointReading) -> None:
        """Record a tick at `now`, s, after its command was sent; called by the command thread."""
        loop = self.loop
        row: dict[str, Any] = {
            "time": now, "received": reading.received, "position": reading.position, "velocity": reading.velocity,
            "setpoint": loop.setpoint[0].numpy(), "gripper": loop.sent_width, "follows": not loop.holding,
        }  # fmt: skip
        for name in ("quat", "gyroscope"):  # of a legged robot
            if (value := getattr(reading, name, None)) is not None:
                row[name] = value
        for name, (position, arrival) in loop.driver.scene.newest().items():
            row[f"{OBJECT}{name}"] = (arrival, *position.tolist())
        if not self._rows:
            for name in loop.driver.scene.poses:  # whose first pose may come later
                row.setdefault(f"{OBJECT}{name}", (-math.inf, 0.0, 0.0, 0.0))
            self._rows = {name: self._column(name, value) for name, value in row.items()}
        place = self.count % self._ticks
        for name, value in row.items():
            self._rows[name][place] = value
        self.count += 1

    def _column(self, name: str, value: Any) -> np.ndarray:
        exact = name in ("time", "received") or name.startswith(OBJECT)
        kind = np.float64 if exact else bool if name == "follows" else np.float32
        return np.zeros((self._ticks, *np.shape(value)), kind)

    def write(self, folder: Path) -> None:
        """Write motion.npz, if anything was recorded and sent."""
        loop = self.loop
        if not self.count or loop.driver.dry_run:
            return
        order = np.arange(max(0, self.count - self._ticks), self.count) % self._ticks
        robot = loop.pipeline.robot
        facts = {
            "robot": robot.name, "task": self._task, "command": loop.pipeline.controller.command.__name__,
            "command_rate": robot.command_rate, "period": self._period, "lockstep": clock.in_lockstep(),
            "whole": self.count <= self._ticks,
            "state_rate": getattr(robot.driver, "state_rate", None) or robot.state_rate,
        } | self.facts  # fmt: skip
        write_motion(folder, facts, {name: column[order] for name, column in self._rows.items()})
