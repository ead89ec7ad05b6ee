"""Robot side of human-in-the-loop learning: act, accept corrections, record, and load newer weights."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from policies.actor import ActorPolicy
from policies.execution import ChunkExecutor
from real import clock
from real.episode.display import Display
from real.episode.env import RobotEnv
from real.episode.stream import StepRecord
from real.recording.journal import Journal
from real.recording.recorder import Recorder, RobotCameras
from real.recording.session import VideoRecorder, uninterrupted
from robot_rl.training.human_in_the_loop import play_episode
from robot_rl.training.published import episodes_learned, fetch
from robot_rl.training.run import Run
from robot_rl.util.errors import UserError

logger = logging.getLogger(__name__)
PERMANENT_FAILURE = 2
"""Exit status of a learner that would fail again after a restart: bad input, or NaN."""


class LearnerProcess:
    """Run a learner beside the robot; if it dies, restart it from its checkpoint. UserError if its exit status is
    `PERMANENT_FAILURE`, or if a restarted learner dies before it has published `weights`; but not if the learner is
    `elsewhere`, on another computer, which may come back."""

    def __init__(self, command: list[str], weights: Path, elsewhere: bool = False):
        self.command, self.weights, self.elsewhere = command, weights, elsewhere
        self._before = 0
        self.restarts = 0
        self.note: Callable[[str, Any], None] = lambda _event, _what: None
        """Called with the event "stall" and its details when the learner resumes after it was suspended."""
        self.process: subprocess.Popen[bytes] | None = None
        self._started = 0.0

    def __enter__(self) -> LearnerProcess:
        self._start()
        return self

    def _start(self) -> None:
        self._started, self._before = time.monotonic(), self._stamp()
        # The pipe closes when this process ends in any way; the learner then ends too.
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE)

    def _stamp(self) -> int:
        return self.weights.stat().st_mtime_ns if self.weights.exists() else 0

    def _require_recoverable(self, published: bool) -> None:
        """Raise UserError after a permanent failure. With `published`, also raise it if the learner has published no
        weights since its start."""
        assert self.process is not None
        if self.process.returncode == PERMANENT_FAILURE:
            raise UserError(
                "the learner ended for the reason that it gave above and would end so again, so nothing more is "
                f"learned; the robot's episodes are in {self.weights.parent / 'dataset'}"
            )
        if published and self._stamp() == self._before:
            raise UserError(
                f"the learner ended before it had published any weights to {self.weights.parent}, for the reason that "
                "it gave above, so it learned nothing; correct that and go on with --resume"
            )

    def tend(self) -> None:
        """Restart the learner if it is dead, at most every 5 s, without waiting. Call this between episodes."""
        assert self.process is not None
        if self.process.poll() is None:
            # WNOHANG: the kernel has reported a learner that resumed after a suspension.
            if os.waitid(os.P_PID, self.process.pid, os.WCONTINUED | os.WNOHANG) is not None:
                self.note("stall", {"process": "learner"})
            return
        self._require_recoverable(published=self.restarts > 0 and not self.elsewhere)
        if time.monotonic() - self._started > 5.0:
            logger.warning("the learner ended with status %s; starting it again", self.process.returncode)
            self.restarts += 1
            self._start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self.process is not None
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if kind is None and self.process.returncode > 0:
            self._require_recoverable(published=not self.elsewhere)


class FinetuneSession:
    """Run episodes on the robot and load the newest weights between them."""

    def __init__(self, env: RobotEnv, policy: ActorPolicy, run: Run, seed: int, film: VideoRecorder, bag: bool = False):
        self.env, self.policy, self.run, self.seed = env, policy, run, seed
        self.display, self.version = Display(env), -1
        self.rng = torch.Generator().manual_seed(seed)
        self.cameras = RobotCameras(env)
        self.recorder = Recorder(run.folder / "dataset", env.pipeline, self.cameras.sizes)
        self._pictures: dict[str, Any] = {}
        """Camera pictures (H, W, 3) at the policy's last observation, by camera."""
        # A row must be recorded before the journal ends its episode.
        env.stream.on_step(self._record)
        film.attach(env)
        done = self.recorder.writer.num_episodes

        def facts() -> dict[str, Any]:
            return {"stale_pictures": self.cameras.stale, "policy_version": self.version}

        self.journal = Journal(run.folder, env, done, facts, keep=self.recorder.end_episode, bag=bag)
        self.learner: LearnerProcess | None = None

    @property
    def episodes(self) -> list[dict[str, Any]]:
        """Return a row for each of this session's episodes, as in episodes.jsonl."""
        return self.journal.rows

    def _record(self, step: StepRecord) -> None:
        self.recorder.add(step, self._pictures)
        if not step.done:
            self._pictures = self.cameras.look()

    def activate(self) -> None:
        """Start sending commands; the robot stays where it is."""
        self.env.activate()

    def learn(self, learner: LearnerProcess, seconds: float, progress: Callable[[int, int, str], None]) -> None:
        """Run episodes until `seconds` have passed, of the robot's time."""
        self.learner = learner
        learner.note = self.env.stream.note
        begin = clock.now()
        while clock.now() - begin < seconds:
            if clock.in_lockstep():
                self._await(learner)
            self.adopt()
            learner.tend()
            self.policy.explore = True
            executor = ChunkExecutor(self.policy, 1)
            executor.on_chunk = self.env.show_plan
            observation, _ = self.env.reset(seed=self.seed + self.journal.done + len(self.episodes))
            self.cameras.stale = 0
            self._pictures = self.cameras.look()
            play_episode(self.env, executor, observation, self.rng)
            recent = self.episodes[-10:]
            won, helped = sum(e["success"] for e in recent), sum(e["takeovers"] > 0 for e in recent)
            text = f"s, {len(self.episodes)} episodes: {won}/{len(recent)} won, {helped} helped, v{self.version}"
            progress(int(clock.now() - begin), int(seconds), text)

    def _await(self, learner: LearnerProcess) -> None:
        """Wait until the learner has learned from all episodes: the result must not depend on the computer's speed."""
        self.recorder.flush()
        while episodes_learned(self.run.folder) < self.recorder.writer.num_episodes:
            learner.tend()
            time.sleep(0.02)

    def adopt(self) -> None:
        """Load newer weights if the learner has published any."""
        with uninterrupted():
            self.version = fetch(self.run.folder, self.policy, self.version)

    def close(self) -> None:
        """Write all recorded data to disk."""
        try:
            with uninterrupted():
                self.recorder.close()
        finally:
            self.journal.close()

    def summary(self) -> dict[str, Any]:
        """Return the session's statistics: episodes, success rates, corrections, restarts of the learner."""
        rows, alone = self.episodes, [e["success"] for e in self.episodes if not e["takeovers"]]
        corrected, steps = (sum(e[key] for e in rows) for key in ("intervention_steps", "steps"))
        return {
            "episodes": len(rows),
            "success": sum(e["success"] for e in rows) / max(1, len(rows)),
            "autonomous_success": sum(alone) / len(alone) if alone else None,
            "corrected_episodes": len(rows) - len(alone),
            "intervention_share": corrected / max(1, steps),
            "learner_restarts": self.learner.restarts if self.learner else 0,
            "policy_version": self.version,
        }
