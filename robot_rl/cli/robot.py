"""`robot-rl robot`: the process that alone holds a real arm, behind the same topics as its twin."""

from dataclasses import dataclass, field

from robot_rl.cli import options as opt
from robot_rl.util.limits import NonNegativeFloat


@dataclass
class Robot:
    """Hold a Franka arm through its own protocol, and move it as the topics of an arm say.

    Goals of any rate become jerk-limited motion at 1 kHz. If they stop, the arm brakes and holds. Ctrl-C brakes it and
    ends."""

    robot: opt.RobotName
    host: str
    """Address of the robot, such as 192.168.1.11."""
    dry_run: bool = False
    """Read the robot and compute its motion, but send it nothing."""
    realtime: bool = False
    """Refuse a kernel without real-time scheduling, as libfranka does by default."""
    max_force: NonNegativeFloat = 0.0
    """External force at the tool at which the arm stops, N; 0: the spec's."""
    max_torque: NonNegativeFloat = 0.0
    """External torque at a joint at which the arm stops, N m; 0: the spec's."""
    ros_args: opt.RosArgs = field(default_factory=list)

    def run(self) -> int:
        import signal

        from real.bus import open_node
        from real.franka.node import FrankaNode
        from robot_rl.cli.console import console
        from robot_rl.robots import robots

        robot = robots.get(self.robot)
        with open_node("robot", ros_args=self.ros_args, rate=robot.command_rate) as node:
            limits = {name: value for name in ("max_force", "max_torque") if (value := getattr(self, name))}
            franka = FrankaNode(node, robot, self.host, self.dry_run, self.realtime, limits)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, lambda *_: franka.close())
            try:
                franka.run(lambda text: console.print(f"robot: {text}", soft_wrap=True))
            finally:
                console.print(f"robot: {franka.summary()}", soft_wrap=True)
        return 0
