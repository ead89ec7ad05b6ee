"""Run a policy on a robot for some episodes, and report what came of it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from policies.bundle import Bundle
from policies.errors import RemoteFailure
from policies.execution import Execution, InferenceHung, Mode, warm_up
from real import clock
from real.bus import Node, qos
from real.control import timing
from real.drivers.state import NotReady
from real.episode.display import Display
from real.episode.env import RobotEnv
from real.episode.steering import Schedule
from real.recording.journal import Journal
from real.recording.motion import MotionLog
from real.recording.session import VideoRecorder
from real.sessions.lifecycle import Lifecycle, Requested
from real.teleop.commands import OperatorInput
from real.topics import FAULTS_TOPIC, TEXT
from robot_rl.evaluation import Evaluation, evaluate
from robot_rl.interface.observation_spec import ObservationSpec
from robot_rl.interface.pipeline import Interface, Pipeline
from robot_rl.interface.robot import RobotSpec
from robot_rl.rewards.classifier import Classifier
from robot_rl.robots import robots
from robot_rl.training.run import Run
from robot_rl.util.statistics import wilson

logger = logging.getLogger(__name__)


def execution_of(interface: Interface, robot: RobotSpec, mode: Mode) -> Execution:
    """Return how a robot executes action chunks. For an arm, the control thread holds the position while another
    thread infers; legs cannot wait, and their policies are fast."""
    period = 1 / interface.controller.rate
    wait = 0.8 * period if mode == "receding" else 0.0
    aside = robot.base is None and not clock.in_lockstep()  # in lockstep time stands during an inference
    return Execution(mode, background=aside, patience=wait if aside else 0.0, period=period)


def rehearse(bundle: Bundle, seen: ObservationSpec, execution: Execution) -> None:
    """Infer once on observations of zeros, because the first inference is slow."""
    zeros = {key: torch.zeros(1, *f.shape, dtype=getattr(torch, f.dtype)) for key, f in seen.items()}
    warm_up(bundle.policy, zeros, execution)


def _after(finished: int, progress: Callable[[int, dict[str, Any]], None], done: int, infos: dict[str, Any]) -> None:
    progress(finished + done, infos)


class Deployment:
    """A policy on a robot."""

    def __init__(
        self, run: Run, node: Node, bundle: Bundle, interface: Interface, mode: Mode, *,
        film: VideoRecorder, dry_run: bool = False, schedule: Schedule | None = None, instruction: str = "",
        classifier: Classifier | None = None, robot: RobotSpec | None = None, bag: bool = False,
    ):  # fmt: skip
        """Connect to the robot and check its topics; NotReady if something is missing. `mode`: what the robot does
        during inference. `robot`: spec with another driver than the registered one's. `bag`: write a
        bag of the session."""
        robot = robot or robots.get(interface.robot)
        self._run, self.bundle, self.film = run, bundle, film
        self.execution = execution = execution_of(interface, robot, mode)
        rehearse(bundle, Pipeline(interface).observation_spec, execution)
        self._baseline = timing.baseline(robot.command_rate)
        cameras = interface.cameras[:1] if film.episodes else ()
        operator = OperatorInput(node, robot.name, robot.base is not None)
        self.env = RobotEnv(
            node, interface, cameras=cameras, operator=operator, dry_run=dry_run, schedule=schedule,
            instruction=instruction, classifier=classifier, words=bundle.policy.words, robot=robot,
        )  # fmt: skip
        self.display = Display(self.env)
        seen = self.env.pipeline.observation_spec
        self.env.warmups.append(lambda: rehearse(bundle, seen, execution))
        film.attach(self.env)
        self.journal = Journal(run.folder, self.env, bag=bag)
        self._faults = node.subscribe(TEXT, FAULTS_TOPIC, qos.LATCHED)
        self.motion = MotionLog(self.env.loop, interface.task, self.env.period)
        self.result, self.ended = Evaluation(), ""
        """Results of the finished episodes; reason for which the session ended early, empty if it did not."""
        self.interrupt: KeyboardInterrupt | None = None
        """Signal that ended the session."""
        self._speed = math.nan
        """Seconds of the robot's time per second, in the episodes."""
        self.lifecycle = Lifecycle(node)
        autostart = "Activate at once; false: wait for the lifecycle's transition `activate`."
        self._autostart = bool(node.declare_parameter("autostart", True, autostart, read_only=True))
        self.lifecycle.done("configure")

    def activate(self) -> None:
        """Start sending commands, at once or when another node asks for it; the robot stays where it is."""
        if not self._autostart:
            self._await_activation()
            return
        self.env.activate()
        self.lifecycle.done("activate")

    def _await_activation(self) -> None:
        """Wait until another node activates this session; Requested if it shuts it down."""
        logger.warning("inactive: waiting for `activate` (ros2 lifecycle set)")
        while (asked := self.lifecycle.wait()) != "activate":
            if asked == "shutdown":
                raise Requested(asked)
            self.lifecycle.refuse()
        try:
            self.env.activate()
        except BaseException:
            self.lifecycle.refuse()
            raise
        self.lifecycle.done("activate")

    def _deactivate(self) -> None:
        """Forget the running episode, and stop until another node activates this session again."""
        self.env.abandon()
        self.env.deactivate()
        self.lifecycle.done("deactivate")
        finished = len(self.result.success)
        del self.result.instructions[finished:], self.result.first_instructions[finished:]
        self._await_activation()

    def run(self, episodes: int, seed: int, progress: Callable[[int, dict[str, Any]], None]) -> None:
        """Run episodes; end early, with the reason in `ended`, if the robot, the policy or its server fails after the
        first one, at a signal, or if another node shuts this session down. If one deactivates it, go on when it is
        active again; the episode that was running starts anew."""
        began, wall = clock.now(), time.monotonic()
        try:
            while (finished := len(self.result.success)) < episodes:
                try:
                    self._evaluate(episodes - finished, seed + finished, partial(_after, finished, progress))
                except Requested as request:
                    if request.name == "shutdown":
                        raise
                    self._deactivate()
        except (NotReady, InferenceHung, RemoteFailure, Requested, KeyboardInterrupt) as error:
            remote = isinstance(error, RemoteFailure)  # reported even if no episode has finished
            if not self.result.success and not remote:
                raise
            if remote:
                self.env.note("server", str(error))
            self.interrupt = error if isinstance(error, KeyboardInterrupt) else None
            self.ended = "interrupted" if self.interrupt else str(error)
        else:  # also on a twin, which would reset itself for another episode
            lost = self.env.vanished() if self.env.loop.stopped else ""
            self.ended = f"{lost}, which ended the last episode" if lost else ""
        finally:
            self._speed = (clock.now() - began) / (time.monotonic() - wall)

    def _evaluate(self, episodes: int, seed: int, progress: Callable[[int, dict[str, Any]], None]) -> None:
        """Run episodes; Requested if another node asks for a transition."""
        check = self.lifecycle.check
        self.env.each_period.append(check)
        try:
            evaluate(self.bundle.policy, self.env, episodes, seed, progress, self.result, self.execution)
        finally:
            self.env.each_period.remove(check)  # what follows, such as lying down, must not be interrupted

    def close(self) -> None:
        """Stop the robot, and write the journal."""
        try:
            self.env.close()
        finally:
            self.lifecycle.end()
            self.bundle.close()
            self.journal.close()
            self.journal.drop_rows_from(len(self.result.success))  # a signal may arrive after a row, before its result
            self.motion.write(self._run.folder)

    @property
    def failed(self) -> bool:
        """Return whether the session ended early, or with a stop that only a person may reset."""
        stopped = bool(self.env.loop.stopped) and not self.env.reset_procedure.auto_resets_stop
        return bool(self.ended) or stopped

    def report(self, label: str, caption: str, **facts: Any) -> dict[str, Any]:
        """Write evaluation.json, loop.json and the video; return the summary. `label`: name of the policy; `caption`:
        of the video; `facts` are written too."""
        env, result = self.env, self.result
        summary = {"label": label, "where": "twin" if env.on_twin else "robot"} | facts | result.summary()
        summary["corrected_episodes"] = sum(result.by_hand)
        if env.loop.sinks:
            low, high = wilson(env.falls, max(env.falls, len(result.success)))
            summary |= {
                "standing": sum(result.success), "falls": env.falls, "stalls": env.stalls, "fall_rate_low": low,
                "fall_rate_high": high,
            }  # fmt: skip
        if (faults := self._faults.latest) is not None:
            summary["twin_faults"] = faults.msg.data
        summary |= {"nonfinite": env.loop.events.counts.get("nonfinite", 0), "stopped": env.loop.stopped}
        summary |= {"ended": self.ended} if self.ended else {}
        self._run.write("evaluation.json", summary | {"takeovers": result.takeovers})
        loop = env.summary() | self._baseline | {"learner": "absent", "lockstep": clock.in_lockstep()}
        loop |= {"speed": round(self._speed, 3)}
        self._run.write("loop.json", loop)
        self.film.write(self._run.folder, caption)
        late = {"late_share": loop["late_share"], "lateness_p99_us": loop["lateness_us"]["p99"]}
        return summary | late | {"inference_p99_ms": loop["inference_ms"]["p99"]}
