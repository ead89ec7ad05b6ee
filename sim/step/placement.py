"""Initial poses of the objects of a scene."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sim.parameters import DEFAULT_X, PLACE
from sim.scenes import Object


@dataclass(frozen=True)
class Placement:
    """Names of the randomized parameters for an object's coordinates and size; None: the default value is used."""

    box: Object
    x: str | None = None
    """Parameter of the x coordinate, m; default: `DEFAULT_X`."""
    y: str | None = None
    """Parameter of the y coordinate, m; default: 0 m."""
    z: str | None = None
    """Parameter of the height of the centre, m; default: the object rests on the table."""
    yaw: str | None = None
    """Parameter of the yaw angle, rad; default: 0 rad."""
    size: str | None = None
    """Parameter of half the edge, m; default: the size in the scene."""

    @classmethod
    def by_name(cls, box: Object, parameters: tuple[str, ...]) -> Placement:
        """Return the placement of an object whose parameters are named `<object>.<coordinate>`."""
        names = {k: f"{box.name}.{k}" for k in (*PLACE, "size")}
        return cls(box, **{k: name if name in parameters else None for k, name in names.items()})

    def poses(self, values: Mapping[str, np.ndarray], count: int, place: np.ndarray | None = None) -> np.ndarray:
        """Return poses (count, 7), m and quaternion w x y z, from sampled values (count,) of the parameters. With
        `place` (count, 2), m, the sampled x and y are offsets from that place."""

        def value(parameter: str | None, default: float | np.ndarray) -> np.ndarray:
            return values[parameter] if parameter else np.zeros(count) + default

        pose = np.zeros((count, 7))
        pose[:, 0], pose[:, 1] = value(self.x, DEFAULT_X if place is None else 0.0), value(self.y, 0.0)
        if place is not None:
            pose[:, :2] += place
        pose[:, 2] = value(self.z, value(self.size, self.box.rest))
        yaw = value(self.yaw, 0.0)
        pose[:, 3], pose[:, 6] = np.cos(yaw / 2), np.sin(yaw / 2)
        return pose
