"""Episodes that begin before they are needed."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from robot_rl.state import RobotState

if TYPE_CHECKING:
    from sim.engines.base import Engine
    from sim.env import TaskEnv


@dataclass(frozen=True)
class Start:
    """How episodes begin: true and measured states (k), and observations (k, D) by name."""

    true: RobotState
    state: RobotState
    observation: dict[str, Tensor]

    def select(self, ids: Tensor) -> Start:
        """Rows `ids`."""
        views = {name: values[ids] for name, values in self.observation.items()}
        return Start(self.true.select(ids), self.state.select(ids), views)

    def put(self, ids: Tensor, rows: Start) -> Start:
        """A copy in which rows `ids` are those of another."""
        views = {name: values.index_copy(0, ids, rows.observation[name]) for name, values in self.observation.items()}
        return Start(self.true.put(ids, rows.true), self.state.put(ids, rows.state), views)


class Nursery:
    """A copy of an environment, one episode ahead of it.

    To begin an episode takes some 400 small operations, as many for one as for a hundred; to copy one takes a quarter
    of the time. An episode follows from its seed and number alone, so all that lack a successor get theirs as soon as
    one of them is needed, and nothing of this is kept for a resume.
    """

    def __init__(self, env: TaskEnv, engine: Engine):
        """`engine` is a sibling of the environment's, to which no reference is kept: a cycle would outlive it."""
        shared = {id(x): x for x in (env.task, env.pipeline, env.robot)}
        self.ahead = copy.deepcopy(env, shared | {id(env.engine): engine, id(env.recorder): None})
        self.start: Start
        """Of the next episode of each environment."""

    def take(self, env: TaskEnv, ids: Tensor) -> Start:
        """Begin the next episodes of environments `ids` (k,) of the one that this is a copy of."""
        ahead, rows = self.ahead, ids.numpy()
        missing = (ahead.episode != env.episode + 1) | (ahead.seed != env.seed)
        if missing[rows].any():
            self._prepare(env, missing.nonzero()[0])
        for mine, theirs in zip(env.memory(), ahead.memory(), strict=True):
            at = ids if isinstance(mine, Tensor) else rows  # either converts the other's at a cost
            mine[at] = theirs[at]
        env.engine.adopt(rows, ahead.engine)
        return self.start.select(ids)

    def _prepare(self, env: TaskEnv, rows: np.ndarray) -> None:
        ahead, ids = self.ahead, torch.from_numpy(rows)
        ahead.seed, ahead.episode[rows] = env.seed, env.episode[rows]
        start = ahead.begin(ids)
        self.start = self.start.put(ids, start) if len(rows) < env.num_envs else start
