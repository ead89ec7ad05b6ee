"""Start of an arm's episode: move home through the shield and have the objects placed."""

import itertools
import logging
from collections.abc import Callable

import torch

from real import clock
from real.bus import make
from real.control.stop import BY_PERSON
from real.control.timing import Ticker
from real.drivers.state import NotReady
from real.episode.rig import Rig
from real.teleop.commands import FirstInput, Operator
from real.topics import INT
from robot_rl.interface.command import EMPTY, may_hold

logger = logging.getLogger(__name__)
STILL = 0.01
"""Largest joint motion with which a robot counts as not responding to commands, rad."""
NEAR = 0.01
"""Height above its support from which a held object may drop, m. Lowering it further would double the time."""


class Homing:
    """Reset of an arm: go home, then have the twin or a person place the objects."""

    def __init__(self, env: Rig):
        self.env, robot = env, env.pipeline.robot
        self.home = torch.tensor(robot.home)[None]
        self.width = robot.gripper.width if robot.gripper else 0.0
        self._first = True

    def begin(self, seed: int) -> None:
        """Await the reset of a latched stop, set down a held object, go home, have the objects placed for `seed`. What
        the gripper holds before the first episode stays in it, until the operator takes it."""
        if self.env.loop.stopped:
            self.env.await_release()
        if not self.env.driver.dry_run:
            first, self._first = self._first, False
            self.set_down()
            if first and self._may_hold():
                self._return_found()
            self.go_home()
            self._place(seed)

    def _may_hold(self) -> bool:
        robot = self.env.pipeline.robot
        return robot.gripper is not None and may_hold(robot, float(self.env.read().gripper_width))

    def _return_found(self) -> None:
        """Go home with the gripper shut, and wait until the operator wants it to open."""
        width = 1000 * float(self.env.read().gripper_width)
        self.go_home(shut=True)
        if self.env.node.wait_for(lambda: self.env.on_twin, 0.5):
            return
        what = f"the gripper is {width:.0f} mm open, so it may hold something"
        if not self.env.attended():
            raise NotReady(f"{what}: take it out and open the gripper, or start a teleop device, whose reset opens it")
        logger.warning("%s: hold it, and press reset on the teleop device; then the gripper opens", what)
        self._hold_until(lambda operator: operator is not None and operator.reset, 600.0, "reset button", shut=True)

    @property
    def auto_resets_stop(self) -> bool:
        """Return whether the next episode clears a latched stop by itself: never for an arm."""
        return False

    def end(self) -> None:
        """Do nothing: the command loop brakes and holds."""

    def _check_stop(self) -> Operator | None:
        """Read the operator's input; raise NotReady if a person has pressed stop."""
        operator = self.env.look()
        if operator is not None and operator.stop:
            raise NotReady("the operator pressed stop")
        if self.env.loop.stopped in BY_PERSON:
            raise NotReady(f"stopped: {self.env.loop.stopped}")
        return operator

    def set_down(self, timeout: float = 5.0) -> None:
        """Lower a held object straight down, through the shield, to the lowest height that the tool has had since it
        gripped, so that opening the gripper does not drop the object."""
        env, controller = self.env, self.env.pipeline.controller
        if not controller.twist_limit[2]:
            return  # the controller cannot move the tool straight down
        rate, deadline = Ticker(env.period), clock.now() + timeout
        twist, shut = torch.zeros(1, 6), -torch.ones(1, 1)
        while clock.now() < deadline:
            self._check_stop()
            state = env.read()
            height = float(state.tool_position[0, 2]) - env.lowest_grip_height
            if height < NEAR or float(state.gripper_width) < EMPTY:
                break
            twist[0, 2] = -height / controller.twist_limit[2]
            action = controller.from_twist(twist, shut, env.last_action)
            env.loop.set_goal(env.pipeline.target(state, action).command.values, 0.0, env.period)
            rate.wait()

    def go_home(self, timeout: float = 8.0, shut: bool = False) -> None:
        """Open the gripper, or shut it, and move home at the shield's speed limits; NotReady if not home `timeout` s
        after the time that this should take."""
        env, rate, settled, farthest = self.env, Ticker(self.env.period), 0, 0.0
        start, robot = env.read().joint_position, env.pipeline.robot
        speed = robot.limit("velocity") * env.pipeline.shield.config.velocity
        timeout += 2 * float(((self.home - start).abs() / speed).max())
        deadline = clock.now() + timeout
        while settled < 3:
            if clock.now() > deadline:
                commands = env.driver.commands
                assert commands is not None
                topic, failure = commands.publishers[0].topic, "did not reach its home position"
                advice = "although it moved; is something in its way?"
                if farthest < STILL:
                    failure, advice = "did not move at all", f"although commands on {topic} were sent and heard; "
                    advice += f"are its drives on? {commands.executor(topic)}"
                raise NotReady(f"the robot {failure} within {timeout:g} s, {advice}")
            self._check_stop()
            state = env.read()
            farthest = max(farthest, float((state.joint_position - start).abs().max()))
            goal, arrived = env.pipeline.shield.toward(state.joint_position, self.home)
            env.loop.set_goal(goal, 0.0 if shut else self.width, env.period)
            settled = settled + 1 if arrived else 0
            rate.wait()

    def _place(self, seed: int, timeout: float = 5.0) -> None:
        """Have the twin reset the objects; on a robot, wait until the operator has placed them and presses reset."""
        env = self.env
        if env.node.wait_for(lambda: env.on_twin, 0.5):
            accepted, before = env.driver.scene.accepted, env.driver.scene.accepted.copy()
            env.placer.publish(make(INT, data=seed))
            polls = itertools.count()

            def placed(operator: Operator | None) -> bool:
                # Up to five poses may predate the reset; without tracked poses, wait six periods for new pictures.
                return next(polls) >= 6 * (not accepted) and all(accepted[k] >= before[k] + 6 for k in accepted)

            self._hold_until(placed, timeout, "object pose")
        else:
            if not env.attended():
                raise NotReady(
                    "no operator or twin to place the object: start the twin, or a teleop device with a reset button"
                )
            logger.warning("place the object and press reset on the teleop device")
            self._hold_until(lambda operator: operator is not None and operator.reset, 600.0, "reset button")

    def await_operator(self, timeout: float = 600.0, patience: float = 30.0) -> None:
        """Wait at home until the operator takes control; NotReady after `patience` s without a teleop device."""
        begins, seen = FirstInput(), clock.now()

        def ready(operator: Operator | None) -> bool:
            nonlocal seen
            if self.env.arbiter.attended:
                seen = clock.now()
            elif clock.now() - seen > patience:
                raise NotReady(
                    f"no teleop device for {patience:g} s: start one, such as `robot-rl teleop keyboard`; finished "
                    "episodes are on disk"
                )
            begun = begins(operator)
            self.env.note("phase", begins.phase)
            return begun

        self._hold_until(ready, timeout, "operator's first input")

    def _hold_until(
        self, ready: Callable[[Operator | None], bool], timeout: float, what: str, shut: bool = False
    ) -> None:
        """Hold the home position, with the gripper open or `shut`, until `ready` returns true; after `timeout` s raise
        NotReady, which names `what`."""
        rate, deadline = Ticker(self.env.period), clock.now() + timeout
        while not ready(self._check_stop()):  # read once per period: a press is reported once
            if clock.now() > deadline:
                raise NotReady(f"waited {timeout:g} s for the {what}")
            self.env.read()
            goal = self.env.pipeline.shield.hold(self.home)
            self.env.loop.set_goal(goal, 0.0 if shut else self.width, self.env.period)
            rate.wait()
