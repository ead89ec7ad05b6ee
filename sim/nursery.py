"""Episodes that begin before they are needed."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from robot_rl.interface.state import RobotState, leaves

if TYPE_CHECKING:
    from sim.engines.base import Engine
    from sim.env import TaskEnv


@dataclass(frozen=True)
class Start:
    """How episodes begin: true and measured states (k), and observations (k, D) by name."""

    true: RobotState
    state: RobotState
    observation: dict[str, Tensor]

    def put(self, ids: Tensor, rows: Start) -> Start:
        """A copy in which rows `ids` are those of another."""
        views = {name: values.index_copy(0, ids, rows.observation[name]) for name, values in self.observation.items()}
        return Start(self.true.put(ids, rows.true), self.state.put(ids, rows.state), views)


class Nursery:
    """A copy of an environment, one episode ahead of it.

    To begin one episode takes hundreds of small operations, to begin a hundred the same and what each costs; to copy
    one takes a tenth of the time. An episode follows from its seed and number alone, so all that lack a successor get
    theirs as soon as one of them is needed, and nothing of this is kept for a resume. The step in which a block begins
    lasts longer by that.
    """

    def __init__(self, env: TaskEnv, engine: Engine):
        """`engine` is a sibling of the environment's, to which no reference is kept: a cycle would outlive it."""
        self.ahead = ahead = copy.copy(env)
        ahead.engine, ahead.recorder = engine, None
        ahead.sensors, ahead.feet = copy.deepcopy(env.sensors), copy.deepcopy(env.feet)
        for name in ("episode", *env.ROWS):
            setattr(ahead, name, copy.deepcopy(getattr(env, name)))
        self.ready = np.full(env.num_envs, -1)
        """Number of the episode that stands ready for each environment; -1 for none."""
        self.observation: dict[str, Tensor]
        """The first of these."""
        self.theirs: list[np.ndarray]
        """What else is theirs, under the names of `TaskEnv.own`."""

    def take(self, env: TaskEnv, ids: Tensor) -> tuple[list[np.ndarray], dict[str, Tensor]]:
        """Begin the physics of the next episodes of environments `ids` (k,) of the one that this is a copy of.

        Returns `theirs` and `observation`, whose rows `ids` are those of the episodes that begin.
        """
        ahead, rows = self.ahead, ids.numpy()
        missing = (self.ready != env.episode) | (ahead.seed != env.seed)
        if missing[rows].any():
            self._prepare(env, missing.nonzero()[0])
        env.episode[rows] = ahead.episode[rows]
        env.engine.adopt(rows, ahead.engine)
        return self.theirs, self.observation

    def _prepare(self, env: TaskEnv, rows: np.ndarray) -> None:
        ahead, ids = self.ahead, torch.from_numpy(rows)
        self.ready[rows] = -1  # should Ctrl-C interrupt
        ahead.seed, ahead.episode[rows] = env.seed, env.episode[rows]
        start = ahead.begin(ids)
        if len(rows) < env.num_envs:
            start = Start(ahead.true, ahead.state, self.observation).put(ids, start)
        ahead.true, ahead.state, self.observation = start.true, start.state, start.observation
        self.theirs = [tensor.numpy() for tensor in leaves(attrgetter(*ahead.own)(ahead))]
        self.ready[rows] = env.episode[rows]
