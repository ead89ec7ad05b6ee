"""`robot-rl twin` and `robot-rl guard`: a simulated robot behind the real robot's topics, and the process that alone
writes a legged robot's motor commands."""

from dataclasses import dataclass, field
from typing import Any

from robot_rl.cli import options as opt
from robot_rl.util.limits import NonNegativeFloat, Seed


@dataclass
class Twin:
    """Run a simulated robot, whose dynamics no policy knows, behind the real robot's topics: in real time, or in
    lockstep with the nodes that command it."""

    robot: opt.RobotName
    task: str | None = None
    """Task whose objects are simulated; default: the robot's first task, see `robot-rl tasks`."""
    seed: Seed = 0
    """Seed of noise and of the objects' initial poses."""
    mjcf: opt.Mjcf = ""
    camera: bool = True
    """Publish camera images."""
    push_every: NonNegativeFloat = 0.0
    """Interval between pushes of a legged robot, s; 0: no pushes."""
    seconds: NonNegativeFloat = 0.0
    """Duration, s; 0: until Ctrl-C."""
    fault: opt.TwinFaults = ()
    lockstep: tuple[str, ...] = ()
    """Nodes that take part in lockstep, for example: deploy. They run with the ROS parameter use_sim_time; the twin's
    time, on the topic /clock, goes on when all of them have done what is due."""
    speed: NonNegativeFloat = 0.0
    """In lockstep, largest multiple of real time; 0: as fast as possible."""
    ros_args: opt.RosArgs = field(default_factory=list)

    def run(self) -> int:
        import signal
        import threading

        import torch

        from real.bus import open_node
        from real.conductor import Conductor
        from real.twin import open_twin
        from robot_rl.cli.console import console
        from robot_rl.robots import robots
        from sim.tasks import task_of

        torch.set_num_threads(1)
        robot = robots.get(self.robot)
        task = task_of(self.robot, self.task)
        with open_node("twin", ros_args=self.ros_args, rate=robot.command_rate) as node:
            conductor = Conductor(node, self.lockstep, 1 / robot.command_rate, self.speed) if self.lockstep else None
            options: dict[str, Any] = {"push_every": self.push_every} if robot.base else {}
            options["fault"] = self.fault
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
                + (f"; FAULTS: {twin.faults}" if twin.faults else "")
            )
            twin.run(conductor)
        console.print(f"twin: {twin.summary()}", soft_wrap=True)
        return 0


@dataclass
class Guard:
    """Check a policy's motor commands and forward them to the robot; damp the robot if commands stop or are invalid.

    `robot-rl deploy` commands a legged robot only through a guard. Ctrl-C or closing the terminal ends the guard once
    commands stop; a second Ctrl-C ends the guard at once. The guard leaves the robot damped."""

    robot: opt.RobotName
    wait: NonNegativeFloat = 60.0
    """Longest wait for the robot's first state, s."""
    release: bool = False
    """End the robot's own mode, such as sport mode, if one is active: the robot lies down first."""
    json: bool = False
    """Print the timing as one JSON object instead of a line."""
    ros_args: opt.RosArgs = field(default_factory=list)

    def run(self) -> int:
        import contextlib
        import gc
        import signal
        import sys

        from real.bus import open_node
        from real.control.guard import COMMAND_TIMEOUT
        from real.control.guard import Guard as RunningGuard
        from robot_rl.cli.console import show
        from robot_rl.robots import robots

        def say(text: str) -> None:
            with contextlib.suppress(OSError):  # keep guarding after the terminal has closed
                print(text, file=sys.stderr)  # noqa: T201 - rich's console takes several ticks

        robot = robots.get(self.robot)
        with open_node("guard", ros_args=self.ros_args, rate=robot.command_rate) as node:
            guard = RunningGuard(node, robot, self.wait, self.release)
            node.declare_parameter("robot", self.robot, read_only=True)
            node.declare_parameter("command_timeout", COMMAND_TIMEOUT, "Age of a command, s.", read_only=True)
            node.serve_parameters()
            hung_up = signal.getsignal(signal.SIGHUP)

            def end(number: int, _: object) -> None:
                guard.close()
                if number == signal.SIGHUP:  # a closing terminal may signal twice; the second is no second Ctrl-C
                    signal.signal(signal.SIGHUP, signal.SIG_IGN)

            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                signal.signal(number, end)
            # A suspended guard would leave its last command in force.
            for number in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
                signal.signal(number, signal.SIG_IGN)
            if hung_up is signal.SIG_IGN:  # started with nohup
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
            say(
                f"guard of {self.robot} is up: {guard.commands.topic} -> {guard.output.topic} "
                f"at {robot.command_rate:g} Hz; Ctrl-C ends it"
            )
            # A garbage collection would take longer than a tick, and the loop creates no reference cycles.
            gc.collect()
            gc.disable()
            guard.run(lambda text: say(f"guard: {text}"))
        if self.json:
            show(guard.timing | {"damped": guard.events}, True)
        else:
            say(f"guard: {guard.summary()}")
        return 0
