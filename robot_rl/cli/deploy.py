"""`robot-rl deploy`: run a policy on a robot."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from robot_rl.util.limits import NonNegativeFloat, NonNegativeInt, PositiveInt, Seed
from robot_rl.util.seeds import HELD_OUT

if TYPE_CHECKING:
    from real.episode.steering import Schedule
    from robot_rl.interface.pipeline import Interface


@dataclass
class Deploy:
    """Run a bundle's or a server's policy on a robot or its twin, and report success and timing.

    Loading moves nothing. The command stream starts at the measured position; Ctrl-C brakes and holds. A walking robot
    stands up first, needs `robot-rl guard` beside it, and lies down at the end."""

    bundle: tyro.conf.Positional[Path]
    """Bundle, a run folder that holds one, or ws://HOST:PORT of a server: `robot-rl serve`, or openpi's."""
    robot: str = "panda"
    """Robot to drive; the bundle must be for it."""
    episodes: PositiveInt = 10
    """Episodes to run."""
    seed: Seed = HELD_OUT
    """Episode k has seed + k, for object places on a twin and for commands on schedule."""
    seconds: NonNegativeFloat = 0.0
    """Length of an episode, s; 0: the task's."""
    commands: Literal["schedule", "person"] = "person"
    """Source of a walking robot's commands without a teleop device or cmd_vel: schedule is the task's, with which it
    walks by itself; with person it stands."""
    instruction: str = ""
    """What the robot is asked, for a policy that reads instructions; the topic `instruction` changes it."""
    classifier: Path | None = None
    """Success classifier that judges episodes by what the cameras see, in place of the task's own test: objects then
    need no tracking; see `robot-rl classifier fit`."""
    out: Path | None = None
    """Run folder for results and the video; default runs/<date>-<time>-<task>-deploy."""
    label: str = ""
    """Name of the policy in the report."""
    video_episodes: NonNegativeInt = 3
    """Episodes to record with the task's first camera, an error if it sends nothing; 0 needs none."""
    runtime: Literal["torch", "onnx"] = "torch"
    """Runtime of the policy: torch, or ONNX Runtime with the file that `robot-rl export` wrote."""
    execution: Literal["receding", "ensemble", "asynchronous", "realtime"] = "receding"
    """How an arm's chunks are executed while inference takes time: receding stops and waits; the others, for inference
    longer than a control period, continue the previous chunk."""
    task: str | None = None
    """Task of a server that is no `robot-rl serve`; the policy drives the robot by its contract."""
    keys: tuple[str, ...] = ()
    """Such a server's names of observations, OURS=THEIRS."""
    execute: NonNegativeInt = 0
    """Actions of such a server's chunks to execute before the next; 0: all."""
    dry_run: bool = False
    """Compute, check and record everything, but send nothing."""
    json: bool = False
    """Print one JSON object instead of a table."""
    ros_args: tyro.conf.Suppress[list[str]] = field(default_factory=list)

    def run(self) -> int:
        """Deploy; return the exit status."""
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
        # A server is given up before an inference counts as hung, with a better reason.
        patience = 0.9 * Execution.limit
        bundle = open_policy(self.bundle, self.runtime, self.task, self.keys, self.execute, patience)
        robot = robots.get(self.robot)
        bundle.check_robot(robot)
        classifier = load_classifier(self.classifier) if self.classifier else None
        interface = self._timed(bundle.interface)
        # An arm holds, fed by this thread, while another one infers; legs cannot, and their policies are fast.
        period, aside = 1 / interface.controller.rate, robot.base is None
        wait = 0.8 * period if self.execution == "receding" else 0.0
        execution = Execution(self.execution, background=aside, patience=wait, period=period)
        seen = Pipeline(interface).observation_spec
        zeros = {key: torch.zeros(1, *f.shape, dtype=getattr(torch, f.dtype)) for key, f in seen.items()}
        warm_up(bundle.policy, zeros, execution)
        folder = self.out or new_folder(Path("runs"), interface.task, "deploy")
        config = {k: v for k, v in asdict(self).items() if k != "ros_args"}
        with (
            Run(folder, config) as run,
            open_node("deploy", ros_args=self.ros_args, rate=robot.command_rate) as node,
        ):
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
                lost = isinstance(error, RemoteFailure)  # counted, even in the first episode
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
                    journal.drop_rows_from(len(result.success))  # a signal may arrive between a row and its result
            where = "twin" if env.on_twin else "robot"
            summary = {"label": self.label or self.bundle.name, "where": where, "seed": self.seed} | result.summary()
            summary["corrected_episodes"] = sum(result.by_hand)
            summary |= {"judged_by": str(self.classifier)} if self.classifier else {}
            if robot.base:
                low, high = wilson(env.falls, max(env.falls, len(result.success)))
                summary |= {
                    "standing": sum(result.success),
                    "falls": env.falls,
                    "stalls": env.stalls,
                    "fall_rate_low": low,
                    "fall_rate_high": high,
                }
            summary |= {"nonfinite": env.loop.events.counts.get("nonfinite", 0), "stopped": env.loop.stopped}
            summary |= server_report(bundle.policy) | ({"ended": ended} if ended else {})
            failed = bool(ended) or (bool(env.loop.stopped) and not env.reset_procedure.auto_resets_stop)
            run.write("evaluation.json", summary | {"takeovers": result.takeovers})
            loop = env.summary() | {"bare": bare, "learner": "absent"}
            run.write("loop.json", loop)
            film.write(run.folder, self.label or "policy on the robot")
            if interrupt:  # finished episodes are kept
                raise interrupt
        summary |= {"run": str(folder), "late_share": loop["late_share"], "lateness_p99_us": loop["lateness_us"]["p99"]}
        summary |= {"inference_p99_ms": loop["inference_ms"]["p99"]}
        show(summary, self.json, "deployment")
        return int(failed)

    def _timed(self, interface: Interface) -> Interface:
        steps = max(1, round(self.seconds * interface.controller.rate)) if self.seconds else interface.horizon
        return replace(interface, horizon=steps)

    def _schedule(self, interface: Interface) -> Schedule | None:
        """Return the commands of the episode of a seed in simulation, so that both can be compared."""
        if not interface.command or self.commands == "person":
            return None
        from robot_rl.interface.spec import VectorSpec
        from sim.tasks import tasks

        schedule = tasks.get(interface.task).commands
        spec, rate = VectorSpec(interface.command), interface.controller.rate
        return (lambda seed, step: schedule.of_episode(spec, seed, step, rate)) if schedule else None
