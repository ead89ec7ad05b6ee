"""Visual randomization: lights, colours, textures, cameras and camera sensor errors; physics does not change.

An appearance is a function of an episode's randomized values and has no state. Before it draws an environment, the
renderer writes a few fields of its own copy of the model; afterwards it adds the sensor errors to the frame. The table
in `sim.parameters` lists the parameters: those of owner "look".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from sim.rendering.gl import mujoco
from sim.scenes import SCENE, Scene

TEXTURES = tuple(SCENE + name for name in ("table", "table.flat", "table.gradient", "table.dots"))
"""Materials of the table; the first is the default."""
COLOURS = ("red", "green", "blue")
EFFECTS = ("picture.exposure_scale", "picture.noise", "picture.blur", "picture.jpeg_loss")
_MOVES, _TURNS = ("x", "y", "z"), ("pitch", "yaw", "roll")
Values = Mapping[str, float]


@dataclass(frozen=True)
class Appearance:
    """Appearance of one environment in one frame."""

    values: Values
    """Values of the episode's randomized parameters; parameters without a visual effect are ignored."""
    frame: tuple[int, int]
    """Key of the frame's noise: episode and control period."""


class VisualRandomization:
    """Apply visual parameters to a renderer's own copy of a model."""

    FIELDS = ("geom_rgba", "geom_matid", "cam_pos", "cam_quat", "cam_fovy", "light_dir", "light_diffuse")

    def __init__(self, model: mujoco.MjModel, scene: Scene):
        self.model = model
        self.nominal = {field: getattr(model, field).copy() for field in self.FIELDS}
        self.coloured = {
            o.name: np.flatnonzero(model.body_rootid[model.geom_bodyid] == model.body(SCENE + o.name).id)
            for o in scene.objects
        }
        self.coloured["table"] = np.array([model.geom(f"{SCENE}table").id])
        known = np.concatenate(list(self.coloured.values()))
        self.robot = np.setdiff1d(np.arange(model.ngeom), known)
        self.cameras = {c.name: model.camera(SCENE + c.name).id for c in scene.cameras}
        self.sun = model.light(f"{SCENE}sun").id
        self.materials = [model.material(name).id for name in TEXTURES]

    def apply(self, values: Values) -> None:
        """Write visual parameters to the model; visual fields without a parameter get the values of the scene."""
        model = self.model
        for field, nominal in self.nominal.items():
            getattr(model, field)[:] = nominal
        for name, geoms in self.coloured.items():
            for k, colour in enumerate(COLOURS):
                if (value := values.get(f"{name}.{colour}")) is not None:
                    model.geom_rgba[geoms, k] = value
        if (texture := values.get("table.texture")) is not None:
            share = min(int(texture * len(self.materials)), len(self.materials) - 1)
            model.geom_matid[self.coloured["table"]] = self.materials[share]
        shade = values.get("robot.shade_scale", 1.0)
        model.geom_rgba[self.robot, :3] = (shade * model.geom_rgba[self.robot, :3]).clip(0, 1)
        model.light_dir[self.sun, :2] += [values.get("light.x", 0.0), values.get("light.y", 0.0)]
        model.light_dir[self.sun] /= np.linalg.norm(model.light_dir[self.sun])
        model.light_diffuse *= values.get("light.strength_scale", 1.0)
        for name, camera in self.cameras.items():
            self._move(name, camera, values)

    def _move(self, name: str, camera: int, values: Values) -> None:
        model = self.model
        shift = np.array([values.get(f"camera.{name}.{way}", 0.0) for way in _MOVES])
        turn = np.array([values.get(f"camera.{name}.{way}", 0.0) for way in _TURNS])
        model.cam_fovy[camera] *= values.get(f"camera.{name}.zoom_scale", 1.0)
        if shift.any():
            moved = np.zeros(3)
            mujoco.mju_rotVecQuat(moved, shift, model.cam_quat[camera])
            model.cam_pos[camera] += moved
        if angle := float(np.linalg.norm(turn)):
            rotation, result = np.zeros(4), np.zeros(4)
            mujoco.mju_axisAngle2Quat(rotation, turn / angle, angle)
            mujoco.mju_mulQuat(result, model.cam_quat[camera], rotation)
            model.cam_quat[camera] = result


def add_camera_noise(frame: np.ndarray, look: Appearance) -> np.ndarray:
    """Return a frame (H, W, 3) uint8 with camera errors, in a real camera's order: lens blur, sensor noise, JPEG."""
    exposure, noise, blur, loss = (
        look.values.get(name, default) for name, default in zip(EFFECTS, (1, 0, 0, 0), strict=True)
    )
    if blur > 0:
        frame = cv2.GaussianBlur(frame, (0, 0), blur)
    if exposure != 1 or noise > 0:
        bright = frame.astype(np.float32) * exposure
        if noise > 0:
            rng = np.random.Generator(np.random.Philox(key=np.array(look.frame, np.int64).view(np.uint64)))
            bright += 255 * noise * rng.standard_normal(frame.shape, np.float32)
        frame = bright.round().clip(0, 255).astype(np.uint8)
    if loss >= 1:
        quality = [cv2.IMWRITE_JPEG_QUALITY, max(1, round(100 - loss))]
        decoded: Any = cv2.imdecode(cv2.imencode(".jpg", frame[..., ::-1], quality)[1], cv2.IMREAD_COLOR)
        frame = decoded[..., ::-1]
    return np.ascontiguousarray(frame)
