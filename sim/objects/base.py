"""What a scene, the engines and a tracker ask of an object."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:  # MuJoCo takes a while to import
    from sim.rendering.gl import mujoco


@dataclass(frozen=True)
class Object(ABC):
    """Something in a scene besides the robot. It rests on the table unless the task places it.

    A subclass gives a MuJoCo model with one body, named as the object, in the world. Bodies below it may have hinges
    and slides. What else is asked of an object follows from the compiled model.
    """

    name: str
    _: KW_ONLY
    friction: float = 1.0
    """Sliding friction coefficient."""
    rgba: tuple[float, float, float, float] = (0.85, 0.2, 0.15, 1.0)
    solid: bool = True
    """False: the object is a fixed marker without collisions."""
    fixed: bool = False
    """True: the object stays where it is placed, as if screwed to the table; only its parts move."""

    parameters: ClassVar[tuple[str, ...]] = ("mass", "friction")
    """Physical parameters that act on the object. `mass`, kg: of the object, or of its moving parts if it is fixed.
    `size`, m: half of its width. `joint_friction` and `joint_damping`: of its own joints, in SI units."""
    rolls: ClassVar[bool] = False
    """Whether the object rolls; a little damping then brings it to rest."""
    tracked: ClassVar[tuple[str, ...]] = ()
    """Parts whose poses a tracker reports besides that of the object; part `handle` of `drawer` is `drawer_handle`."""

    def __post_init__(self) -> None:
        if not self.name or set(self.name) & set(":. /"):  # a colon separates the arguments of a term
            raise ValueError(f"object {self.name!r}: its name is empty or has one of ': . /'; choose another")
        if not 0 <= self.friction < math.inf:
            raise ValueError(f"object {self.name!r}: friction {self.friction} is not zero or a positive number")

    @abstractmethod
    def spec(self) -> mujoco.MjSpec:
        """Return the object's model: one body named `name` in the world, without a joint."""

    @property
    @abstractmethod
    def rest(self) -> float:
        """Return the height of the object's origin when it rests on the table, m."""

    @property
    def width(self) -> float:
        """Return the nominal value of the parameter `size`, m."""
        raise NotImplementedError(f"{type(self).__name__} has no size")

    @property
    def poses(self) -> tuple[str, ...]:
        """Return the names of the tracked poses: the object's own, then those of its tracked parts."""
        return (self.name, *(f"{self.name}_{part}" for part in self.tracked))

    @property
    def acting(self) -> tuple[str, ...]:
        """Return the parameters that act on this object; without collisions, only its size does."""
        return self.parameters if self.solid else tuple(p for p in self.parameters if p == "size")

    @cached_property
    def compiled(self) -> Any:
        """Return the compiled model (MjModel) of the object alone."""
        return self.spec().compile()

    @cached_property
    def joints(self) -> tuple[str, ...]:
        """Return the names of the object's own joints, each a hinge (rad) or a slide (m)."""
        return ()

    def positive(self, **values: float) -> None:
        """Raise ValueError for a value, named with its unit in the keyword `<what>_<unit>`, that is not positive."""
        for key, value in values.items():
            what, unit = key.rsplit("_", 1)
            if not 0 < value < math.inf:
                raise ValueError(f"object {self.name!r}: {what} {value} {unit} is not positive")

    def surface(self, **more: Any) -> dict[str, Any]:
        """Return the attributes that all colliding geoms of an object share."""
        return dict(
            condim=4, friction=[self.friction, 0.02, 0.001], solref=[0.01, 1], rgba=self.rgba, priority=1, **more
        )
