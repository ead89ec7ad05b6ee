"""Replay a run's commands in simulation: the same set-points and gains at the same times, from the measured state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from real.drivers.lowlevel import DAMPING
from robot_rl.data.motion import Motion
from robot_rl.robots import robots
from sim.engines.mujoco import MujocoEngine
from sim.scenes import Scene

LONGEST = 20.0
"""Length of the compared part of a run, s, from its beginning."""
SETTLING = 1.0
"""Time in which a legged robot comes to rest on the ground before the first command, s."""
TIMESTEP = 0.002
"""Physics step of a legged robot, s."""


@dataclass(frozen=True)
class Parameters:
    """Parameters of one simulation, as in a task's randomization."""

    action_delay: float = 0.0
    """Delay of commands, s."""
    stiffness_scale: float = 1.0
    damping_scale: float = 1.0
    armature_scale: float = 1.0


@dataclass(frozen=True)
class Sampled:
    """A run on a grid of times, one per command period."""

    time: np.ndarray
    """(T,) s."""
    position: np.ndarray
    """Measured positions, (T, J) rad, interpolated between the states' times."""
    setpoint: np.ndarray
    """Newest set-point at each time, (T, J) rad."""
    known: np.ndarray
    """Whether a state is near enough to each time, (T,)."""


def sample(motion: Motion) -> Sampled:
    """Return a run on the grid of its command periods, up to `LONGEST` s. Positions count from the states' arrival."""
    period = 1 / motion.facts["command_rate"]
    end = min(motion.time[-1], LONGEST)
    time = np.arange(0.0, end + 0.5 * period, period)
    newest = np.searchsorted(motion.time, time + 0.25 * period, side="right") - 1
    fresh = np.concatenate([[True], np.diff(motion.received) > 0])
    at, q = motion.received[fresh], motion.position[fresh].astype(float)
    position = np.stack([np.interp(time, at, joint) for joint in q.T], 1)
    gap = time - at[np.searchsorted(at, time, side="right").clip(1) - 1]
    return Sampled(time, position, motion.setpoint[newest].astype(float), gap < 0.1)


class Replay:
    """Simulations of one run that differ in their parameters."""

    def __init__(self, motion: Motion, mjcf: str = ""):
        self.motion, self._mjcf = motion, mjcf
        self.robot = robots.get(motion.facts["robot"])
        self.run = sample(motion)
        newest = np.searchsorted(motion.time, self.run.time + 1e-4, side="right") - 1
        self.stiffness = motion.stiffness[newest].astype(float)
        """Commanded multiple of the spec's stiffness, (T,)."""
        self.follows = motion.follows[newest]
        """Whether set-points follow the policy's goals, (T,)."""
        self._width = motion.gripper[newest].astype(np.float32)
        self._engines: dict[int, MujocoEngine] = {}

    def __call__(self, parameters: Sequence[Parameters]) -> np.ndarray:
        """Return the simulated joint positions (K, T, J), rad, with each of K sets of parameters."""
        engine, n, t = self._engine(len(parameters)), len(parameters), self.run.time
        ids = np.arange(n)
        for name in ("stiffness_scale", "damping_scale", "armature_scale"):
            engine.parameters[f"robot.{name}"](ids, np.array([getattr(p, name) for p in parameters]))
        late = [np.stack([np.interp(t - p.action_delay, t, joint) for joint in self.run.setpoint.T], 1)
                for p in parameters]  # fmt: skip
        target = torch.from_numpy(np.stack(late)).float()
        width = torch.from_numpy(self._width)[None, :, None].expand(n, -1, -1)
        start = np.tile(self.run.position[0], (n, 1))
        engine.reset(ids, start, {})
        if self.robot.base:
            self._spring(engine, n, 1.0)
            held = torch.from_numpy(start).float()[:, None].expand(-1, round(SETTLING / TIMESTEP), -1)
            engine.step(held, held)
        parts = []
        for begin, end in pairwise(self._pieces()):
            if self.robot.base:
                self._spring(engine, n, self.stiffness[begin])
            parts.append(engine.track(target[:, begin:end], width[:, begin:end]))
        return np.concatenate(parts, 1)

    def _pieces(self) -> list[int]:
        """Return the borders between parts of constant commanded stiffness."""
        changes: Sequence[int] | np.ndarray = np.flatnonzero(np.diff(self.stiffness)) + 1 if self.robot.base else []
        return [0, *map(int, changes), len(self.run.time)]

    def _spring(self, engine: MujocoEngine, n: int, scale: float) -> None:
        kp, kd = (np.array([getattr(j, name) for j in self.robot.joints]) for name in ("stiffness", "damping"))
        kp, kd = scale * kp, max(1.0, scale) * kd if scale else np.full_like(kd, DAMPING)
        engine.set_springs(*(np.tile(values, (n, 1)) for values in (kp, kd, 0 * kp)))

    def _engine(self, n: int) -> MujocoEngine:
        if n not in self._engines:
            period = 1 / self.robot.command_rate
            step = TIMESTEP if self.robot.base else min(Scene().timestep, period)
            self._engines[n] = MujocoEngine(self.robot, Scene(timestep=step), n, mjcf=self._mjcf)
        return self._engines[n]

    def close(self) -> None:
        """End the simulations' threads."""
        for engine in self._engines.values():
            engine.close()
