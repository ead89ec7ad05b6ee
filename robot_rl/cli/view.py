"""`robot-rl view`: watch a task, a policy, a twin or a robot in the browser."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from robot_rl.cli import options as opt
from robot_rl.util.limits import NonNegativeFloat, NonNegativeInt, Seed
from robot_rl.util.seeds import HELD_OUT

if TYPE_CHECKING:
    from policies.bundle import Bundle

LIVE = "robot:"
"""Prefix of a robot's name on the command line, as in robot:panda."""
ACTORS = ("expert", "zero", "random")
"""Sources of actions other than a policy."""


@dataclass
class View:
    """Watch a simulation in the browser, or a robot or twin through its topics. Only this machine can open the page.

    The view records nothing and commands no robot. Over ssh: ssh -L 8080:127.0.0.1:8080 HOST, then open
    http://127.0.0.1:8080."""

    what: tyro.conf.Positional[str]
    """Task (scripted demonstrator, or zero actions if the task has none); bundle or run folder; expert:TASK, zero:TASK
    or random:TASK; or robot:NAME for a robot or twin on this ROS domain."""
    teleop: Literal["none", "keyboard", "gamepad", "spacemouse"] = "none"
    """Device in this terminal for taking over in an arm's simulation."""
    episodes: NonNegativeInt = 0
    """Simulation: number of episodes; 0: until Ctrl-C."""
    seconds: NonNegativeFloat = 0.0
    """Robot or twin: duration, s; 0: until Ctrl-C."""
    seed: Seed = HELD_OUT
    """Seed of the first episode; episode k has seed + k, as in `robot-rl evaluate`."""
    speed: Literal["1/10", "1/4", "1/2", "1", "2", "max"] = "1"
    """Initial speed of simulated time; 1 is real time."""
    port: NonNegativeInt = 0
    """Port of the page; 0: 8080 or the next free port."""
    profile: opt.Profile = ""
    task: str | None = None
    """Robot or twin: task whose objects and cameras are shown; default: the robot's first task."""
    cameras: Literal["auto", "on", "off"] = "auto"
    """Robot or twin: show the task's cameras; auto: for arms only, because rendering makes a legged twin late."""
    odometry: str = "twin/odom"
    """Legged robot or twin: nav_msgs/Odometry topic of its position; without messages, it is drawn at the origin."""
    engine: opt.Engine = "mujoco"
    device: opt.PhysicsDevice = "auto"
    without: opt.Without = ()
    instructions: opt.Instructions = "training"
    changes: opt.Changes = 0.0
    mjcf: opt.Mjcf = ""
    ros_args: opt.RosArgs = field(default_factory=list)

    def run(self) -> int:
        import torch

        from robot_rl.util.errors import ConfigError

        require_viewer(self.port)
        torch.set_num_threads(1)
        if self.what.startswith(LIVE):
            return self._live(self.what.removeprefix(LIVE))
        if self.profile:
            raise ConfigError(f"--profile {self.profile} is a real robot's driver; view robot:NAME")
        return self._simulated()

    def _live(self, name: str) -> int:
        import os

        from real.bus import open_node
        from real.teleop import until_signal
        from robot_rl.robots import robots
        from robot_rl.robots.profiles import with_profile
        from robot_rl.util.errors import ConfigError
        from robot_rl.view import LiveView
        from sim.tasks import scene_of

        robot = with_profile(robots.get(name), self.profile)
        if self.teleop != "none":
            raise ConfigError(f"the view of a robot commands nothing: start `robot-rl teleop {self.teleop}` beside it")
        scene = scene_of(name, self.task)
        cameras = self.cameras == "on" or (self.cameras == "auto" and robot.base is None)
        os.nice(10)  # never delay a robot's loop
        with until_signal() as wait, open_node("view", ros_args=self.ros_args) as node:
            view = LiveView(node, robot, scene, self.port, cameras, self.odometry, self.mjcf)
            try:
                _say(view.page.address)
                view.run(wait, self.seconds)
            finally:
                view.close()
        return 0

    def _simulated(self) -> int:
        from contextlib import closing, nullcontext

        from real.teleop import Finished, open_device
        from robot_rl.cli.console import console, say_nominal
        from robot_rl.operators.intervention import InterventionWrapper
        from robot_rl.view import SimulationView, play
        from robot_rl.view.simulation import SPEEDS, Person
        from sim.env import TaskEnv

        task, kind, bundle = self._task()
        env: Any = TaskEnv(
            task, 1, engine=self.engine, device=self.device, mjcf=self.mjcf, without=self.without,
            instruction_set=self.instructions, changes=self.changes,
        )  # fmt: skip
        say_nominal(self.engine, env.simulation["without"], self.without)
        actor, acting = self._actor(env, kind, bundle)
        speeds = dict(zip(("1/10", "1/4", "1/2", "1", "2", "max"), SPEEDS.values(), strict=True))
        view = SimulationView(env, self.port, f"{task}: {acting}", speeds[self.speed])
        try:
            device: Any = None
            if self.teleop != "none":
                device = open_device(self.teleop)
            with closing(device) if device else nullcontext():
                if device:
                    env = InterventionWrapper(env, Person(env, device, view.reset))
                    console.print(device.help, markup=False)
                _say(view.page.address)
                play(env, actor, view, self.episodes, self.seed)
        except (Finished, KeyboardInterrupt):  # the operator quits, or Ctrl-C
            pass
        finally:
            view.close()
            env.close()
        console.print(f"view: {view.successes} of {view.episodes} episodes succeeded")
        return 0

    def _task(self) -> tuple[str, str, Bundle | None]:
        """Return the task, the source of actions (one of ACTORS; "" for a bundle's policy), and the bundle."""
        from policies.bundle import load_bundle
        from robot_rl.robots import robots
        from robot_rl.util.errors import ConfigError
        from sim.tasks import tasks, without_robot

        bundle = None
        kind, _, task = self.what.partition(":")
        if kind not in ACTORS or not task:
            kind, task = "", self.what
        if not kind and task not in tasks and not without_robot(task) and Path(task).exists():
            bundle = load_bundle(Path(task))
            task = bundle.task
        if without_robot(task):
            raise ConfigError(f"{task} has no robot of ours, so the view cannot draw it")
        found = tasks.get(task)
        if bundle is not None:
            bundle.check_task(found.interface)
            bundle.check_robot(robots.get(bundle.interface.robot))
        elif not kind:
            kind = "expert" if found.expert else "zero"
        return task, kind, bundle

    def _actor(self, env: Any, kind: str, bundle: Bundle | None) -> tuple[Any, str]:
        """Return the actor, of the bundle or of this kind (one of ACTORS), and its name for the page."""
        from policies.base import RandomPolicy
        from policies.execution import ChunkExecutor
        from robot_rl.util.errors import UserError
        from sim.experts.policy import ExpertPolicy

        if bundle is not None:
            return ChunkExecutor(bundle.policy, 1, hold_action=env.hold_action), str(self.what)
        if kind == "expert":
            if not env.task.expert:
                raise UserError(f"task {env.task.name!r} has no scripted demonstrator; watch zero:{env.task.name}")
            expert = ExpertPolicy(env, "STEADY", self.seed)
            return ChunkExecutor(expert, 1, hold_action=env.hold_action), "scripted demonstrator"
        policy = RandomPolicy(env.pipeline.actions.size, 1.0 if kind == "random" else 0.0)
        return ChunkExecutor(policy, 1, hold_action=env.hold_action), f"{kind} actions"


def require_viewer(port: int) -> None:
    """Raise UserError without the packages of the view, which a robot's computer may lack; ConfigError for a port that
    does not exist."""
    import importlib.util

    from robot_rl.util.errors import ConfigError, UserError

    if not port < 65536:
        raise ConfigError(f"--port is {port}; give 1024 to 65535, or leave it out")

    for package in ("mujoco", "viser"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"the view needs the package {package}: pip install -c constraints.txt -e '.[view]'")


def _say(address: str) -> None:
    from robot_rl.cli.console import console

    console.print(f"view: {address} (this machine only); Ctrl-C ends it", soft_wrap=True)
