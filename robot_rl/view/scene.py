"""A robot's scene as meshes in the browser, posed by the positions of its MuJoCo model.

The package mjviser is no alternative: versions since 0.0.13 need pillow 12.2, which genesis-world's moviepy excludes,
and mjviser draws randomized boxes at nominal size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.rendering.gl import mujoco

if TYPE_CHECKING:
    from trimesh import Trimesh

GROUPS = (0, 1, 2)
"""MuJoCo's geom groups that are drawn; collision shapes are in other groups."""
GROUND, LINES = (231, 234, 238), (205, 210, 217)
EDGE = 0.5
"""Angle between faces above which an edge is drawn sharp, rad."""
FACES = 1200
"""Maximum number of faces per mesh: a browser without a GPU draws a Panda's 135,000 faces at 1 Hz."""
_DEFAULT = (0.5, 0.5, 0.5, 1.0)
"""MuJoCo's default colour of a geom; a geom with this colour is drawn in its material's colour."""


class SceneView:
    """Bodies of a model in a viser server's scene. A legged robot stays at the centre while the ground moves."""

    def __init__(self, server: Any, model: mujoco.MjModel, trunk: str = ""):
        """Add the bodies; the view follows the body `trunk` of a legged robot, if any."""
        self.server, self.model, self.data = server, model, mujoco.MjData(model)
        scene = server.scene
        scene.configure_environment_map(None)  # reflections are slow without a GPU
        scene.add_light_hemisphere("/light", sky_color=(255, 255, 255), ground_color=(180, 180, 190), intensity=2.0)
        self._trunk = model.body(trunk).id if trunk else 0
        reach = 40.0 if trunk else 4.0
        self._ground = scene.add_grid(
            "/ground", reach, reach, cell_size=0.25, section_size=1.0, cell_color=LINES, section_color=LINES,
            plane_color=GROUND, plane_opacity=1.0, cell_thickness=0.6, section_thickness=1.2, fade_distance=2 * reach,
            shadow_opacity=0.25,
        )  # fmt: skip
        scene.add_frame("/world", show_axes=False)
        self._bodies: list[tuple[int, Any]] = []
        self._shapes: list[tuple[int, Any]] = []
        """Geom index and viser handle of each box whose size may differ between episodes."""
        for body in range(model.nbody):
            self._add_body(body)
        self._size = model.geom_size.copy()
        server.initial_camera.position = (1.05, -1.0, 0.5) if trunk else (1.75, -1.15, 0.95)
        server.initial_camera.look_at = (0.0, 0.0, 0.2) if trunk else (0.3, 0.0, 0.25)
        server.initial_camera.fov = np.radians(40.0)

    def show(self, qpos: np.ndarray, sizes: np.ndarray | None = None) -> None:
        """Draw the model at positions `qpos` (nq,); `sizes` (ngeom, 3), m, replaces the model's geom sizes."""
        self.data.qpos[:] = qpos
        mujoco.mj_kinematics(self.model, self.data)
        centre = self.data.xpos[self._trunk] * (1.0, 1.0, 0.0)
        with self.server.atomic():
            for body, handle in self._bodies:
                handle.position, handle.wxyz = self.data.xpos[body] - centre, self.data.xquat[body]
            if self._trunk:
                self._ground.position = -(centre % 1.0)  # the grid repeats every metre
            for geom, handle in self._shapes:
                size = self.model.geom_size[geom] if sizes is None else sizes[geom]
                if not np.array_equal(size, self._size[geom]):
                    self._size[geom], handle.dimensions = size, 2 * size

    def heights(self, qpos: np.ndarray, bodies: Sequence[str]) -> np.ndarray:
        """Return the heights (k,), m, of the origins of k bodies at the model's positions `qpos` (nq,)."""
        self.data.qpos[:] = qpos
        mujoco.mj_kinematics(self.model, self.data)
        heights: np.ndarray = self.data.xpos[[self.model.body(name).id for name in bodies], 2]
        return heights

    def _add_body(self, body: int) -> None:
        """Add a body's shapes, merged into one mesh per colour."""
        model = self.model
        colours: dict[tuple[float, ...], list[Trimesh]] = {}
        name = f"/world/{body}-{model.body(body).name.replace('/', '-')}"  # a slash would add a tree level
        for geom in range(model.body_geomadr[body], model.body_geomadr[body] + model.body_geomnum[body]):
            kind, colour = model.geom_type[geom], _colour(model, geom)
            if model.geom_group[geom] not in GROUPS or kind == mujoco.mjtGeom.mjGEOM_PLANE or not colour[3]:
                continue
            if kind == mujoco.mjtGeom.mjGEOM_BOX and model.geom(geom).name:
                handle = self.server.scene.add_box(
                    f"{name}/{geom}", _rgb(colour), 2 * model.geom_size[geom], opacity=_opacity(colour),
                    position=model.geom_pos[geom], wxyz=model.geom_quat[geom],
                )  # fmt: skip
                self._shapes.append((geom, handle))
            elif (mesh := _mesh(model, geom)) is not None:
                colours.setdefault(colour, []).append(mesh)
        if not colours and not any(model.geom_bodyid[geom] == body for geom, _ in self._shapes):
            return
        self._bodies.append((body, self.server.scene.add_frame(name, show_axes=False)))
        for number, (colour, meshes) in enumerate(colours.items()):
            self._add_mesh(f"{name}/mesh{number}", meshes, colour)

    def _add_mesh(self, name: str, meshes: list[Trimesh], colour: tuple[float, ...]) -> None:
        import trimesh

        mesh = trimesh.graph.smooth_shade(trimesh.util.concatenate(meshes), angle=EDGE)
        self.server.scene.add_mesh_simple(
            name, mesh.vertices.astype(np.float32), mesh.faces.astype(np.uint32), color=_rgb(colour),
            opacity=_opacity(colour),
        )  # fmt: skip


