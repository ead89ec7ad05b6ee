"""Record a person's demonstrations, in simulation (`RehearsalEnv`) and on a robot (`RobotEnv`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from real.recording.recorder import Recorder
from robot_rl.util.seeds import training_seed

REST = 0.02
"""Speed of every joint below which an arm is at rest, rad/s."""
GRIP = 0.0005
"""Change of the gripper's width in a control period below which it is at rest, m."""


@dataclass
class Progress:
    """How a recording goes."""

    episodes: int
    """Episodes to be in the dataset in the end."""
    saved: int = 0
    """Episodes in the dataset."""
    new: int = 0
    """Of them, saved by this recording."""
    successes: int = 0
    failures: int = 0
    """Marks and timeouts; saved only on request."""
    discarded: int = 0
    paused: int = 0
    """Control periods left out as pauses."""
    phase: str = ""
    """resetting, let go, waiting, running; then saved, failed, discarded"""
    began: float = 0.0
    """Begin of the phase, monotonic s."""
    asked: str = ""
    """What the running episode asks for, if the task has several instructions."""


class Recording:
    """Play episodes with a policy that stands still while a person acts in its place, and keep the good ones.

    An episode begins with the person's first input. It ends by the task's success test, a mark, the time limit, or by
    reset or stop, which discard it. A discarded episode is repeated with the same placement of objects, a failed one is
    followed by another placement. A saved episode is on disk before the next one begins.
    """

    def __init__(
        self,
        env: Any,
        recorder: Recorder,
        look: Callable[[], dict[str, np.ndarray]],
        episodes: int,
        seed: int = 0,
        keep_failures: bool = False,
        keep_pauses: bool = False,
        show: Callable[[Progress], None] = lambda _progress: None,
        on_step: Callable[[Any], None] = lambda _env: None,
    ):
        """Args:
        look: returns the pictures of the present state by camera.
        keep_pauses: keep control periods in which nothing is commanded and nothing moves. Learners imitate them, and
            stop where the person thought.
        show: gets the progress at every change of phase and every control period.
        on_step: gets the environment after every control period, also before the first input in simulation; for a view.
        """
        self.env, self.recorder, self.look, self.seed = env, recorder, look, seed
        self.keep_failures, self.keep_pauses, self.show, self.on_step = keep_failures, keep_pauses, show, on_step
        self.progress = Progress(episodes, recorder.writer.num_episodes)
        self._attempt = 0  # at this number of the dataset
        self._pictures: dict[str, np.ndarray] = {}
        self._hold, self._width = torch.zeros(0), 0.0
        env.note, env.on_wait = self._note, self._waits
        env.observers.append(self._record)

    def run(self) -> Progress:
        """Record until the dataset has its episodes; `Finished` when the person quits before."""
        while self.progress.saved < self.progress.episodes:
            self._episode()
        return self.progress

    def _episode(self) -> None:
        env, recorder, progress = self.env, self.recorder, self.progress
        recorder.rows.drop()
        seed = training_seed(self.seed, progress.saved) + self._attempt
        env.reset(seed=seed, options={"await_operator": True})
        facts, over, discarded = self._facts(), False, False
        progress.asked = facts["instruction"] if env.pipeline.interface.instructions else ""
        while not (over or discarded):
            self._pictures, self._hold = self.look(), env.hold_action()
            self._width = float(env.state.gripper_width.sum())
            _, _, terminated, truncated, infos = env.step(self._hold)
            over, discarded = bool(terminated | truncated), bool(infos["discarded"])
            self.on_step(env)
            self.show(progress)
        success = bool(infos["success"])
        if discarded or not recorder.rows.count():
            env.abandon()
            progress.discarded += 1
            self._note("phase", "discarded")
            return
        progress.successes, progress.failures = progress.successes + success, progress.failures + (not success)
        if not (success or self.keep_failures):
            self._attempt += 1
            self._note("phase", "failed")
            return
        recorder.end_episode(facts | {"success": success, "marked": bool(infos["marked"])})
        recorder.flush()
        progress.saved, progress.new, self._attempt = recorder.writer.num_episodes, progress.new + 1, 0
        self._note("phase", "saved")

    def _facts(self) -> dict[str, Any]:
        """Return what was asked, and in simulation what was randomized."""
        record = getattr(self.env, "episode_record", None)
        return {"instruction": self.env.instruction(0)} | (record(0) if record else {})

    def _record(self, step: dict[str, Any]) -> None:
        """Keep a control period unless it is a pause: a hold is commanded, and neither joints nor fingers move."""
        state = self.env.state
        rests = float(state.joint_velocity.abs().max()) < REST
        rests &= abs(float(state.gripper_width.sum()) - self._width) < GRIP
        if rests and torch.allclose(step["executed"], self._hold, atol=1e-4) and not (step["done"] or self.keep_pauses):
            self.progress.paused += 1
            return
        self.recorder.add(step, self._pictures)

    def _note(self, event: str, what: Any) -> None:
        if event == "phase" and what != self.progress.phase:
            self.progress.phase, self.progress.began = str(what), time.monotonic()
            self.show(self.progress)

    def _waits(self) -> None:
        self.on_step(self.env)
        self.show(self.progress)
