"""`robot-rl excite`: move a robot so that its log shows its parameters, for `robot-rl sysid`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from robot_rl.cli import options as opt
from robot_rl.util.limits import Interval


@dataclass
class Excite:
    """Chirp all joints of a robot about home, 0.1 to 2 Hz, within the shield, and keep the motion in RUN/motion.npz.

    An arm touches nothing; a legged robot stands up first and lies down at the end; hang it up to see more, and add
    --hung. Ctrl-C brakes and holds."""

    robot: opt.RobotName
    profile: opt.Profile = ""
    task: str | None = None
    """Task whose workspace, shield and objects apply; default: the robot's first task."""
    seconds: Annotated[float, Interval(ge=10, le=60)] = 60.0
    """Duration, s; a log keeps 60 s."""
    hold: str = ""
    """Object to take into the gripper first, whose tracker is to be identified: hold it between the fingers."""
    hung: bool = False
    """A legged robot hangs in the air, its feet free: its legs move farther, and its log shows their motors."""
    twin: bool = False
    """Run the robot's twin, and its guard, in this process, in lockstep."""
    out: Path | None = None
    """Run folder; default runs/<date>-<time>-<robot>-excite."""
    json: opt.Json = False
    ros_args: opt.RosArgs = field(default_factory=list)

    def run(self) -> int:
        from contextlib import nullcontext
        from dataclasses import asdict

        import torch

        from real.bus import open_node
        from real.recording.session import stop_on_signals
        from real.sessions.excitation import Excitation
        from real.twin.composed import composed_twin
        from robot_rl.cli.console import bar, show
        from robot_rl.robots import robots
        from robot_rl.robots.profiles import with_profile
        from robot_rl.training.run import Run, new_folder
        from robot_rl.util.errors import ConfigError, UnknownName
        from sim.tasks import task_of

        torch.set_num_threads(1)
        if self.profile and self.twin:
            raise ConfigError(f"--profile {self.profile} is a real robot's driver; leave out --twin")
        robot = with_profile(robots.get(self.robot), self.profile)
        task = task_of(self.robot, self.task)
        names = [thing.name for thing in task.scene.objects]
        if self.hold and (robot.gripper is None or self.hold not in names):
            raise UnknownName(f"object of task {task.name!r} to hold", self.hold, names if robot.gripper else [])
        if self.hung and robot.base is None:
            raise ConfigError(f"robot {robot.name!r} is fixed, so it cannot hang; leave out --hung")
        hangs = {"hung": True} if self.hung else {}
        folder = self.out or new_folder(Path("runs"), self.robot, "excite")
        config = {k: v for k, v in asdict(self).items() if k != "ros_args"}
        with (
            Run(folder, config) as run,
            composed_twin(task, self.ros_args, cameras=False, **hangs) if self.twin else nullcontext(),
            open_node("excite", ros_args=self.ros_args, rate=robot.command_rate) as node,
        ):
            session = Excitation(run, node, task.interface, robot)
            stop_on_signals()
            try:
                with bar("excite") as update:
                    session.run(
                        self.seconds, self.hold, lambda done, total: update(done, total, "control periods"), self.hung
                    )
            finally:
                session.close()
        show({"run": str(folder), "seconds": self.seconds, "hold": self.hold or "nothing"}, self.json, "excitation")
        return 0