def _colour(model: mujoco.MjModel, geom: int) -> tuple[float, ...]:
    own, material = tuple(model.geom_rgba[geom].round(4).tolist()), model.geom_matid[geom]
    return own if material < 0 or own != _DEFAULT else tuple(model.mat_rgba[material].round(4).tolist())


def _rgb(colour: tuple[float, ...]) -> tuple[int, int, int]:
    red, green, blue = (round(255 * min(max(value, 0.0), 1.0)) for value in colour[:3])
    return red, green, blue


def _opacity(colour: tuple[float, ...]) -> float | None:
    return colour[3] if colour[3] < 1 else None


def _mesh(model: mujoco.MjModel, geom: int) -> Trimesh | None:
    """Return the mesh of a geom in its body's frame; None for geoms without such a shape, for example planes."""
    import trimesh
    from trimesh.transformations import quaternion_matrix

    kinds, size = mujoco.mjtGeom, model.geom_size[geom]
    kind = model.geom_type[geom]
    if kind == kinds.mjGEOM_MESH:
        data = model.mesh(model.geom_dataid[geom])
        vertices = model.mesh_vert[data.vertadr[0] : data.vertadr[0] + data.vertnum[0]]
        faces = model.mesh_face[data.faceadr[0] : data.faceadr[0] + data.facenum[0]]
        made = trimesh.Trimesh(vertices, faces)  # merges vertices that MuJoCo duplicates per normal
        if len(made.faces) > FACES:
            made = made.simplify_quadric_decimation(face_count=FACES)
    elif kind in (kinds.mjGEOM_SPHERE, kinds.mjGEOM_ELLIPSOID):
        made = trimesh.creation.icosphere(subdivisions=2, radius=1.0)
        made.apply_scale(size if kind == kinds.mjGEOM_ELLIPSOID else size[0])
    elif kind == kinds.mjGEOM_CAPSULE:
        made = trimesh.creation.capsule(height=2 * size[1], radius=size[0], count=[16, 16])
    elif kind == kinds.mjGEOM_CYLINDER:
        made = trimesh.creation.cylinder(radius=size[0], height=2 * size[1], sections=32)
    elif kind == kinds.mjGEOM_BOX:
        made = trimesh.creation.box(2 * size)
    else:
        return None
    place = quaternion_matrix(model.geom_quat[geom])
    place[:3, 3] = model.geom_pos[geom]
    made.apply_transform(place)
    return made
