"""Uneven ground: a grid of procedural tiles, levels of difficulty by kinds of ground.

As in legged_gym (Rudin et al. 2022, arXiv 2109.11978) and mjlab. Every tile has a flat platform in its centre, where
robots begin, and height 0 along its edge, so a robot can walk from tile to tile. `sim.terrain_solids` builds the ground
from boxes and frusta; the heights here are what views of the ground and scans read.

              kind 0   kind 1   ...          a tile along its middle: slope_down
    level L-1 [     ]  [     ]    ^ y             ___________
    ...                           |              /  platform \\
    level 0   [     ]  [     ]    +---> x  _____/             \\_____  height 0
"""

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated, Literal, get_args

import numpy as np

from robot_rl.util.limits import Interval, NonNegativeFloat, PositiveFloat, PositiveInt, Seed, validate

Kind = Literal["slope_up", "slope_down", "stairs_up", "stairs_down", "rubble"]
"""Ground on the way out from the platform: up or down a slope or stairs, or over blocks."""
KINDS: tuple[Kind, ...] = get_args(Kind)
RIM = 0.5
"""Width of the flat strip along a tile's edge, m."""
_BLOCKS = 0.35
"""Summed area of the blocks of rubble, which may overlap, as a share of the tile."""
_BLOCK = (0.4, 1.2)
"""Smallest and largest edge of a block, m."""


@dataclass(frozen=True)
class Terrain:
    """Tiles of rising difficulty d = 1 / levels, 2 / levels, ... 1 for each kind; all environments share the ground."""

    kinds: tuple[Kind, ...] = KINDS
    """Kinds of ground, one column of tiles each."""
    levels: PositiveInt = 8
    """Number of difficulty levels, one row of tiles each."""
    tile_size: PositiveFloat = 8.0
    """Edge of a tile, m."""
    platform_width: PositiveFloat = 2.4
    """Smallest edge of the flat square in a tile's centre, m."""
    border_width: NonNegativeFloat = 8.0
    """Width of the flat border around all tiles, m."""
    max_slope: Annotated[float, Interval(gt=0, le=45)] = 20.0
    """Inclination of the steepest slope, degrees."""
    max_step: Annotated[float, Interval(gt=0, le=0.5)] = 0.1
    """Height of the highest step or block, m."""
    step_width: PositiveFloat = 0.3
    """Depth of a stair, m."""
    horizontal_scale: PositiveFloat = 0.05
    """Distance between two heights that views read, m; for them the front of a step is one such distance wide."""
    seed: Seed = 0
    """Seed of the blocks."""

    def __post_init__(self) -> None:
        validate(self, "terrain: ")
        if not self.kinds or len(set(self.kinds)) < len(self.kinds):
            raise ValueError(f"terrain: kinds {self.kinds} are empty or name one twice; known: {', '.join(KINDS)}")
        for name in ("tile_size", "border_width", "step_width"):
            cells = getattr(self, name) / self.horizontal_scale
            if abs(cells - round(cells)) > 1e-6:
                raise ValueError(
                    f"terrain: {name} {getattr(self, name)} m is not a whole multiple of horizontal_scale "
                    f"{self.horizontal_scale} m; take {round(cells) * self.horizontal_scale:g} m"
                )
        if self.tile_size < self.platform_width + 2 * (RIM + self.step_width):
            raise ValueError(
                f"terrain: a tile of {self.tile_size} m has no room for a platform of {self.platform_width} m, a strip "
                f"of {RIM} m along its edge and a stair of {self.step_width} m on each side; take a larger tile_size"
            )

    @property
    def heights(self) -> np.ndarray:
        """Return the heights (rows, columns) float32, m: rows along y, columns along x, centred on the origin."""
        return _heights(self)

    @property
    def half_size(self) -> tuple[float, float]:
        """Return half the extent along x and y, m."""
        rows, columns = self.heights.shape
        return (columns - 1) / 2 * self.horizontal_scale, (rows - 1) / 2 * self.horizontal_scale

    def origins(self, tiles: np.ndarray) -> np.ndarray:
        """Return the centres (k, 3) x y z, m, of the platforms of tiles (k, 2), which are pairs of kind and level."""
        grid = np.array([len(self.kinds), self.levels])
        centre = (tiles - (grid - 1) / 2) * self.tile_size
        column, row = np.round((centre + self.half_size) / self.horizontal_scale).astype(int).T
        return np.concatenate([centre, self.heights[row, column][:, None]], 1)


