"""Replay an arm's commands in simulation: the same set-points at the same times, from the measured state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from robot_rl.data.motion import Motion
from robot_rl.robots import robots
from sim.engines.mujoco import MujocoEngine
from sim.scenes import Scene

LONGEST = 20.0
"""Length of the compared part of a run, s, from its beginning."""


@dataclass(frozen=True)
class Parameters:
    """Parameters of one simulation."""

    action_delay: float = 0.0
    """Delay of commands, s."""
    softness: float = 1.0
    """Damping divided by stiffness, as a multiple of the spec's: servos are so stiff that slow motion shows only it."""


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


def sample(motion: Motion, longest: float = LONGEST) -> Sampled:
    """Return a run on the grid of its command periods, up to `longest` s. Positions count from the states' arrival."""
    period = 1 / motion.facts["command_rate"]
    end = min(motion.time[-1], longest)
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
        self._mjcf = mjcf
        self.robot = robots.get(motion.facts["robot"])
        self.run = sample(motion)
        self.whole = motion.facts["whole"]
        newest = np.searchsorted(motion.time, self.run.time + 1e-4, side="right") - 1
        self.follows = motion.follows[newest]
        """Whether set-points follow the policy's goals, (T,)."""
        self._width = motion.gripper[newest].astype(np.float32)
        self._engines: dict[int, MujocoEngine] = {}

    def __call__(self, parameters: Sequence[Parameters]) -> np.ndarray:
        """Return the simulated joint positions (K, T, J), rad, with each of K sets of parameters."""
        engine, n, t = self._engine(len(parameters)), len(parameters), self.run.time
        ids = np.arange(n)
        engine.parameters["robot.damping_scale"](ids, np.array([p.softness for p in parameters]))
        late = [np.stack([np.interp(t - p.action_delay, t, joint) for joint in self.run.setpoint.T], 1)
                for p in parameters]  # fmt: skip
        target = torch.from_numpy(np.stack(late)).float()
        width = torch.from_numpy(self._width)[None, :, None].expand(n, -1, -1)
        engine.reset(ids, np.tile(self.run.position[0], (n, 1)), {})
        return engine.track(target, width)

    def _engine(self, n: int) -> MujocoEngine:
        if n not in self._engines:
            period = 1 / self.robot.command_rate
            scene = Scene(timestep=min(Scene().timestep, period))
            self._engines[n] = MujocoEngine(self.robot, scene, n, mjcf=self._mjcf)
        return self._engines[n]

    def close(self) -> None:
        """End the simulations' threads."""
        for engine in self._engines.values():
            engine.close()
