"""Conversion of a legged robot's feet to separate bodies with their own geoms, as every engine expects."""

from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.interface.robot import FloatingBase
from sim.engines.robot_file import Finding, compiling
from sim.rendering.gl import mujoco

_SHAPE = (
    "name", "type", "contype", "conaffinity", "condim", "priority", "friction", "solmix", "solref", "solimp", "margin",
    "gap", "mass", "density", "typeinertia", "group", "rgba", "material",
)  # fmt: skip
"""Attributes that are copied when a geom moves to another body."""
UPRIGHT = np.array([1.0, 0.0, 0.0, 0.0])


def separate_feet(spec: mujoco.MjSpec, base: FloatingBase, path: Path) -> Iterator[Finding]:
    """Convert each foot that is a geom or a site of its leg to a body with its own geom. A foot that is a site, or a
    body without a geom, gets the leg's nearest geom, if the distance to that geom is at most the foot's radius."""
    elements: dict[str, Any] = {foot: spec.body(foot) or spec.geom(foot) or spec.site(foot) for foot in base.feet}
    separate = {foot for foot, at in elements.items() if isinstance(at, mujoco.MjsBody) and collides(at)}
    feet = {foot: at for foot, at in elements.items() if at is not None and foot not in separate}
    if not feet:
        return
    with compiling(path):
        model = spec.compile()
    shapes: dict[str, Any] = {}
    for foot, at in feet.items():
        is_body, is_geom = isinstance(at, mujoco.MjsBody), isinstance(at, mujoco.MjsGeom)
        pos = (model.body_pos if is_body else model.geom_pos if is_geom else model.site_pos)[at.id]
        near = [(float(np.linalg.norm(model.geom_pos[g.id] - pos)), g.id, g) for g in at.parent.geoms if _solid(g)]
        gap, _, shape = (0.0, at.id, at) if is_geom else min(near, default=(np.inf, -1, None))
        if gap <= base.foot_radius:
            shapes[foot] = (shape, _placed(model, shape, pos, model.body_quat[at.id] if is_body else UPRIGHT), pos)
    for foot, (shape, values, pos) in shapes.items():
        leg = shape.parent
        spec.delete(shape)
        (spec.body(foot) or leg.add_body(name=foot, pos=pos)).add_geom(**values)
    if shapes:
        yield Finding("ok", "feet", f"the shapes of {', '.join(shapes)} are those of their legs in the file")


def collides(body: mujoco.MjsBody) -> bool:
    """Return whether a body has a geom that collides."""
    return any(map(_solid, body.geoms))


def _solid(geom: mujoco.MjsGeom) -> bool:
    return bool(geom.contype or geom.conaffinity)


def _placed(model: mujoco.MjModel, geom: mujoco.MjsGeom, pos: np.ndarray, quat: np.ndarray) -> dict[str, Any]:
    """Return the attributes of a leg's geom in the frame of a foot, whose pose in the leg is `pos` and `quat`. The mass
    is 0 if the leg has an explicit inertia."""
    values = {name: copy(getattr(geom, name)) for name in _SHAPE}
    if geom.type == mujoco.mjtGeom.mjGEOM_MESH:  # the compiled pose is that of the mesh's inertia
        values |= {"pos": geom.pos.copy(), "quat": geom.quat.copy(), "meshname": geom.meshname}
    else:
        values |= {name: getattr(model, f"geom_{name}")[geom.id].copy() for name in ("pos", "quat", "size")}
    turned = np.zeros(4)
    mujoco.mju_mulQuat(turned, inverse(quat), values["quat"])
    values |= {"pos": turn(values["pos"] - pos, inverse(quat)), "quat": turned}
    return values | ({"mass": 0.0, "density": 0.0} if geom.parent.explicitinertial else {})


def inverse(quat: np.ndarray) -> np.ndarray:
    """Return the inverse of a unit quaternion w x y z."""
    return np.asarray(quat) * [1, -1, -1, -1]


def turn(vector: np.ndarray, quat: np.ndarray) -> np.ndarray:
    """Rotate a vector (3,) by a quaternion w x y z."""
    turned = np.zeros(3)
    mujoco.mju_rotVecQuat(turned, vector, quat)
    return turned
