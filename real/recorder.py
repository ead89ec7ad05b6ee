"""Write the robot's episodes to a dataset as they end, off the control thread."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data import DatasetWriter
from robot_rl.data.lerobot import Feature
from robot_rl.data.recording import TRUNCATED, features, frames_per_second
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.pipeline import Pipeline

logger = logging.getLogger(__name__)
WAITING = 4
"""Largest number of queued episodes; with more, the end of the next one waits, to bound memory."""


class Recorder:
    """Collect rows in memory and pass whole episodes to a writer thread; `close` waits until all are on disk."""

    def __init__(self, root: Path, pipeline: Pipeline, images: Mapping[str, tuple[int, int]]):
        self.pipeline, self.images = pipeline, dict(images)
        if (root / "meta" / "info.json").exists():
            self.writer = DatasetWriter.append(root)
        else:
            info = EnvInfo.of(pipeline)
            columns = features(info, images) | {TRUNCATED: Feature("bool", (1,))}
            fps = frames_per_second(info)
            self.writer = DatasetWriter.create(root, fps=fps, features=columns, robot_type=pipeline.robot.name)
        self._tells = TRUNCATED in self.writer.features
        """A session that began without this column continues without it."""
        self.rows: dict[str, list[Any]] = {}
        self.error: BaseException | None = None
        self._queue: queue.Queue[tuple[dict[str, np.ndarray], dict[str, Any]] | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._write, name="recorder", daemon=True)
        self._thread.start()

    def add(self, step: Mapping[str, Any], pictures: Mapping[str, np.ndarray]) -> None:
        """Append one control period: state, the policy's action, the executed action, result."""
        actions = self.pipeline.actions
        row = {
            "observation.state": step["state"][0].numpy(),
            "action": actions.to_physical(step["executed"])[0].numpy(),
            "action.policy": actions.to_physical(step["policy_action"].nan_to_num())[0].numpy(),
            "next.reward": np.array([step["reward"]], np.float32),
            "next.success": step["success"].numpy(),
            "next.done": np.array([step["done"]]),
            "intervention": step["intervention"].numpy(),
        }
        if self._tells:
            row[TRUNCATED] = np.array([step["truncated"]])
        for camera, (height, width) in self.images.items():
            picture = pictures.get(camera)
            black = np.zeros((height, width, 3), np.uint8)
            row[f"observation.images.{camera}"] = black if picture is None else picture.copy()
        for key, value in row.items():
            self.rows.setdefault(key, []).append(value)

    def end_episode(self, record: Mapping[str, Any]) -> None:
        """Queue the episode for writing."""
        if self.error is not None:
            raise self.error
        if self.rows:
            self._queue.put(({k: np.stack(v) for k, v in self.rows.items()}, dict(record)))
        self.rows = {}

    def close(self) -> None:
        """Write queued episodes and release the dataset."""
        self._queue.put(None)
        self._thread.join()
        self.writer.close()
        if self.error is not None:
            raise self.error

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            if self.error is not None:  # release waiting threads
                continue
            try:
                self.writer.add_episode(item[0], self.pipeline.interface.instruction, item[1])
            except BaseException as error:
                logger.exception("an episode could not be written")
                self.error = error
