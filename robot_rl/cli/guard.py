"""`robot-rl guard`: the one writer of a robot's motor commands."""

from __future__ import annotations

from dataclasses import dataclass, field

import tyro

from robot_rl.limits import NonNegative


@dataclass
class Guard:
    """Pass a policy's motor commands on to the robot, checked, and damp the robot when they stop or make no sense.

    Runs beside `robot-rl deploy`, which commands a walking robot through it alone. Ctrl-C ends it once nobody commands;
    a second one ends it at once. The robot is damped then."""

    robot: tyro.conf.Positional[str]
    """Name of the robot, see `robot-rl robots`."""
    wait: NonNegative = 60.0
    """Longest wait for the robot's first state, s."""
    json: bool = False
    """Print its timing as one JSON object instead of a line."""
    ros_args: tyro.conf.Suppress[list[str]] = field(default_factory=list)

    def run(self) -> int:
        """Guard until a signal; return the exit status."""
        import gc
        import signal
        import sys

        from real.bus import open_node
        from real.guard import Guard as RunningGuard
        from robot_rl.cli.console import console, show
        from robot_rl.robots import robots

        robot = robots.get(self.robot)
        with open_node("guard", ros_args=self.ros_args) as node:
            guard = RunningGuard(node, robot, self.wait)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: guard.close())
            console.print(
                f"guard of {self.robot} is up: {guard.wanted.topic} -> {guard.output.topic} "
                f"at {robot.command_rate:g} Hz; Ctrl-C ends it"
            )
            # Nothing here makes reference cycles, and a collection would take longer than a tick.
            gc.collect()
            gc.disable()
            guard.run(lambda text: print(f"guard: {text}", file=sys.stderr))  # noqa: T201 - a table takes several ticks
        if self.json:
            show(guard.timing | {"damped": guard.events}, True)
        else:
            console.print(f"guard: {guard.summary()}", soft_wrap=True)
        return 0
