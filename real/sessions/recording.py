"""Record a person's demonstrations in simulation (`RehearsalEnv`) or on a robot (`RobotEnv`)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from real import clock
from real.episode.display import Display
from real.episode.env import RobotEnv
from real.episode.stream import Event, StepRecord
from real.recording.recorder import Recorder
from robot_rl.util.seeds import training_seed

REST = 0.02
"""Largest joint speed of an arm at rest, rad/s."""
GRIP = 0.0005
"""Largest change of gripper width per control period at rest, m."""


@dataclass
class Progress:
    """Progress of a recording."""

    episodes: int
    """Final number of episodes in the dataset."""
    saved: int = 0
    """Current number of episodes in the dataset."""
    new: int = 0
    """Number of episodes saved by this recording."""
    successes: int = 0
    failures: int = 0
    """Number of episodes that were marked as failed or timed out. They are saved only with `keep_failures`."""
    discarded: int = 0
    paused: int = 0
    """Number of control periods omitted as pauses."""
    phase: str = ""
    """Phase of the episode: resetting, let go, waiting, running; then saved, failed or discarded."""
    began: float = 0.0
    """Start of the phase, s."""
    instruction: str = ""
    """Instruction of the running episode; empty without instructions."""


class Recording:
    """Record episodes in which a person commands the robot, and keep successful ones.

    An episode begins at the person's first input. It ends at the task's success test, a mark or the time limit; reset
    and stop discard it. After a discarded episode the objects are placed as before, after a failed episode differently.
    A saved episode is on disk before the next one begins.
    """

    def __init__(
        self, env: Any, recorder: Recorder, look: Callable[[], dict[str, np.ndarray]], episodes: int, seed: int = 0,
        keep_failures: bool = False, keep_pauses: bool = False,
        show: Callable[[Progress], None] = lambda _progress: None, on_step: Callable[[Any], None] = lambda _env: None,
    ):  # fmt: skip
        """Args: `look`: returns the current pictures by camera. `keep_pauses`: keep control periods without command and
        motion; learners imitate such pauses. `show`: receives the progress at each change of phase and each control
        period. `on_step`: receives the environment each control period, in simulation also before the first input."""
        self.env, self.recorder, self.look, self.seed = env, recorder, look, seed
        self.keep_failures, self.keep_pauses, self.show, self.on_step = keep_failures, keep_pauses, show, on_step
        self.progress = Progress(episodes, recorder.writer.num_episodes)
        self.display = Display(env) if isinstance(env, RobotEnv) else None
        self._attempt = 0  # at the current episode of the dataset
        self._pictures: dict[str, np.ndarray] = {}
        self._hold, self._width = torch.zeros(0), 0.0
        env.on_wait = self._report
        env.stream.on_event(self._on_event)
        env.stream.on_step(self._record)

    def activate(self) -> None:
        """Start sending commands to a robot; it stays where it is."""
        if isinstance(self.env, RobotEnv):
            self.env.activate()

    def run(self) -> Progress:
        """Record until the dataset has its final number of episodes; raise `Finished` if the person quits before."""
        while self.progress.saved < self.progress.episodes:
            self._episode()
        return self.progress

    def _episode(self) -> None:
        env, recorder, progress = self.env, self.recorder, self.progress
        recorder.rows.drop()
        seed = training_seed(self.seed, progress.saved) + self._attempt
        env.reset(seed=seed, options={"await_operator": True})
        facts, over, discarded = self._facts(), False, False
        progress.instruction = facts["instruction"] if env.pipeline.interface.instructions else ""
        while not (over or discarded):
            self._pictures, self._hold = self.look(), env.hold_action()
            self._width = float(env.state.gripper_width.sum())
            _, _, terminated, truncated, infos = env.step(self._hold)
            over, discarded = bool(terminated | truncated), bool(infos["discarded"])
            self._report()
        success = bool(infos["success"])
        if discarded or not recorder.rows.count():
            env.abandon()
            progress.discarded += 1
            self._enter("discarded")
            return
        progress.successes, progress.failures = progress.successes + success, progress.failures + (not success)
        if not (success or self.keep_failures):
            self._attempt += 1
            self._enter("failed")
            return
        recorder.end_episode(facts | {"success": success, "marked": bool(infos["marked"])})
        recorder.flush()
        progress.saved, progress.new, self._attempt = recorder.writer.num_episodes, progress.new + 1, 0
        self._enter("saved")

    def _facts(self) -> dict[str, Any]:
        """Return the episode's instruction and, in simulation, the randomized values of its parameters."""
        record = getattr(self.env, "episode_record", None)
        return {"instruction": self.env.instruction(0)} | (record(0) if record else {})

    def _record(self, step: StepRecord) -> None:
        """Record a control period unless it is a pause, in which the command is a hold, and joints and fingers rest."""
        state = self.env.state
        at_rest = float(state.joint_velocity.abs().max()) < REST
        at_rest &= abs(float(state.gripper_width.sum()) - self._width) < GRIP
        pause = at_rest and torch.allclose(step.executed, self._hold, atol=1e-4)
        if pause and not (step.done or self.keep_pauses):
            self.progress.paused += 1
            return
        self.recorder.add(step, self._pictures)

    def _on_event(self, event: Event) -> None:
        if event.name == "phase":
            self._enter(str(event.what))

    def _enter(self, phase: str) -> None:
        if phase != self.progress.phase:
            self.progress.phase, self.progress.began = phase, clock.now()
            self.show(self.progress)

    def _report(self) -> None:
        self.on_step(self.env)
        self.show(self.progress)
