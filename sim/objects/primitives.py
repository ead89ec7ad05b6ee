"""Objects of primitive shapes: boxes, balls, cylinders, trays and sockets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from sim.objects.base import Object

if TYPE_CHECKING:
    from sim.rendering.gl import mujoco

TRAY_HEIGHT, TRAY_WALL = 0.03, 0.004
"""Height of a tray and thickness of its walls, m."""


def _body(name: str) -> tuple[mujoco.MjSpec, mujoco.MjsBody]:
    from sim.rendering.gl import mujoco

    spec = mujoco.MjSpec()
    spec.modelname = name
    return spec, spec.worldbody.add_body(name=name)


@dataclass(frozen=True)
class Box(Object):
    """A cube, or a cuboid with three half edges."""

    size: float | tuple[float, float, float] = 0.02
    """Half edges x y z, m; one number: a cube."""
    mass: float = 0.1
    """Mass, kg."""
    parameters: ClassVar[tuple[str, ...]] = ("mass", "size", "friction")
    shape: ClassVar[str] = "BOX"

    def __post_init__(self) -> None:
        super().__post_init__()
        for edge in self.halves:
            self.positive(size_m=edge)
        self.positive(mass_kg=self.mass)

    @property
    def halves(self) -> tuple[float, float, float]:
        """Return the half extents x y z, m."""
        return self.size if isinstance(self.size, tuple) else (self.size,) * 3

    @property
    def width(self) -> float:
        return self.halves[0]

    @property
    def rest(self) -> float:
        return self.halves[2]

    def spec(self) -> mujoco.MjSpec:
        from sim.rendering.gl import mujoco

        spec, body = _body(self.name)
        kind = getattr(mujoco.mjtGeom, f"mjGEOM_{self.shape}")
        body.add_geom(name=self.name, type=kind, size=self._geom(), mass=self.mass, **self.surface())
        return spec

    def _geom(self) -> list[float]:
        """Return the sizes of the geom, m."""
        return list(self.halves)


@dataclass(frozen=True)
class Ball(Box):
    """A ball; `size` is its radius, m."""

    shape: ClassVar[str] = "SPHERE"
    rolls: ClassVar[bool] = True


@dataclass(frozen=True)
class Cylinder(Box):
    """An upright cylinder; `size` is its radius, m, or (radius, radius, half height)."""

    shape: ClassVar[str] = "CYLINDER"
    rolls: ClassVar[bool] = True

    def _geom(self) -> list[float]:
        return [self.halves[0], self.halves[2], self.halves[2]]


@dataclass(frozen=True)
class Tray(Object):
    """A square tray, open above, that objects are put into."""

    size: float = 0.055
    """Half of the inner width, m."""
    mass: float = 0.3
    """Mass, kg, in equal parts in the floor and the four walls."""
    height: float = TRAY_HEIGHT
    """Height, m."""
    wall: float = TRAY_WALL
    """Thickness of the walls, m."""
    floor: float = TRAY_WALL
    """Thickness of the floor, m."""
    parameters: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.positive(size_m=self.size, mass_kg=self.mass, height_m=self.height, wall_m=self.wall, floor_m=self.floor)

    @property
    def rest(self) -> float:
        return self.height / 2

    def spec(self) -> mujoco.MjSpec:
        from sim.rendering.gl import mujoco

        spec, body = _body(self.name)
        inside, wall, high, low = self.size, self.wall / 2, self.height / 2, self.floor / 2
        out = inside + 2 * wall
        parts = [((0.0, 0.0, low - high), (out, out, low))]
        parts += [((side * (inside + wall), 0.0, 0.0), (wall, out, high)) for side in (-1, 1)]
        parts += [((0.0, side * (inside + wall), 0.0), (out, wall, high)) for side in (-1, 1)]
        for k, (pos, size) in enumerate(parts):
            name = self.name if k == 0 else f"{self.name}.{k}"
            box, share = mujoco.mjtGeom.mjGEOM_BOX, self.mass / len(parts)
            body.add_geom(name=name, type=box, pos=pos, size=size, mass=share, **self.surface())
        return spec


@dataclass(frozen=True)
class Socket(Tray):
    """A block with a square hole for a peg, fixed to the table; `size` is half of the hole's width, m."""

    size: float = 0.011
    mass: float = 1.0
    height: float = 0.04
    wall: float = 0.02
    fixed: bool = field(default=True, kw_only=True)
    parameters: ClassVar[tuple[str, ...]] = ("friction",)
