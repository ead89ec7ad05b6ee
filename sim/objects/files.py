"""Objects from files: meshes (OBJ, STL), and models (MJCF, URDF) with joints of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from robot_rl.util.errors import ConfigError
from sim.objects.base import Object

if TYPE_CHECKING:
    from sim.rendering.gl import mujoco


@dataclass(frozen=True)
class Mesh(Object):
    """A rigid object with the shape of a closed mesh. Collisions are those of its convex hull, as MuJoCo's are."""

    file: str = ""
    """OBJ or STL file, absolute or relative to the working directory."""
    mass: float = 0.1
    """Mass, kg, evenly distributed in the volume."""
    scale: float = 1.0
    """Factor from the file's unit to m; 0.001 for millimetres."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.positive(mass_kg=self.mass, scale_1=self.scale)

    def spec(self) -> mujoco.MjSpec:
        from sim.rendering.gl import mujoco

        path = _existing(self)
        spec = mujoco.MjSpec()
        spec.modelname = self.name
        spec.add_mesh(
            name=self.name, file=str(path), scale=[self.scale] * 3, inertia=mujoco.mjtMeshInertia.mjMESH_INERTIA_EXACT
        )
        body = spec.worldbody.add_body(name=self.name)
        kind = mujoco.mjtGeom.mjGEOM_MESH
        body.add_geom(name=self.name, type=kind, meshname=self.name, mass=self.mass, **self.surface())
        return spec

    @cached_property
    def compiled(self) -> mujoco.MjModel:
        remedy = "repair the mesh (it must be closed, with its faces turned outwards)"
        model = _compiled(self, remedy)
        if not _closed(model.mesh_vert, model.mesh_face):
            raise ConfigError(f"object {self.name!r}: {self.file} is not closed, so it has no volume; {remedy}")
        return model

    @cached_property
    def rest(self) -> float:
        m = self.compiled
        rotation = np.zeros(9)
        from sim.rendering.gl import mujoco

        mujoco.mju_quat2Mat(rotation, m.geom_quat[0])
        points = m.mesh_vert @ rotation.reshape(3, 3).T + m.geom_pos[0]
        return float(-points[:, 2].min())


@dataclass(frozen=True)
class Model(Object):
    """A part from an MJCF or URDF file with one body in the world, such as a door, a lid or a button.

    The body gets the object's name, and other elements of the file the prefix `<name>_`. The surface is the file's.
    """

    file: str = ""
    """MJCF or URDF file, absolute or relative to the working directory."""
    height: float = 0.0
    """Height of the body's origin when it rests on the table, m."""
    parts: tuple[str, ...] = ()
    """Bodies of the file whose poses a tracker reports, by their names in the file."""
    fixed: bool = field(default=True, kw_only=True)

    parameters: ClassVar[tuple[str, ...]] = ("mass", "friction", "joint_friction", "joint_damping")

    @property
    def tracked(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.parts

    @property
    def rest(self) -> float:
        return self.height

    def spec(self) -> mujoco.MjSpec:
        from sim.rendering.gl import mujoco

        path, what = _existing(self), f"object {self.name!r}"
        try:
            file = mujoco.MjSpec.from_file(str(path))
        except ValueError as error:
            raise ConfigError(f"{what}: {path} cannot be read ({error}); correct the file") from None
        roots = list(file.worldbody.bodies)
        if len(roots) != 1:
            raise ConfigError(f"{what}: {path} has {len(roots)} bodies in the world; an object is one body with parts")
        for joint in list(roots[0].joints):
            if joint.type != mujoco.mjtJoint.mjJNT_FREE:
                raise ConfigError(f"{what}: the joint {joint.name!r} of {path} moves its root; give it a fixed parent")
            file.delete(joint)
        root = roots[0].name
        spec = mujoco.MjSpec()
        spec.modelname = self.name
        spec.attach(file, prefix=f"{self.name}_", frame=spec.worldbody.add_frame())
        spec.body(f"{self.name}_{root}").name = self.name
        if missing := [part for part in self.parts if spec.body(f"{self.name}_{part}") is None]:
            names = ", ".join(body.name.removeprefix(f"{self.name}_") for body in spec.bodies[2:])
            raise ConfigError(f"{what}: {path} has no body {missing[0]!r} to track; it has: {names or 'no parts'}")
        return spec

    @cached_property
    def compiled(self) -> mujoco.MjModel:
        return _compiled(self, "correct the file")

    @cached_property
    def joints(self) -> tuple[str, ...]:
        from sim.rendering.gl import mujoco

        m, simple = self.compiled, (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)
        for k in range(m.njnt):
            if not any(int(m.jnt_type[k]) == kind for kind in simple):
                raise ConfigError(
                    f"object {self.name!r}: the joint {m.joint(k).name!r} of {self.file} is neither a hinge nor a "
                    "slide, so no view can show its position; replace it by hinges and slides"
                )
        return tuple(m.joint(k).name for k in range(m.njnt))


def _existing(thing: Mesh | Model) -> Path:
    path = Path(thing.file)
    if not path.is_file():
        raise ConfigError(f"object {thing.name!r}: {thing.file or 'its file'} is not a file; name an existing one")
    return path.absolute()


def _closed(vertices: np.ndarray, faces: np.ndarray) -> bool:
    """Return whether each edge of triangles (F, 3) belongs to two of them, in opposite directions."""
    welded = np.unique(vertices.round(6), axis=0, return_inverse=True)[1].reshape(-1)[faces]
    edges = np.concatenate([welded[:, [k, (k + 1) % 3]] for k in range(3)])
    ordered, count = np.unique(edges, axis=0, return_counts=True)
    return bool((count == 1).all()) and {*map(tuple, ordered.tolist())} == {(b, a) for a, b in ordered.tolist()}


def _compiled(thing: Object, remedy: str) -> mujoco.MjModel:
    try:
        return thing.spec().compile()
    except ValueError as error:
        raise ConfigError(f"object {thing.name!r}: MuJoCo refuses its file: {error}; {remedy}") from None
