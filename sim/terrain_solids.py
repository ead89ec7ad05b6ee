"""Uneven ground as boxes and frusta. A height field would be simpler, but its many triangles catch the feet: a sphere
that has sunk in by a few millimetres also touches the edges of the neighbouring triangles, even on level ground.

    stairs up: rings      stairs down: a stack      slope up: 4 tilted boxes      slope down: a frustum
    ___        ___              ___                  ___              ___                _____
       |_    _|               _|   |_                   `\\._______./'                 ./     \\.
         |__|              __|       |__                                             ./         \\.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from sim.terrain import Terrain, Tile

DEPTH = 1.0
"""Thickness of the ground below a surface, m."""
_OVERLAP = 0.3
"""Length by which a tilted box goes on below the platform, m."""


@dataclass
class Solids:
    """Shapes of a ground, m, world frame."""

    boxes: list[list[float]] = field(default_factory=list)
    """Centre, orientation w x y z and half sizes (10) of each box."""
    frusta: list[np.ndarray] = field(default_factory=list)
    """Corners (8, 3) of each frustum."""

    def add(self, low: tuple[float, float], high: tuple[float, float], top: float, depth: float = DEPTH) -> None:
        """Add an upright box between two corners x y below `top`."""
        centre = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
        half = [(b - a) / 2 for a, b in zip(low, high, strict=True)]
        if min(half) > 0:
            self.boxes.append([*centre, top - depth / 2, 1.0, 0.0, 0.0, 0.0, *half, depth / 2])

    def ring(self, x: float, y: float, outer: float, inner: float, top: float) -> None:
        """Add four boxes between two squares around x y, whose half edges are `outer` and `inner`."""
        self.add((x - outer, y - outer), (x - inner, y + outer), top)
        self.add((x + inner, y - outer), (x + outer, y + outer), top)
        self.add((x - inner, y - outer), (x + inner, y - inner), top)
        self.add((x - inner, y + inner), (x + inner, y + outer), top)


def solids(terrain: Terrain) -> Solids:
    """Return the shapes of a ground."""
    found = Solids()
    (x, y), border = terrain.half_size, terrain.border_width
    inner_x, inner_y, size = x - border, y - border, terrain.tile_size
    for side in (-1, 1):
        ends = sorted((side * inner_x, side * x)), sorted((side * inner_y, side * y))
        found.add((ends[0][0], -y), (ends[0][1], y), 0.0)
        found.add((-inner_x, ends[1][0]), (inner_x, ends[1][1]), 0.0)
    for column, kind in enumerate(terrain.kinds):
        left = -inner_x + column * size
        if not kind.endswith("up"):
            found.add((left, -inner_y), (left + size, inner_y), 0.0)
        for row in range(terrain.levels):
            _add_tile(found, Tile(terrain, kind, row), left + size / 2, -inner_y + (row + 0.5) * size)
    return found


def _add_tile(found: Solids, tile: Tile, x: float, y: float) -> None:
    """Add the shapes of a tile with its centre at x y."""
    scale, half = tile.scale, tile.cells * tile.scale / 2
    rim, platform = half - tile.rim * scale, half - (tile.rim + tile.run) * scale
    height = tile.rise * tile.run
    if tile.kind == "rubble":
        for at_x, at_y, wide, deep, top in tile.blocks:
            low = x - half + at_x * scale, y - half + at_y * scale
            found.add(low, (low[0] + wide * scale, low[1] + deep * scale), top, top + 0.1)
    elif tile.kind == "slope_down":
        corners = [(rim, 0.0), (platform, height)]
        found.frusta.append(
            np.array([[x + i * edge, y + j * edge, z] for edge, z in corners for i in (-1, 1) for j in (-1, 1)])
        )
    elif tile.kind == "slope_up":
        found.ring(x, y, half, rim, 0.0)
        found.add((x - platform, y - platform), (x + platform, y + platform), -height)
        for turn in range(4):
            found.boxes.append(_tilted(x, y, rim, platform, height, turn * math.pi / 2))
    else:
        edges = [rim - k * tile.width * scale for k in range(tile.stairs)]
        if tile.kind == "stairs_down":
            for k, edge in enumerate(edges):
                found.add((x - edge, y - edge), (x + edge, y + edge), (k + 1) * tile.step)
        else:
            for k, (outer, inner) in enumerate(zip([half, *edges], edges, strict=False)):
                found.ring(x, y, outer, inner, -k * tile.step)
            found.add((x - edges[-1], y - edges[-1]), (x + edges[-1], y + edges[-1]), -tile.stairs * tile.step)


def _tilted(x: float, y: float, rim: float, platform: float, height: float, yaw: float) -> list[float]:
    """Return the box whose upper face falls from height 0 at distance `rim` to -`height` at distance `platform` from
    x y, in the direction `yaw`."""
    slope = math.atan2(height, rim - platform)
    length = math.hypot(height, rim - platform) + _OVERLAP
    # In the direction of `yaw`: the middle of the upper face, then half the thickness along its normal.
    along = rim - length / 2 * math.cos(slope) + DEPTH / 2 * math.sin(slope)
    up = -length / 2 * math.sin(slope) - DEPTH / 2 * math.cos(slope)
    cz, sz, cy, sy = math.cos(yaw / 2), math.sin(yaw / 2), math.cos(slope / 2), -math.sin(slope / 2)
    turn = [cz * cy, -sz * sy, cz * sy, sz * cy]  # first about y, so that x rises outwards, then about z
    return [x + along * math.cos(yaw), y + along * math.sin(yaw), up, *turn, length / 2, rim, DEPTH / 2]
