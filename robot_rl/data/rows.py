"""Assemble the rows of running episodes, one per control period, in simulation and on a robot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.data.episode import EpisodeData
from robot_rl.data.recording import ACTION, STATE, TRUNCATED
from robot_rl.interface.spec import VectorSpec

Array = np.ndarray[Any, np.dtype[Any]]


class EpisodeRows:
    """The rows of the running episodes of n environments, by column as in `recording.features`."""

    def __init__(self, actions: VectorSpec, num_envs: int = 1):
        self.actions = actions
        self._rows: list[dict[str, list[Array]]] = [{} for _ in range(num_envs)]
        self._told: list[list[str]] = [[] for _ in range(num_envs)]

    def add(
        self,
        state: Tensor,
        executed: Tensor,
        wanted: Tensor,
        reward: Tensor,
        success: Tensor,
        done: Tensor,
        *,
        intervention: Tensor | None = None,
        truncated: Tensor | None = None,
        pictures: Mapping[str, Any] | None = None,
        told: Sequence[str] | None = None,
    ) -> None:
        """Add one control period to every episode.

        Args:
            state: (n, D) observation.state at its beginning.
            executed: (n, A) in [-1, 1].
            wanted: (n, A) in [-1, 1], the policy's; NaN is recorded as 0.
            reward, success, done: (n,)
            intervention: (n,) a person's action was executed; None: nowhere.
            truncated: (n,) for datasets with `TRUNCATED`.
            told: What each episode asked for, n texts; None: what `take` is told.
            pictures: (n, H, W, 3) by camera, at its beginning; a row may be None where nothing is kept.
        """
        flags = {"next.success": success, "next.done": done}
        flags["intervention"] = torch.zeros_like(done) if intervention is None else intervention
        flags |= {} if truncated is None else {TRUNCATED: truncated}
        columns = {
            STATE: state,
            ACTION: self.actions.to_physical(executed),
            "action.policy": self.actions.to_physical(wanted.nan_to_num()),
            "next.reward": reward.float()[:, None],
        } | {name: values[:, None] for name, values in flags.items()}
        rows: dict[str, Any] = {name: values.cpu().numpy() for name, values in columns.items()}
        rows |= {f"observation.images.{camera}": frames for camera, frames in (pictures or {}).items()}
        for i, episode in enumerate(self._rows):
            for key, values in rows.items():
                episode.setdefault(key, []).append(values[i])
            if told is not None:
                self._told[i].append(told[i])

    def count(self, i: int = 0) -> int:
        """Return the number of rows of an episode so far."""
        return len(self._rows[i].get(STATE, ()))

    def take(self, record: Mapping[str, Any], task: str, i: int = 0) -> EpisodeData:
        """Return an episode with what is to be stored beside it, and begin the next one.

        `task` is its instruction where `add` was not told any.
        """
        columns = {key: np.stack(values) for key, values in self._rows[i].items()}
        episode = EpisodeData(columns, self._told[i] or task, record)
        self.drop(i)
        return episode

    def drop(self, i: int = 0) -> None:
        """Begin an environment's next episode without the rows so far."""
        self._rows[i], self._told[i] = {}, []
