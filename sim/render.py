"""Offscreen frames of simulations, fast in software for policies or beautiful for videos."""

from __future__ import annotations

import copy
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from sim.gl import mujoco, open_renderer


class SceneRenderer:
    """Render one simulation's joint positions through a private MjData.

    "fast" draws collision shapes without shadows, reflections, skybox or multisampling; "video" draws the visual
    meshes; "high" adds the rest. On Mesa's software rasterizer that is 1,100, 20 and under 1 frame/s for a Panda at
    96x96, 640x480 and 640x480.
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
        """Return RGB (height, width, 3) uint8 at joint positions (nq,) with geom sizes (ngeom, 3)."""
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


class Renderers:
    """The renderers of one model: one per size and quality for single frames, and a thread pool for batches."""

    def __init__(self, model: mujoco.MjModel):
        self.model = model
        self._single: dict[tuple[int, int, str], SceneRenderer] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._workers = os.cpu_count() or 1
        self._local = threading.local()

    def frame(
        self, qpos: np.ndarray, camera: str, height: int, width: int, quality: str, sizes: np.ndarray | None
    ) -> np.ndarray:
        """Return one frame, as `SceneRenderer.render` does."""
        key = (height, width, quality)
        if key not in self._single:
            self._single[key] = SceneRenderer(self.model, height, width, quality)
        return self._single[key].render(qpos, camera, sizes)

    def batch(self, qpos: np.ndarray, camera: str, height: int, width: int, sizes: np.ndarray | None) -> np.ndarray:
        """Return fast frames (k, height, width, 3) uint8 at joint positions (k, nq), on all cores.

        Every thread has its own OpenGL context and copy of the model.
        """
        frames = np.empty((len(qpos), height, width, 3), np.uint8)

        def draw(rows: np.ndarray) -> None:
            owned = vars(self._local).setdefault("renderers", {})
            if (height, width) not in owned:
                owned[height, width] = SceneRenderer(copy.copy(self.model), height, width, "fast")
            for k in rows:
                frames[k] = owned[height, width].render(qpos[k], camera, None if sizes is None else sizes[k])

        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._workers, "render")
        shares = np.array_split(np.arange(len(qpos)), min(self._workers, len(qpos)))
        for done in [self._pool.submit(draw, rows) for rows in shares]:
            done.result()
        return frames

    def close(self) -> None:
        """End the threads; another batch would start new ones."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool, self._local = None, threading.local()
