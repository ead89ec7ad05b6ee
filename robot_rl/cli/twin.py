"""`robot-rl twin`: a simulated robot behind the real robot's topics."""

from __future__ import annotations

from dataclasses import dataclass, field

from robot_rl.cli import options as opt
from robot_rl.util.limits import NonNegativeFloat, Seed


@dataclass
class Twin:
    """Run a simulated robot in real time behind the real robot's topics, with hidden dynamics."""

    robot: opt.RobotName
    task: str | None = None
    """Task whose objects are simulated; default: the robot's first, see `robot-rl tasks`."""
    seed: Seed = 0
    """Seed of noise and of the objects' initial poses."""
    mjcf: opt.Mjcf = ""
    camera: bool = True
    """Publish camera images."""
    push_every: NonNegativeFloat = 0.0
    """Interval between pushes of a legged robot, s; 0: none."""
    seconds: NonNegativeFloat = 0.0
    """Duration, s; 0: until Ctrl-C."""
    ros_args: opt.RosArgs = field(default_factory=list)

    def run(self) -> int:
        """Publish until interrupted; return the exit status."""
        import signal
        import threading

        import torch

        from real.bus import open_node
        from real.twin import open_twin
        from robot_rl.cli.console import console
        from robot_rl.robots import robots
        from sim.tasks import task_of

        torch.set_num_threads(1)
        robot = robots.get(self.robot)
        task = task_of(self.robot, self.task)
        with open_node("twin", ros_args=self.ros_args, rate=robot.command_rate) as node:
            options = {"push_every": self.push_every} if robot.base else {}
            twin = open_twin(node, task, seed=self.seed, cameras=self.camera, mjcf=self.mjcf, **options)
            twin.check_single_publisher()

            def end(*_: object) -> None:
                if twin.drain():
                    console.print("a program commands the robot: waiting for its end; a second Ctrl-C ends at once")

            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, end)
            if self.seconds:
                timer = threading.Timer(self.seconds, twin.close)
                timer.daemon = True
                timer.start()
            console.print(
                f"twin of {self.robot} is up: {twin.states.topic} at {twin.robot.command_rate:g} Hz; Ctrl-C ends it"
            )
            twin.run()
        console.print(f"twin: {twin.summary()}", soft_wrap=True)
        return 0
