"""`robot-rl deploy`: run a policy on a robot."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from robot_rl.cli import options as opt
from robot_rl.util.limits import NonNegativeFloat, NonNegativeInt, PositiveInt, Seed
from robot_rl.util.seeds import HELD_OUT

if TYPE_CHECKING:
    from real.episode.steering import Schedule
    from robot_rl.interface.pipeline import Interface


def limited(interface: Interface, seconds: float) -> Interface:
    """Return the interface with a time limit of `seconds`, in whole control periods; 0 keeps the interface's limit."""
    return replace(interface, horizon=max(1, round(seconds * interface.controller.rate))) if seconds else interface


@dataclass
class Deploy:
    """Run a policy from a bundle or server on a robot or its twin, and report success and timing.

    The robot does not move while the policy loads. The command stream starts at the measured position; Ctrl-C brakes
    and holds. A legged robot stands up first and lies down at the end; it needs a running `robot-rl guard`."""

    bundle: tyro.conf.Positional[Path]
    """Bundle, run folder that contains one, or ws://HOST:PORT of a server (`robot-rl serve` or openpi)."""
    robot: str = "panda"
    """Robot to control; the bundle must be for this robot."""
    episodes: PositiveInt = 10
    """Number of episodes."""
    seed: Seed = HELD_OUT
    """Seed of the first episode; episode k uses seed + k for object poses on a twin and for scheduled commands."""
    seconds: NonNegativeFloat = 0.0
    """Episode length, s; 0: the task's time limit."""
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
        from dataclasses import asdict

        import torch

        from policies.errors import RemoteFailure
        from policies.execution import Execution, InferenceHung, warm_up
        from real.bus import open_node
        from real.control.clock import bare_loop
        from real.episode.env import RobotEnv
        from real.recording.journal import Journal
        from real.recording.session import VideoRecorder, stop_on_signals
        from real.robots.base import NotReady
        from real.teleop.commands import OperatorInput
        from robot_rl.cli.console import bar, show
        from robot_rl.cli.remote import open_policy, server_report
        from robot_rl.evaluation import Evaluation, evaluate
        from robot_rl.interface.pipeline import Pipeline
        from robot_rl.rewards.classifier import load_classifier
        from robot_rl.robots import robots
        from robot_rl.training.run import Run, new_folder
        from robot_rl.util.statistics import wilson

        torch.set_num_threads(1)
        # Time out before an inference counts as hung: the message then names the server.
        patience = 0.9 * Execution.limit
        bundle = open_policy(self.bundle, self.runtime, self.task, self.keys, self.execute, patience)
        robot = robots.get(self.robot)
        bundle.check_robot(robot)
        classifier = load_classifier(self.classifier) if self.classifier else None
        interface = limited(bundle.interface, self.seconds)
        # For an arm, this thread holds the position while another thread infers. Legs cannot wait, and their policies
        # are fast.
        period, aside = 1 / interface.controller.rate, robot.base is None
        wait = 0.8 * period if self.execution == "receding" else 0.0
        execution = Execution(self.execution, background=aside, patience=wait, period=period)
        seen = Pipeline(interface).observation_spec
        zeros = {key: torch.zeros(1, *f.shape, dtype=getattr(torch, f.dtype)) for key, f in seen.items()}
        warm_up(bundle.policy, zeros, execution)
        folder = self.out or new_folder(Path("runs"), interface.task, "deploy")
        config = {k: v for k, v in asdict(self).items() if k != "ros_args"}
        with (Run(folder, config) as run, open_node("deploy", ros_args=self.ros_args, rate=robot.command_rate) as node):
            bare = bare_loop(robot.command_rate).summary()
            film = VideoRecorder(self.video_episodes)
            env = RobotEnv(
                node, interface, cameras=interface.cameras[:1] if self.video_episodes else (),
                operator=OperatorInput(node, robot.name, robot.base is not None), dry_run=self.dry_run,
                schedule=self._schedule(interface), instruction=self.instruction, classifier=classifier,
                words=bundle.policy.words,
            )  # fmt: skip
            env.warmups.append(lambda: warm_up(bundle.policy, zeros, execution))
            film.attach(env)
            journal = Journal(run.folder, env)
            stop_on_signals()
            result, ended = Evaluation(), ""
            interrupt: KeyboardInterrupt | None = None
            try:
                with bar("deploy") as update:
                    evaluate(
                        bundle.policy, env, self.episodes, self.seed,
                        lambda done, _: update(done, self.episodes, f"episodes on {self.robot}"), result,
                        execution,
                    )  # fmt: skip
            except (NotReady, InferenceHung, RemoteFailure, KeyboardInterrupt) as error:
                lost = isinstance(error, RemoteFailure)  # reported even if no episode has finished
                if not result.success and not lost:
                    raise
                if lost:
                    env.note("server", str(error))
                interrupt = error if isinstance(error, KeyboardInterrupt) else None
                ended = "interrupted" if interrupt else str(error)
            finally:
                try:
                    env.close()
                finally:
                    bundle.close()
                    journal.close()
                    journal.drop_rows_from(len(result.success))  # a signal may arrive after a row, before its result
            where = "twin" if env.on_twin else "robot"
            summary = {"label": self.label or self.bundle.name, "where": where, "seed": self.seed} | result.summary()
            summary["corrected_episodes"] = sum(result.by_hand)
            summary |= {"judged_by": str(self.classifier)} if self.classifier else {}
            if robot.base:
                low, high = wilson(env.falls, max(env.falls, len(result.success)))
                summary |= {
                    "standing": sum(result.success), "falls": env.falls, "stalls": env.stalls, "fall_rate_low": low,
                    "fall_rate_high": high,
                }  # fmt: skip
            summary |= {"nonfinite": env.loop.events.counts.get("nonfinite", 0), "stopped": env.loop.stopped}
            summary |= server_report(bundle.policy) | ({"ended": ended} if ended else {})
            failed = bool(ended) or (bool(env.loop.stopped) and not env.reset_procedure.auto_resets_stop)
            run.write("evaluation.json", summary | {"takeovers": result.takeovers})
            loop = env.summary() | {"bare": bare, "learner": "absent"}
            run.write("loop.json", loop)
            film.write(run.folder, self.label or "policy on the robot")
            if interrupt:  # after the finished episodes are written
                raise interrupt
        summary |= {"run": str(folder), "late_share": loop["late_share"], "lateness_p99_us": loop["lateness_us"]["p99"]}
        summary |= {"inference_p99_ms": loop["inference_ms"]["p99"]}
        show(summary, self.json, "deployment")
        return int(failed)

    def _schedule(self, interface: Interface) -> Schedule | None:
        """Return a function (seed, step) with the velocity commands as in simulation; None if a person commands."""
        if not interface.command or self.commands == "person":
            return None
        from robot_rl.interface.spec import VectorSpec
        from sim.tasks import tasks

        schedule = tasks.get(interface.task).commands
        spec, rate = VectorSpec(interface.command), interface.controller.rate
        return (lambda seed, step: schedule.of_episode(spec, seed, step, rate)) if schedule else None