class Tile:
    """Grid of one tile: (cells + 1)^2 nodes; distances are in cells, heights in m."""

    def __init__(self, terrain: Terrain, kind: Kind, level: int):
        self.terrain, self.kind = terrain, kind
        self.scale = terrain.horizontal_scale
        self.difficulty = (level + 1) / terrain.levels
        self.step = terrain.max_step * self.difficulty
        self.cells = round(terrain.tile_size / self.scale)
        self.rim = math.ceil(RIM / self.scale)
        self.run = (self.cells - math.ceil(terrain.platform_width / self.scale)) // 2 - self.rim
        """Cells between strip and platform."""
        self.width = round(terrain.step_width / self.scale)
        """Depth of a stair, cells."""
        self.stairs = self.run // self.width
        """Number of stairs."""
        self.rise = math.tan(math.radians(terrain.max_slope * self.difficulty)) * self.scale
        """Rise of a slope per cell, m."""
        # A tile does not depend on the other kinds of the terrain.
        self._rng = np.random.default_rng([terrain.seed, KINDS.index(kind), level])

    @property
    def heights(self) -> np.ndarray:
        """Return the heights of the nodes (rows, columns), m."""
        inside = np.minimum(np.arange(self.cells + 1), np.arange(self.cells, -1, -1))
        edge = np.minimum.outer(inside, inside) - self.rim  # distance from the strip along the tile's edge
        sign = -1.0 if self.kind.endswith("up") else 1.0
        if self.kind.startswith("slope"):
            return sign * self.rise * edge.clip(0, self.run)
        if self.kind.startswith("stairs"):
            return sign * self.step * (edge // self.width + 1).clip(0, self.stairs)
        height = np.zeros(edge.shape)
        for x, y, wide, deep, top in self.blocks:
            rows, columns = (slice(int(at), int(at + size) + 1) for at, size in ((y, deep), (x, wide)))
            height[rows, columns] = np.maximum(height[rows, columns], top)
        return height

    @cached_property
    def blocks(self) -> np.ndarray:
        """Return the blocks (k, 5) of rubble, of half or whole height at random places beside the platform: corner x y
        and size along x and y in cells, height in m."""
        found, area, rim, far = [], 0.0, self.rim + 1, self.rim + self.run
        low, high = (round(edge / self.scale) for edge in _BLOCK)
        while area < _BLOCKS * self.cells**2:
            size = self._rng.integers(low, high, 2, endpoint=True)
            at = self._rng.integers(rim, self.cells - rim - size, endpoint=True)
            if not ((at < self.cells - far) & (at + size > far)).all():
                found.append([*at, *size, self.step * self._rng.choice([0.5, 1.0])])
                area += float(size.prod())
        return np.array(found, float)


@cache
def _heights(terrain: Terrain) -> np.ndarray:
    cells, border = (round(x / terrain.horizontal_scale) for x in (terrain.tile_size, terrain.border_width))
    grid = (terrain.levels, len(terrain.kinds))
    heights = np.zeros([count * cells + 2 * border + 1 for count in grid], np.float32)
    for row, column in np.ndindex(*grid):
        y, x = border + row * cells, border + column * cells
        heights[y : y + cells + 1, x : x + cells + 1] = Tile(terrain, terrain.kinds[column], row).heights
    heights.flags.writeable = False
    return heights
