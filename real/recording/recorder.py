"""Write a robot's episodes to a dataset, in a thread beside the control loop."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from robot_rl.data import DatasetWriter, EpisodeData
from robot_rl.data.episode import EpisodeRows
from robot_rl.data.lerobot import Feature
from robot_rl.data.recording import TRUNCATED, features, frames_per_second
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.pipeline import Pipeline

if TYPE_CHECKING:
    from real.episode.env import RobotEnv
    from real.episode.stream import StepRecord

logger = logging.getLogger(__name__)
WAITING = 4
"""Largest number of queued episodes. `end_episode` blocks while the queue is full, to bound memory."""


class RobotCameras:
    """Newest pictures of a robot's cameras, for its dataset. Pictures of the policy's cameras are those that the policy
    sees."""

    def __init__(self, env: RobotEnv):
        self.env = env
        pictures = {name: self._newest(name) for name in env.driver.scene.images}
        self.sizes = {name: picture.shape[:2] for name, picture in pictures.items() if picture is not None}
        """(height, width) by camera, pixels."""
        self.stale = 0
        """Number of pictures that were recorded again for lack of a new one: a video needs a frame per row."""

    def look(self) -> dict[str, np.ndarray]:
        """Return the current pictures (H, W, 3) by camera."""
        self.stale += self.env.stale_pictures(self.sizes)
        pictures = {name: self._newest(name) for name in self.sizes}
        return {name: picture for name, picture in pictures.items() if picture is not None}

    def _newest(self, camera: str) -> np.ndarray | None:
        pictures = self.env.pictures
        return pictures.newest(camera) if camera in pictures.pictures else self.env.driver.scene.image(camera)


class Recorder:
    """Collect an episode's rows in memory and pass whole episodes to a writer thread."""

    def __init__(self, root: Path, pipeline: Pipeline, images: Mapping[str, tuple[int, int]], resume: bool = True):
        """Open the dataset at `root`. `images`: (height, width) by camera; `resume`: append to an existing dataset."""
        self.pipeline, self.images = pipeline, dict(images)
        if resume and (root / "meta" / "info.json").exists():
            self.writer = DatasetWriter.append(root)
        else:
            info = EnvInfo.of(pipeline)
            columns = features(info, images) | {TRUNCATED: Feature("bool", (1,))}
            fps = frames_per_second(info)
            self.writer = DatasetWriter.create(root, fps=fps, features=columns, robot_type=pipeline.robot.name)
        self.rows = EpisodeRows(pipeline.actions, self.writer.features)
        self.error: BaseException | None = None
        self._queue: queue.Queue[EpisodeData | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._write, name="recorder", daemon=True)
        self._thread.start()

    def add(self, step: StepRecord, pictures: Mapping[str, np.ndarray]) -> None:
        """Append a control period: state, policy's and executed action, outcome, pictures (black if missing)."""
        frames = {}
        for camera, (height, width) in self.images.items():
            picture = pictures.get(camera)
            black = np.zeros((height, width, 3), np.uint8)
            frames[camera] = [black if picture is None else picture.copy()]
        self.rows.add(
            step.state, step.executed, step.policy_action, torch.tensor([step.reward]), torch.tensor([step.success]),
            torch.tensor([step.done]), intervention=torch.tensor([step.intervention]), pictures=frames,
            truncated=torch.tensor([step.truncated]), shield=torch.tensor([step.shield]),
            state_age=torch.tensor([step.state_age]),
            instructions=[step.instruction] if step.instruction else None,
        )  # fmt: skip

    def end_episode(self, record: Mapping[str, Any]) -> None:
        """Queue the episode for writing, if it has rows; raise the writer thread's error, if there is one."""
        self._raise_error()
        if self.rows.count():
            instruction = record.get("instruction", self.pipeline.interface.instruction)
            self._queue.put(self.rows.take(dict(record), instruction))

    def flush(self) -> None:
        """Wait until all queued episodes are on disk; raise the writer thread's error, if there is one."""
        self._queue.join()
        self._raise_error()

    def close(self) -> None:
        """Write queued episodes and release the dataset; raise the writer thread's error, if there is one."""
        self._queue.put(None)
        self._thread.join()
        self.writer.close()
        self._raise_error()

    def _raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                if self.error is None:  # otherwise only unblock waiting threads
                    self.writer.add_episode(item.columns, item.task, item.record)
            except BaseException as error:
                logger.exception("an episode could not be written")
                self.error = error
            finally:
                self._queue.task_done()
