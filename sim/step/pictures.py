"""Delay of pictures: the renderer draws each environment at its positions some control periods ago."""

import math

import numpy as np
import torch
from torch import Tensor

from robot_rl.util.rows import Rows
from sim.parameters import LONGEST_SENSOR_DELAY


class PictureDelay(Rows):
    """Positions of n simulations at the last control periods."""

    ROWS = ("places", "lag")

    def __init__(self, num_envs: int, size: int, period: float, device: torch.device):
        """Args: `size`: number of generalized positions. `period`: control period, s."""
        depth = 1 + math.ceil(LONGEST_SENSOR_DELAY / period)
        self.places = torch.zeros(num_envs, depth, size, dtype=torch.double, device=device)
        """Generalized positions (n, D, nq), the newest first."""
        self.lag = torch.zeros(num_envs, dtype=torch.long, device=device)
        """Delay (n,) of the pictures, control periods."""

    def reset(self, ids: Tensor, qpos: np.ndarray, lag: Tensor) -> None:
        """Begin episodes of environments `ids` (k,); `qpos` (n, nq) and `lag` (n,) are of all environments."""
        self.places[ids] = torch.from_numpy(qpos).to(self.places.device)[ids, None]
        self.lag[ids] = lag[ids]

    def advance(self, qpos: np.ndarray) -> None:
        """Take the positions (n, nq) at the end of a control period."""
        newest = torch.from_numpy(qpos).to(self.places.device)[:, None]
        self.places = torch.cat([newest, self.places[:, :-1]], 1)

    def shown(self, rows: np.ndarray) -> np.ndarray:
        """Return the positions (k, nq) at which environments `rows` (k,) are drawn."""
        at = torch.as_tensor(rows, device=self.lag.device)
        shown: np.ndarray = self.places[at, self.lag[at]].cpu().numpy()
        return shown
