"""Initial poses of the objects of a scene."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sim.objects.base import Object
from sim.parameters import DEFAULT_X, PLACE


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
    joint: str | None = None
    """Parameter of the position of the object's first own joint, m or rad; default: 0."""
    size: str | None = None
    """Parameter of half the width, m; default: the size in the scene."""

    @classmethod
    def by_name(cls, box: Object, parameters: tuple[str, ...]) -> Placement:
        """Return the placement of an object whose parameters are named `<object>.<coordinate>`."""
        names = {k: f"{box.name}.{k}" for k in (*PLACE, "size")}
        return cls(box, **{k: name if name in parameters else None for k, name in names.items()})

    def poses(self, values: Mapping[str, np.ndarray], count: int, place: np.ndarray | None = None) -> np.ndarray:
        """Return positions (count, 7 + J): m, quaternion w x y z, and own joints, from sampled values (count,) of the
        parameters. With `place` (count, 2), m, the sampled x and y are offsets from that place."""

        def value(parameter: str | None, default: float | np.ndarray) -> np.ndarray:
            return values[parameter] if parameter else np.zeros(count) + default

        pose = np.zeros((count, 7 + len(self.box.joints)))
        pose[:, 0], pose[:, 1] = value(self.x, DEFAULT_X if place is None else 0.0), value(self.y, 0.0)
        if place is not None:
            pose[:, :2] += place
        # A larger object rests higher.
        grown = value(self.size, self.box.width) / self.box.width if self.size else 1.0
        pose[:, 2] = value(self.z, self.box.rest * grown)
        yaw = value(self.yaw, 0.0)
        pose[:, 3], pose[:, 6] = np.cos(yaw / 2), np.sin(yaw / 2)
        if self.box.joints:
            pose[:, 7] = value(self.joint, 0.0)
        return pose
