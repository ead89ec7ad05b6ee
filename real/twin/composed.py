"""A robot's twin, and its guard, in the process of a session, as ROS 2 composes nodes.

They run in lockstep with it, by the same messages on the same topics as in processes of their own; results are the same
to the bit. It takes about half of the time, as no message goes from process to process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from real import clock
from real.bus import open_node
from real.conductor import Conductor
from real.control.guard import Guard
from real.lockstep import ClockError
from real.twin import Twin, open_twin
from robot_rl.interface.driver import UnitreeLowLevel
from robot_rl.robots import robots
from robot_rl.util.errors import UserError
from sim.tasks.base import Task

logger = logging.getLogger(__name__)


class _Part(threading.Thread):
    """Thread of a composed node; its error ends the others."""

    def __init__(self, name: str, run: Callable[[], None], time: Any):
        super().__init__(name=name, daemon=True)
        self._call, self._time = run, time

    def run(self) -> None:
        try:
            self._call()
        except ClockError:  # the session has ended, or tells it
            return
        except Exception as error:
            logger.exception("the %s ended", self.name)
            self._time.fail(f"the {self.name} ended: {error}")


def _release(conductor: Conductor) -> None:
    """Let go of a guard that waits for a session that never took part."""
    if not conductor.clock.joined:
        conductor.clock.fail("the session has ended")


@contextmanager
def composed_twin(task: Task, ros_args: Sequence[str] = (), speed: float = 0.0, **options: Any) -> Iterator[Twin]:
    """Simulate the task's robot in this process, which must not have opened a node before, until the end of the block.

    The process's main thread takes part by `clock.join`. `options`: of the twin, see `open_twin`. `speed`: largest
    multiple of real time; 0: no limit.
    """
    robot = robots.get(task.interface.robot)
    guarded = isinstance(robot.driver, UnitreeLowLevel)
    with ExitStack() as opened:
        node = opened.enter_context(open_node("twin", ros_args=ros_args, rate=robot.command_rate))
        if clock.in_lockstep():
            raise UserError("the twin in this process has its own time: leave use_sim_time out")
        conductor = Conductor(node, (), 1 / robot.command_rate, speed, parties=1 + guarded)
        opened.callback(clock.use, clock.WALL)
        twin = open_twin(node, task, **options)
        twin.check_single_publisher()
        simulation = _Part("twin", lambda: twin.run(conductor), conductor.clock)
        opened.callback(simulation.join)
        opened.callback(twin.close)
        simulation.start()
        if guarded:
            guard = Guard(opened.enter_context(open_node("guard", ros_args=ros_args)), robot)
            guarding = _Part("guard", guard.run, conductor.clock)
            opened.callback(guarding.join)
            opened.callback(guard.close)
            guarding.start()
        opened.callback(_release, conductor)
        opened.callback(clock.leave)  # after an error: the others do not wait for this thread
        yield twin
