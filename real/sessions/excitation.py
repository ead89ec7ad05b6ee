"""Move a robot so that its log shows its parameters: chirps of all joints about home, within the shield."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import numpy as np
import torch

from real import clock
from real.bus import Node, make
from real.control.timing import Ticker
from real.drivers.state import NotReady
from real.episode.env import RobotEnv
from real.recording.motion import MotionLog
from real.topics import HOLD_TOPIC, TEXT
from robot_rl.interface.pipeline import Interface
from robot_rl.interface.robot import RobotSpec
from robot_rl.training.run import Run

logger = logging.getLogger(__name__)
SLOWEST, FASTEST = 0.1, 2.0
"""Frequencies of the chirps, Hz."""
SWEEP = 20.0
"""Time from the slowest to the fastest, s."""
REACH, LEG_REACH, FREE_REACH = 0.15, 0.05, 0.4
"""Amplitude of an arm's joint at low frequencies, of that of a standing robot's leg, and of a hung robot's, rad."""
SHARE = 0.7
"""Share of the shield's limits of speed and acceleration that a chirp uses."""
GENTLE, HAND_REACH = 0.15, 0.6
"""The same with an object in the gripper, which must not slip; and the amplitude, rad, of the joint that turns it."""
CLOSING = 3.0
"""Time in which the gripper closes on an object, s."""


def chirp(
    robot: RobotSpec, interface: Interface, time: np.ndarray, holds: bool = False, hung: bool = False
) -> np.ndarray:
    """Return joint positions (T, J), rad, at equally spaced times (T,) s. Joints have different frequencies at a time,
    so that the log tells them apart; fast motion is smaller, within the shield's limits. With something in the gripper
    (`holds`), motion is gentle, and the last joint turns the hand. The legs of a `hung` robot move far."""
    limits, joints, share = interface.shield, len(robot.joints), GENTLE if holds else SHARE
    paths = []
    for k, (joint, home) in enumerate(zip(robot.joints, robot.home, strict=True)):
        up = (time / SWEEP + 2 * k / joints) % 2
        rate = SLOWEST * (FASTEST / SLOWEST) ** np.where(up > 1, 2 - up, up)
        turn = 2 * math.pi * rate
        phase = np.cumsum(turn) * (time[1] - time[0])
        most = REACH if robot.base is None else FREE_REACH if hung else LEG_REACH
        most = HAND_REACH if holds and k == joints - 1 else most
        size = np.minimum(most, share * limits.velocity * joint.velocity / turn)
        if not robot.compliant:
            size = np.minimum(size, share * limits.acceleration * joint.acceleration / turn**2)
        room = min(joint.high - home, home - joint.low) - limits.margin
        paths.append(home + np.minimum(size, max(0.0, room)) * np.sin(phase) * np.minimum(1.0, time))
    return np.stack(paths, 1)


class Excitation:
    """A robot that is moved for identification."""

    def __init__(self, run: Run, node: Node, interface: Interface, robot: RobotSpec):
        """Connect to the robot and check its topics; NotReady if something is missing."""
        self._run, self.robot, self.interface = run, robot, interface
        self.env = RobotEnv(node, interface, robot=robot)
        self.motion = MotionLog(self.env.loop, interface.task, self.env.period)
        self._hold = node.publisher(TEXT, HOLD_TOPIC)

    def run(self, seconds: float, hold: str, progress: Callable[[int, int], None], hung: bool = False) -> None:
        """Go home, or stand up; take `hold` in the gripper; chirp for `seconds`. `hung`: the robot hangs in the air."""
        env, period = self.env, self.env.period
        env.activate()
        env.reset(seed=0)
        width = self.robot.gripper.width if self.robot.gripper else 0.0
        ticker = Ticker(period)
        if hold:
            self._take(hold, ticker)
            width = 0.0
        self.motion.count = 0  # what follows is the log
        times = period * np.arange(1, round(seconds / period) + 1)
        path = torch.from_numpy(chirp(self.robot, self.interface, times, bool(hold), hung))
        self.motion.facts = {"hung": hung}
        for k, goal in enumerate(path.float()):
            env.read()
            if not env.loop.set_goal(goal[None], width, period):
                raise NotReady(f"stopped: {env.loop.stopped or 'a goal was refused'}")
            ticker.wait()
            progress(k + 1, len(path))

    def _take(self, name: str, ticker: Ticker) -> None:
        """Close the gripper on an object that a person, or the twin, holds between the fingers."""
        home, env = torch.tensor(self.robot.home)[None], self.env
        if env.on_twin or env.node.wait_for(lambda: env.on_twin, 0.5):
            self._hold.publish(make(TEXT, data=name))
        else:
            logger.warning("hold %s between the fingers: they close in %g s", name, CLOSING)
        begin = clock.now()
        while clock.now() < begin + 2 * CLOSING:
            env.read()
            closes = env.on_twin or clock.now() > begin + CLOSING
            env.loop.set_goal(home, 0.0 if closes else env.loop.sent_width, env.period)
            ticker.wait()

    def close(self) -> None:
        """Stop the robot, and write the log."""
        try:
            self.env.close()
        finally:
            self.motion.write(self._run.folder)
