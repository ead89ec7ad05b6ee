"""A cabinet with a drawer."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from sim.objects.base import Object

if TYPE_CHECKING:
    from sim.rendering.gl import mujoco

_BOARD = 0.006
"""Half thickness of the boards, m."""
_GAP = 0.003
"""Distance between drawer and cabinet, m."""


@dataclass(frozen=True)
class Drawer(Object):
    """A cabinet, fixed to the table, whose drawer slides out along its -x axis, towards the robot.

    The tracked part `handle` is an upright bar in front of the drawer, which a gripper grasps from above.
    """

    size: tuple[float, float, float] = (0.12, 0.11, 0.055)
    """Half extents of the cabinet, m."""
    mass: float = 0.6
    """Mass of the drawer, kg."""
    travel: float = 0.2
    """Distance from closed to fully open, m."""
    handle: tuple[float, float, float] = (0.007, 0.009, 0.035)
    """Half extents of the handle, m."""
    reach: float = 0.045
    """Distance of the handle from the front of the drawer, m."""
    joint_friction: float = 1.0
    """Dry friction of the slide, N."""
    joint_damping: float = 5.0
    """Damping of the slide, N s/m."""
    fixed: bool = field(default=True, kw_only=True)
    rgba: tuple[float, float, float, float] = field(default=(0.55, 0.42, 0.3, 1.0), kw_only=True)

    parameters: ClassVar[tuple[str, ...]] = ("mass", "friction", "joint_friction", "joint_damping")
    tracked: ClassVar[tuple[str, ...]] = ("handle",)

    def __post_init__(self) -> None:
        super().__post_init__()
        for edge in (*self.size, *self.handle):
            self.positive(size_m=edge)
        self.positive(mass_kg=self.mass, travel_m=self.travel, reach_m=self.reach)

    @property
    def rest(self) -> float:
        return self.size[2]

    @cached_property
    def joints(self) -> tuple[str, ...]:
        return (f"{self.name}_slide",)

    def spec(self) -> mujoco.MjSpec:
        from sim.rendering.gl import mujoco

        box, b, (x, y, z) = mujoco.mjtGeom.mjGEOM_BOX, _BOARD, self.size
        spec = mujoco.MjSpec()
        spec.modelname = self.name
        cabinet = spec.worldbody.add_body(name=self.name)
        boards: list[tuple[tuple[float, float, float], tuple[float, float, float]]] = [
            ((0, 0, z - b), (x, y, b)), ((0, 0, b - z), (x, y, b)), ((x - b, 0, 0), (b, y, z - 2 * b)),
            ((0, y - b, 0), (x - 2 * b, b, z - 2 * b)), ((0, b - y, 0), (x - 2 * b, b, z - 2 * b)),
        ]  # fmt: skip
        for pos, size in boards:
            cabinet.add_geom(type=box, pos=pos, size=size, mass=0.2, **self.surface())
        drawer = cabinet.add_body(name=f"{self.name}_drawer")
        drawer.add_joint(
            name=self.joints[0], type=mujoco.mjtJoint.mjJNT_SLIDE, axis=[-1, 0, 0], range=[0, self.travel],
            limited=mujoco.mjtLimited.mjLIMITED_TRUE, frictionloss=self.joint_friction,
            damping=[self.joint_damping, 0, 0],
        )  # fmt: skip
        deep, wide, high = x - b - _GAP, y - 2 * b - _GAP, z - 2 * b - _GAP
        front = b - x
        light = {**self.surface(), "rgba": (*(min(1.0, c * 1.3) for c in self.rgba[:3]), 1.0)}
        boards = [
            ((0, 0, b - high), (deep - b, wide, b)), ((front, 0, 0), (b, wide, high)),
            ((deep - 2 * b, 0, 0), (b, wide, high)),
            ((0, wide - b, 0), (deep - 2 * b, b, high)), ((0, b - wide, 0), (deep - 2 * b, b, high)),
        ]  # fmt: skip
        stem = self.reach / 2 - self.handle[0] / 2
        boards += [((-x - stem, 0, 0), (stem, self.handle[1], self.handle[1]))]
        for pos, size in boards:
            drawer.add_geom(type=box, pos=pos, size=size, mass=0.9 * self.mass / len(boards), **light)
        handle = drawer.add_body(name=f"{self.name}_handle", pos=[-x - self.reach, 0, 0])
        metal = {**self.surface(), "rgba": (0.75, 0.76, 0.78, 1.0)}
        handle.add_geom(type=box, size=self.handle, mass=0.1 * self.mass, **metal)
        spec.add_exclude(bodyname1=self.name, bodyname2=f"{self.name}_drawer")
        return spec
