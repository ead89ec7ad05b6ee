"""Simulate a log's commands with candidate parameters: many candidates and windows of the log at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from robot_rl.identification.log import Log
from sim.engines.mujoco import MujocoEngine
from sim.parameters import nominal
from sim.scenes import Scene

WINDOW, SKIP = 10.0, 2.0
"""Length of a window, and of its beginning that is not compared, s: each starts at rest at the measured posture."""
DELAY = "robot.action_delay"


class Plant:
    """K x W simulations: K candidates of W windows of a log."""

    def __init__(self, log: Log, candidates: int, mjcf: str = ""):
        robot, self.count = log.robot, candidates
        self.period = 1 / robot.command_rate
        ticks = round(WINDOW * robot.command_rate)
        spans = [(p, k) for p, piece in enumerate(log.pieces) for k in range(0, len(piece.time) - ticks, ticks)]
        if not spans:  # pieces shorter than a window
            ticks = min(len(piece.time) for piece in log.pieces) - 1
            spans = [(p, 0) for p in range(len(log.pieces))]
        self._log, self.spans, self.ticks = log, spans, ticks
        q = [log.pieces[p].position[k : k + ticks + 1] for p, k in spans]
        self.start, self.measured = np.stack([window[0] for window in q]), np.stack([window[1:] for window in q])
        """Measured joint positions, rad, at the start (W, J) and the end of each command period (W, T, J)."""
        skip = min(round(SKIP * robot.command_rate), ticks // 3)
        self.known = np.stack([log.pieces[p].known[k + 1 : k + 1 + ticks] for p, k in spans])
        self.known[:, :skip] = False
        """(W, T) whether a time is compared."""
        width = np.stack([log.gripper[p][k : k + ticks] for p, k in spans]).astype(np.float32)
        self._width = torch.from_numpy(np.tile(width, (candidates, 1)))[..., None]
        scene = Scene(timestep=min(Scene().timestep, self.period))
        if robot.base:
            scene = replace(scene, timestep=0.002, cone="pyramidal", impratio=1.0, hung=log.hung)
        self.engine = MujocoEngine(robot, scene, candidates * len(spans), mjcf=mjcf)
        self.names = list(self.engine.parameters)

    def __call__(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return simulated joint positions (K, W, T, J), rad, with values (K,) of parameters."""
        engine, windows = self.engine, len(self.spans)
        ids = np.arange(engine.num_envs)
        delay = values.get(DELAY, np.full(self.count, nominal(DELAY)))
        for name, value in values.items():
            if name != DELAY:
                engine.parameters[name](ids, np.repeat(value, windows))
        engine.reset(ids, np.tile(self.start, (self.count, 1)), {})
        places = engine.track(torch.from_numpy(self._commands(delay)).float(), self._width)
        return places.reshape(self.count, windows, self.ticks, -1)

    def _commands(self, delay: np.ndarray) -> np.ndarray:
        """Return set-points (K W, T, J) that act `delay` (K,) s after they were sent; the engine's own is one step."""
        late = delay - self.engine.scene.timestep
        rows = []
        for value in late:
            for p, k in self.spans:
                piece = self._log.pieces[p]
                at = piece.time[k : k + self.ticks] - value
                rows.append(np.stack([np.interp(at, piece.time, joint) for joint in piece.setpoint.T], 1))
        return np.stack(rows)

    def close(self) -> None:
        """End the simulations' threads."""
        self.engine.close()
