"""`robot-rl deploy`: run a policy on a robot."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from robot_rl.cli import options as opt
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeFloat, NonNegativeInt, PositiveFraction, PositiveInt, Seed
from robot_rl.util.seeds import HELD_OUT

if TYPE_CHECKING:
    from real.episode.steering import Schedule
    from robot_rl.interface.pipeline import Interface
    from robot_rl.interface.robot import RobotSpec


def limited(interface: Interface, seconds: float) -> Interface:
    """Return the interface with a time limit of `seconds`, in whole control periods; 0 keeps the interface's limit."""
    return replace(interface, horizon=max(1, round(seconds * interface.controller.rate))) if seconds else interface


def slowed(interface: Interface, robot: RobotSpec, share: float) -> Interface:
    """Return the interface with a share of its joints' or tool's speed and acceleration; ConfigError for a legged
    robot."""
    if share < 1 and robot.base:
        raise ConfigError(f"--speed {share:g}: {robot.name} would fall; leave it out for a legged robot")
    most = {name: share * getattr(interface.shield, name) for name in ("velocity", "acceleration")}
    return replace(interface, shield=replace(interface.shield, **most))


@dataclass
class Deploy:
    """Run a policy from a bundle or server on a robot or its twin, and report success and timing.

    The robot does not move while the policy loads. The command stream starts at the measured position; Ctrl-C brakes
    and holds. A legged robot stands up first and lies down at the end; it needs a running `robot-rl guard`."""

    bundle: tyro.conf.Positional[Path]
    """Bundle, run folder that contains one, or ws://HOST:PORT of a server (`robot-rl serve` or openpi)."""
    robot: str = "panda"
    """Robot to control; the bundle must be for this robot."""
    profile: opt.Profile = ""
    twin: bool = False
    """Run the robot's twin, and its guard, in this process, in lockstep: no other program is needed."""
    fault: opt.TwinFaults = ()
    episodes: PositiveInt = 10
    """Number of episodes."""
    seed: Seed = HELD_OUT
    """Seed of the first episode; episode k uses seed + k for object poses on a twin and for scheduled commands."""
    seconds: NonNegativeFloat = 0.0
    """Episode length, s; 0: the task's time limit."""
    speed: PositiveFraction = 1.0
    """Share of an arm's speed and acceleration: 0.05 for a policy's first run on a robot, with more --seconds."""
    commands: Literal["schedule", "person"] = "person"
    """Velocity commands of a legged robot while neither a teleop device nor cmd_vel sends any: schedule follows the
    task's schedule, person keeps the robot standing."""
    instruction: opt.InstructionTopic = ""
    classifier: opt.Classifier = None
    out: Path | None = None
    """Run folder for results and video; default runs/<date>-<time>-<task>-deploy."""
    label: str = ""
    """Policy name in the report."""
    video_episodes: NonNegativeInt = 3
    """Number of episodes to film with the task's first camera; error if the camera sends nothing. 0 needs no camera."""
    bag: opt.Bag = False
    runtime: opt.Runtime = "torch"
    execution: opt.ExecutionMode = "receding"
    """Execution of an arm's action chunks during inference: receding stops and waits; the other modes continue the
    previous chunk, for policies whose inference takes longer than a control period."""
    task: str | None = None
    """For a server other than `robot-rl serve`: task whose contract defines the policy's inputs and actions."""
    keys: opt.ServerKeys = ()
    execute: opt.ServerExecute = 0
    dry_run: bool = False
    """Compute, check and record all commands, but send none."""
    json: opt.Json = False
    ros_args: opt.RosArgs = field(default_factory=list)

    def run(self) -> int:
        from contextlib import nullcontext
        from dataclasses import asdict

        import torch

        from policies.execution import Execution
        from real.bus import open_node
        from real.recording.session import VideoRecorder, stop_on_signals
        from real.sessions.deployment import Deployment
        from real.twin.composed import composed_twin
        from robot_rl.cli.console import bar, show
        from robot_rl.cli.remote import open_policy, server_report
        from robot_rl.rewards.classifier import load_classifier
        from robot_rl.robots import robots
        from robot_rl.robots.profiles import with_profile
        from robot_rl.training.run import Run, new_folder
        from sim.tasks import task_of

        torch.set_num_threads(1)
        if self.profile and self.twin:
            raise ConfigError(f"--profile {self.profile} is a real robot's driver; leave out --twin")
        if self.fault and not self.twin:
            raise ConfigError("--fault is of the twin: add --twin, or start robot-rl twin with it")
        # Time out before an inference counts as hung: the message then names the server.
        patience = 0.9 * Execution.limit
        bundle = open_policy(self.bundle, self.runtime, self.task, self.keys, self.execute, patience)
        robot = with_profile(robots.get(self.robot), self.profile)
        bundle.check_robot(robot)
        classifier = load_classifier(self.classifier) if self.classifier else None
        interface = limited(replace(bundle.interface, robot=self.robot), self.seconds)
        interface = slowed(interface, robot, self.speed)
        folder = self.out or new_folder(Path("runs"), interface.task, "deploy")
        config = {k: v for k, v in asdict(self).items() if k != "ros_args"}
        films = bool(self.video_episodes or interface.pictures)
        task = task_of(self.robot, interface.task) if self.twin else None
        with (
            Run(folder, config) as run,
            composed_twin(task, self.ros_args, cameras=films, fault=self.fault) if task else nullcontext(),
            open_node("deploy", ros_args=self.ros_args, rate=robot.command_rate) as node,
        ):
            film, schedule = VideoRecorder(self.video_episodes), self._schedule(interface)
            deployment = Deployment(
                run, node, bundle, interface, self.execution, film=film, dry_run=self.dry_run, schedule=schedule,
                instruction=self.instruction, classifier=classifier, robot=robot, bag=self.bag,
            )  # fmt: skip
            for name, value in {"policy": str(self.bundle), "robot": self.robot, "task": interface.task}.items():
                node.declare_parameter(name, value, read_only=True)
            node.serve_parameters()
            stop_on_signals()
            try:
                deployment.activate()
                with bar("deploy") as update:
                    text = f"episodes on {self.robot}"
                    deployment.run(self.episodes, self.seed, lambda done, _: update(done, self.episodes, text))
            finally:
                deployment.close()
            judged = {"judged_by": str(self.classifier)} if self.classifier else {}
            facts = {"seed": self.seed} | judged | server_report(bundle.policy)
            caption = self.label or "policy on the robot"
            summary = deployment.report(self.label or self.bundle.name, caption, **facts)
            if deployment.interrupt:  # after the finished episodes are written
                raise deployment.interrupt
        show(summary | {"run": str(folder)}, self.json, "deployment")
        return int(deployment.failed)

    def _schedule(self, interface: Interface) -> Schedule | None:
        """Return a function (seed, step) with the velocity commands as in simulation; None if a person commands."""
        if not interface.command or self.commands == "person":
            return None
        from robot_rl.interface.spec import VectorSpec
        from sim.tasks import tasks

        schedule = tasks.get(interface.task).commands
        spec, rate = VectorSpec(interface.command), interface.controller.rate
        return (lambda seed, step: schedule.of_episode(spec, seed, step, rate)) if schedule else None
