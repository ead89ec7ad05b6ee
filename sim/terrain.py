"""Uneven ground: a grid of procedural tiles in one height field, levels of difficulty by kinds of ground.

As in legged_gym (Rudin et al. 2022, arXiv 2109.11978) and mjlab. Every tile has a flat platform in its centre, where
robots begin, and height 0 along its edge, so a robot can walk from tile to tile.

              kind 0   kind 1   ...          a tile along its middle: slope_down
    level L-1 [     ]  [     ]    ^ y             ___________
    ...                           |              /  platform \\
    level 0   [     ]  [     ]    +---> x  _____/             \\_____  height 0
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal, get_args

import numpy as np

from robot_rl.util.limits import Interval, NonNegativeFloat, PositiveFloat, PositiveInt, Seed, validate

Kind = Literal["slope_up", "slope_down", "stairs_up", "stairs_down", "rubble", "rough"]
"""Ground on the way out from the platform: up or down a slope or stairs, over blocks, or over irregular bumps."""
KINDS: tuple[Kind, ...] = get_args(Kind)
RIM = 0.5
"""Width of the flat strip along a tile's edge, m."""
_BLOCKS = 0.6
"""Summed area of the blocks of rubble, which overlap, as a share of the tile."""
_BLOCK = (0.25, 0.8)
"""Smallest and largest edge of a block, m."""
_BUMP = 0.15
"""Distance between the independent heights of rough ground, m."""


@dataclass(frozen=True)
class Terrain:
    """Tiles of rising difficulty d = 1 / levels, 2 / levels, ... 1 for each kind; all environments share the ground."""

    kinds: tuple[Kind, ...] = KINDS
    """Kinds of ground, one column of tiles each."""
    levels: PositiveInt = 10
    """Number of difficulty levels, one row of tiles each."""
    tile_size: PositiveFloat = 8.0
    """Edge of a tile, m."""
    platform_width: PositiveFloat = 1.6
    """Smallest edge of the flat square in a tile's centre, m."""
    border_width: NonNegativeFloat = 8.0
    """Width of the flat border around all tiles, m."""
    max_slope: Annotated[float, Interval(gt=0, le=45)] = 20.0
    """Inclination of the steepest slope, degrees."""
    max_step: Annotated[float, Interval(gt=0, le=0.5)] = 0.1
    """Height of the highest step or block, and largest difference in height of rough ground, m."""
    step_width: PositiveFloat = 0.3
    """Depth of a stair, m."""
    horizontal_scale: PositiveFloat = 0.05
    """Distance between two heights of the height field, m; the front of a step is one such distance wide."""
    seed: Seed = 0
    """Seed of the blocks and bumps."""

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


class _Tile:
    """Grid of one tile: (cells + 1)^2 nodes; distances are in cells, heights in m."""

    def __init__(self, terrain: Terrain, level: int, rng: np.random.Generator):
        self.terrain, self.rng = terrain, rng
        self.scale = terrain.horizontal_scale
        self.difficulty = (level + 1) / terrain.levels
        self.step = terrain.max_step * self.difficulty
        self.cells = round(terrain.tile_size / self.scale)
        self.rim = math.ceil(RIM / self.scale)
        self.run = (self.cells - math.ceil(terrain.platform_width / self.scale)) // 2 - self.rim
        """Cells between strip and platform."""
        inside = np.minimum(np.arange(self.cells + 1), np.arange(self.cells, -1, -1))
        self.edge = np.minimum.outer(inside, inside)
        """Distance of each node from the tile's edge, cells."""

    def slope(self, sign: float) -> np.ndarray:
        """Return a pyramid with an inclination of difficulty x max_slope."""
        rise = math.tan(math.radians(self.terrain.max_slope * self.difficulty)) * self.scale
        return sign * rise * (self.edge - self.rim).clip(0, self.run)

    def stairs(self, sign: float) -> np.ndarray:
        """Return a pyramid of stairs of equal height and depth."""
        width = round(self.terrain.step_width / self.scale)
        return sign * self.step * ((self.edge - self.rim) // width + 1).clip(0, self.run // width)

    def rubble(self) -> np.ndarray:
        """Return blocks of half or whole height at random places; a later block replaces what is below it."""
        height, area, drawn = np.zeros_like(self.edge, float), _BLOCKS * self.cells**2, 0
        while drawn < area:
            low, high = (round(edge / self.scale) for edge in _BLOCK)
            size = self.rng.integers(low, high, 2, endpoint=True)
            x, y = self.rng.integers(0, self.cells + 1 - size)
            height[y : y + size[1] + 1, x : x + size[0] + 1] = self.step * self.rng.choice([0.5, 1.0])
            drawn += int(size.prod())
        return np.where(self._open, height, 0.0)

    def rough(self) -> np.ndarray:
        """Return uniformly random heights, interpolated linearly; their range is the height of a step."""
        nodes = np.arange(self.cells + 1)
        coarse = np.linspace(0, self.cells, max(2, round(self.cells * self.scale / _BUMP)))
        noise = self.rng.uniform(-0.5, 0.5, (len(coarse), len(coarse))) * self.step
        weights = np.stack([np.interp(nodes, coarse, unit) for unit in np.eye(len(coarse))], 1)
        return np.where(self._open, weights @ noise @ weights.T, 0.0)

    @property
    def _open(self) -> np.ndarray:
        """Return where nodes belong neither to the strip along the edge nor to the platform."""
        return (self.edge > self.rim) & (self.edge < self.rim + self.run)


_MAKERS: dict[Kind, Callable[[_Tile], np.ndarray]] = {
    "slope_up": lambda tile: tile.slope(-1.0), "slope_down": lambda tile: tile.slope(1.0),
    "stairs_up": lambda tile: tile.stairs(-1.0), "stairs_down": lambda tile: tile.stairs(1.0),
    "rubble": _Tile.rubble, "rough": _Tile.rough,
}  # fmt: skip


@cache
def _heights(terrain: Terrain) -> np.ndarray:
    cells, border = (round(x / terrain.horizontal_scale) for x in (terrain.tile_size, terrain.border_width))
    grid = (terrain.levels, len(terrain.kinds))
    heights = np.zeros([count * cells + 2 * border + 1 for count in grid], np.float32)
    for row, column in np.ndindex(*grid):
        kind = terrain.kinds[column]
        # A tile does not depend on the other kinds of the terrain.
        tile = _Tile(terrain, row, np.random.default_rng([terrain.seed, KINDS.index(kind), row]))
        y, x = border + row * cells, border + column * cells
        heights[y : y + cells + 1, x : x + cells + 1] = _MAKERS[kind](tile)
    heights.flags.writeable = False
    return heights
