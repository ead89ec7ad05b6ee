"""`robot-rl drive`: move a robot that walks by itself, such as a Go2 in sport mode, by `cmd_vel`."""

from dataclasses import dataclass, field
from typing import Annotated

from robot_rl.cli import options as opt
from robot_rl.util.limits import Interval

RATE = 25.0
"""Rate at which the source of the velocity is chosen, Hz."""


@dataclass
class Drive:
    """Drive a robot that walks by itself as `cmd_vel` or a teleop device says, within limits of speed and acceleration.

    Without a source for 0.5 s it stops. Ctrl-C stops it and ends. `robot-rl guard` must not run."""

    robot: opt.RobotName
    forward: Annotated[float, Interval(gt=0, le=2.5)] = 0.6
    """Largest speed forward and backward, m/s."""
    left: Annotated[float, Interval(gt=0, le=1)] = 0.3
    """Largest speed to the left and to the right, m/s."""
    turn: Annotated[float, Interval(gt=0, le=4)] = 1.0
    """Largest angular velocity, rad/s."""
    ramp: Annotated[float, Interval(ge=0.2, le=10)] = 0.5
    """Shortest time from standing to full speed, s. A stop does not wait for it."""
    dry_run: bool = False
    """Read the robot and choose velocities, but send nothing."""
    ros_args: opt.RosArgs = field(default_factory=list)

    def run(self) -> int:
        from real.bus import open_node
        from real.recording.session import stop_on_signals
        from real.sessions.driving import Driving
        from robot_rl.cli.console import console, show
        from robot_rl.interface.control import BaseVelocityConfig
        from robot_rl.robots import robots

        robot = robots.get(self.robot)
        limits = BaseVelocityConfig("base_velocity", RATE, self.forward, self.left, self.turn, self.ramp)
        with open_node("drive", ros_args=self.ros_args, rate=robot.command_rate) as node:
            driving = Driving(node, robot, limits, self.dry_run)
            stop_on_signals()
            try:
                driving.activate()
                topic = node.resolve("cmd_vel")
                top = f"{self.forward:g} m/s, {self.left:g} m/s, {self.turn:g} rad/s"
                console.print(f"drive: {robot.name} follows {topic} up to {top}; Ctrl-C ends it", soft_wrap=True)
                driving.run()
            except KeyboardInterrupt:  # the usual end
                pass
            finally:
                driving.close()
            shown = ("seconds", "ticks", "late_share", "missed", "goals", "shield")
            show({name: value for name, value in driving.env.loop.summary().items() if name in shown}, False, "drive")
        return 0
