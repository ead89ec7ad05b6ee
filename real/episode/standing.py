"""Stand a legged robot up before an episode, and lay it down at the end."""

import logging
import math

import torch
from torch import Tensor

from real import clock
from real.bus import make
from real.control.stop import BY_PERSON
from real.control.timing import Ticker
from real.drivers.lowlevel import FIRMEST
from real.drivers.state import NotReady
from real.drivers.unitree import GUARD_GONE, LowCommands
from real.episode.rig import Rig
from real.topics import INT
from robot_rl.interface.shield import JointShield
from robot_rl.interface.state import RobotState

logger = logging.getLogger(__name__)
RISE = 2.0
"""Duration of standing up, and of lying down, s."""
FIRM = 0.3
"""Fraction of standing up, or lying down, after which the motors' springs have their final stiffness."""
CROOKED = 0.4
"""Distance of a joint from its folded position above which the legs are folded before standing up, rad."""
TRIES = 3
"""Maximum number of attempts to stand up for one episode."""
LEVEL = math.cos(math.radians(45))
"""Cosine of the maximum tilt from which the robot may stand up."""


class Standing:
    """Reset of a legged robot: stand up for an episode, and lie down at the end.

    ::

        damped ──begin: fold legs if necessary, then home in 2 s, stiffness growing──> standing ──end──> lying, damped
           ^── stop, tilt, stale state or goal: at any time ──┘
    """

    def __init__(self, env: Rig):
        robot, driver = env.pipeline.robot, env.driver
        assert robot.base is not None
        self.env, self.driver = env, driver
        self.stands = False
        """The robot has stood up and has the policy's stiffness."""
        self.home, self.lying = torch.tensor(robot.home)[None], torch.tensor(robot.base.lying or robot.home)[None]

    def begin(self, seed: int) -> None:
        """Reset a latched stop and stand up. NotReady if the robot is damped again in each of `TRIES` attempts."""
        loop, tries, reason = self.env.loop, 0, ""
        while not self.driver.dry_run and (loop.stopped or loop.is_damped):
            if loop.stopped:
                tries, reason = tries if self.auto_resets_stop else 0, loop.stopped
                self._release(seed)
            elif tries < TRIES:
                tries += 1
                self._stand_up()
            else:
                raise NotReady(f"standing up failed {TRIES} times: {reason or 'no robot state'}")

    def end(self) -> None:
        """Lie down if standing and not stopped; the loop then damps the robot."""
        loop = self.env.loop
        if self.driver.dry_run or loop.stopped or loop.is_damped or not loop.armed or not self._level():
            return
        try:
            if self.stands:
                # Put all four feet down first: folding two legs tips the robot over.
                self._go(self.home, 0.1, FIRMEST, 1 / 10)
                self._go(self.home, 0.1, FIRMEST, 1 / 4)
            self._go(self.lying, FIRM, FIRMEST)
            self._go(self.lying, 1.0, 0.0, 1 / 4)  # on its belly: reduce stiffness slowly
        except NotReady as error:
            logger.warning("damped where it stood: %s", error)

    @property
    def _legs(self) -> LowCommands:
        assert isinstance(self.driver.commands, LowCommands)  # not in a dry run
        return self.driver.commands

    @property
    def auto_resets_stop(self) -> bool:
        """Return whether the next episode clears a latched stop by itself: on a twin, unless a person stopped it."""
        return self.env.loop.stopped not in BY_PERSON and not self.env.foreign_publisher and self.env.on_twin

    def folded(self, state: RobotState) -> bool:
        """Return whether the legs are nearer to the folded posture than to home."""
        q = state.joint_position
        return bool((q - self.lying).abs().mean() < (q - self.home).abs().mean())

    def _level(self) -> bool:
        reading = self.driver.reading()
        return reading is not None and reading.upright > LEVEL

    def _release(self, seed: int) -> None:
        """Reset a latched stop: a person sets a fallen robot on its belly and presses reset; a twin resets itself."""
        env = self.env
        if not self.auto_resets_stop:
            env.await_release()
            return
        joints = self.driver.state.joints
        # States of up to 50 ms may predate the reset.
        enough = (joints.latest.count if joints.latest else 0) + round(0.05 * env.pipeline.robot.state_rate)
        env.placer.publish(make(INT, data=seed))
        rate, deadline = Ticker(env.period), clock.now() + 5.0
        while joints.latest is None or joints.latest.count < enough or not self._level():
            if clock.now() > deadline:
                raise NotReady("the twin did not put the robot back on its belly within 5 s; start the twin again")
            operator = env.look()
            if (operator is not None and operator.stop) or env.stop_topic.reason(clock.now()):
                env.await_release()
                return
            env.read()
            rate.wait()
        self.driver.state.jumps.forget()
        env.loop.reset_stop()

    def _stand_up(self) -> None:
        if self.driver.objection(clock.now()) == GUARD_GONE and not self._legs.guard.wait(1.0):
            raise NotReady(f"{GUARD_GONE}: start it again, and then this (robot-rl guard {self.driver.robot.name})")
        self.stands, reading = False, self.driver.reading()
        self._rehearse()
        if reading is None or not self._level():
            tilt = math.degrees(math.acos(max(-1.0, min(1.0, reading.upright)))) if reading else math.nan
            raise NotReady(f"the robot is tilted by {tilt:.0f} degrees; set it on its belly and start again")
        # After a stop in mid-stride a leg may lie under the trunk; folding frees it.
        crooked = float((self.env.read().joint_position - self.lying).abs().max()) > CROOKED
        if crooked and (not self._go(self.lying, FIRM, 1.0, 1 / 2) or self.env.loop.is_damped):
            return
        if not self._go(self.home, FIRM, FIRMEST) or self.env.loop.is_damped:
            return
        self._legs.stiffness_scale = 1.0  # the policy begins as in simulation
        self.stands = True
        off = float((self.env.read().joint_position - self.home).abs().max())
        if off > 0.4:
            self.env.loop.stop("the robot did not stand up")
            raise NotReady(f"the robot did not stand up, a joint is {off:.1f} rad from where it should be; is it held?")

    def _rehearse(self) -> None:
        for rehearse in self.env.warmups:
            rehearse()

    def _go(self, goal: Tensor, firm: float, last: float, part: float = 1.0) -> bool:
        """Move the joints to `goal` (1, J) in `part * RISE` seconds; return False after a stop.

        A damped robot starts at its measured positions with zero stiffness. Otherwise the motion starts at the
        set-points with the present stiffness, so that the robot does not drop. After the fraction `firm` of the motion
        the stiffness is `last` times the spec's stiffness.
        """
        env, loop = self.env, self.env.loop
        shield = env.pipeline.shield
        assert isinstance(shield, JointShield)
        start = env.read().joint_position if loop.is_damped else loop.goal
        start = start.clamp(shield.low, shield.high)  # folded legs rest on their stops
        first = 0.0 if loop.is_damped else self._legs.stiffness_scale
        steps = round(part * RISE / env.period)
        rate = Ticker(env.period)
        for k in range(1, steps + 1):
            env.look()
            env.read()
            if loop.stopped:
                return False
            if not self.stands:
                self._rehearse()
            share = k / steps
            self._legs.stiffness_scale = first + (last - first) * min(1.0, share / firm)
            smooth = share * share * (3 - 2 * share)
            loop.set_goal(start + smooth * (goal - start), 0.0, env.period)
            rate.wait()
        return True
