"""Uneven ground below n robots: heights, normals and scans on the engine's device, and the tile of each episode."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.interface.rotation import heading
from robot_rl.util.errors import ConfigError
from robot_rl.util.rows import Rows
from sim.terrain import Terrain

EDGE = 1.0
"""An episode ends where its robot is closer to the edge of the ground, m."""
Levels = tuple[int, int]
"""Lowest and highest level of difficulty."""


class HeightField:
    """Heights of a terrain between its grid points, on two triangles per cell."""

    def __init__(self, terrain: Terrain, device: torch.device | str = "cpu"):
        self.scale, self.half = terrain.horizontal_scale, terrain.half_size
        self.columns = terrain.heights.shape[1]
        self._heights = torch.tensor(terrain.heights, device=device).flatten()
        self._last = [size - 1.001 for size in reversed(terrain.heights.shape)]  # so that a cell has a right neighbour

    def _corners(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """Return the position (u, v) in [0, 1] in the cell of each point, and the heights of the three corners of its
        triangle: (0, 0), then (1, 0) if u >= v, else (0, 1), then (1, 1). Points outside are moved to the edge."""
        # clamp_ also of NaN: the state of a diverged simulation
        u = ((x + self.half[0]) / self.scale).nan_to_num_().clamp_(0, self._last[0])
        v = ((y + self.half[1]) / self.scale).nan_to_num_().clamp_(0, self._last[1])
        column, row = u.floor(), v.floor()
        first = row.long() * self.columns + column.long()
        u, v = u - column, v - row
        second = first + torch.where(u >= v, 1, self.columns)
        # index_select takes a fifth of the time of an index.
        corners = (self._heights.index_select(0, k.flatten()) for k in (first, second, first + self.columns + 1))
        return u, v, *(height.view_as(u) for height in corners)

    def height(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the heights of the ground at points x, y (...), m, world frame."""
        u, v, first, second, third = self._corners(x, y)
        return first + torch.maximum(u, v) * (second - first) + torch.minimum(u, v) * (third - second)

    def normal(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the upward unit normals (n, 3) of the ground at points x, y (n,), world frame."""
        u, v, first, second, third = self._corners(x, y)
        along, across = (second - first) / self.scale, (third - second) / self.scale
        dx, dy = torch.where(u >= v, along, across), torch.where(u >= v, across, along)
        return torch.nn.functional.normalize(torch.stack([-dx, -dy, torch.ones_like(dx)], 1))

    def outside(self, x: Tensor, y: Tensor) -> Tensor:
        """Return where points x, y (n,) are beyond the ground or less than `EDGE` from its edge."""
        return (x.abs() > self.half[0] - EDGE) | (y.abs() > self.half[1] - EDGE)


class Ground(Rows):
    """Ground of n environments with the tile on which each episode begins.

    Kind and level of a tile are drawn from the episode's random numbers. A curriculum replaces the level: `levels`.
    """

    ROWS = ("tiles",)

    def __init__(
        self, terrain: Terrain, scan: Sequence[tuple[float, float]], num_envs: int, device: torch.device,
        drawn: Levels | None = None,
    ):  # fmt: skip
        """`scan`: points of `height_scan`, forward and left of the trunk, m. `drawn`: levels to draw from; None: all.
        ConfigError for levels that the terrain does not have."""
        low, high = drawn or (0, terrain.levels - 1)
        if not 0 <= low <= high < terrain.levels:
            raise ConfigError(f"levels {low}..{high} are not within 0..{terrain.levels - 1}, those of the ground")
        self.terrain, self.field, self.device = terrain, HeightField(terrain, device), device
        self.drawn = low, high
        self.scan = torch.tensor(scan, device=device).reshape(-1, 2)
        self.tiles = torch.zeros(num_envs, 2, dtype=torch.long, device=device)
        """Kind and level (n, 2) of the tiles on which the running episodes began."""
        self.levels = np.full(num_envs, -1)
        """Level (n,) of each environment's next episode; -1: drawn uniformly from `drawn`."""

    def begin(self, ids: Tensor, uniforms: Tensor) -> np.ndarray:
        """Choose the tiles of new episodes of environments `ids` (k,) by random numbers (k, 2) in [0, 1); return the
        origins (k, 3) of these tiles, m."""
        u, (low, high), given = uniforms.double().cpu().numpy(), self.drawn, self.levels[ids.cpu().numpy()]
        kinds = (u[:, 0] * len(self.terrain.kinds)).astype(int)
        levels = np.where(given < 0, low + (u[:, 1] * (high - low + 1)).astype(int), given)
        tiles = np.stack([kinds, levels], 1)
        self.tiles[ids] = torch.from_numpy(tiles).to(self.device)
        return self.terrain.origins(tiles)

    def views(self, views: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the views of the ground in `RobotState` for robots whose other views are given."""
        position, feet = views["base_position"], views["foot_position"]
        x, y = position[:, :1], position[:, 1:2]
        forward = heading(views["base_quat"])
        ahead, left = self.scan.unbind(1)
        along = forward[:, :1] * ahead - forward[:, 1:] * left
        across = forward[:, 1:] * ahead + forward[:, :1] * left
        points = torch.cat([x, feet[:, 0::3], x + along], 1), torch.cat([y, feet[:, 1::3], y + across], 1)
        heights = self.field.height(*points)
        below, under, scanned = heights.split([1, feet.shape[1] // 3, len(self.scan)], 1)
        found = {"ground_height": below, "foot_ground_height": under}
        found["ground_normal"] = self.field.normal(position[:, 0], position[:, 1])
        return found | ({"height_scan": scanned - position[:, 2:]} if len(self.scan) else {})

    def outside(self, position: Tensor) -> Tensor:
        """Return (n,) bool: robots at positions (n, 3) that have reached the edge of the ground."""
        return self.field.outside(position[:, 0], position[:, 1])

    def stale(self, ahead: "Ground") -> np.ndarray:
        """Return (n,) bool: environments whose level changed since their next episodes were prepared in `ahead`."""
        return self.levels != ahead.levels

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"levels": self.levels.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.levels = np.array(state["levels"])
