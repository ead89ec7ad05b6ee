"""Offscreen pictures of one environment, fast in software or beautiful for videos."""

from __future__ import annotations

import numpy as np

from sim.gl import mujoco, open_renderer


class SceneRenderer:
    """Renders one simulation's joint positions through a private MjData.

    "fast" draws collision shapes without shadows, reflections, skybox or multisampling; "video" draws the visual
    meshes; "high" adds the rest. On Mesa's software rasterizer that is 800, 20 and under 1 frame/s.
    """

    def __init__(self, model: mujoco.MjModel, height: int, width: int, quality: str):
        self.model = model
        samples = model.vis.quality.offsamples
        fast = quality == "fast"
        try:
            model.vis.quality.offsamples = 4 if quality == "high" else 0
            self.renderer = open_renderer(model, height, width)
        finally:
            model.vis.quality.offsamples = samples
        self.data = mujoco.MjData(model)
        self.options = mujoco.MjvOption()
        if fast:
            self.options.geomgroup[:] = [1, 1, 0, 1, 0, 0]
        for flag in (
            mujoco.mjtRndFlag.mjRND_SHADOW,
            mujoco.mjtRndFlag.mjRND_REFLECTION,
            mujoco.mjtRndFlag.mjRND_SKYBOX,
        ):
            self.renderer.scene.flags[flag] = quality == "high"

    def render(self, qpos: np.ndarray, camera: str, geom_size: np.ndarray | None) -> np.ndarray:
        """RGB (height, width, 3) uint8 at joint positions (nq,), with this environment's geom sizes (ngeom, 3)."""
        self.data.qpos[:] = qpos
        nominal = self.model.geom_size.copy()
        if geom_size is not None:
            self.model.geom_size[:] = geom_size
        try:
            mujoco.mj_kinematics(self.model, self.data)
            mujoco.mj_comPos(self.model, self.data)
            mujoco.mj_camlight(self.model, self.data)
            self.renderer.update_scene(self.data, camera=camera, scene_option=self.options)
            return self.renderer.render()
        finally:
            self.model.geom_size[:] = nominal
