"""Offscreen rendering of simulations: fast for policies, high quality for videos."""

import copy
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from sim.rendering.gl import mujoco, open_renderer
from sim.rendering.looks import Appearance, VisualRandomization, add_camera_noise
from sim.scenes import SCENE, Scene


class SceneRenderer:
    """Render joint positions of one simulation with a private MjData.

    "fast" draws collision shapes without shadows, reflections, skybox or multisampling. "video" draws the visual
    meshes. "high" adds shadows, reflections, skybox and multisampling. Speed for a Panda on Mesa's software rasterizer:
    1,100 frames/s at 96x96 ("fast"), 20 frames/s at 640x480 ("video"), less than 1 frame/s at 640x480 ("high").
    """

    def __init__(self, model: mujoco.MjModel, scene: Scene, height: int, width: int, quality: str):
        self.model, self.looks = model, VisualRandomization(model, scene)
        samples = model.vis.quality.offsamples
        self.fast = fast = quality == "fast"
        try:
            model.vis.quality.offsamples = 4 if quality == "high" else 0
            self.renderer = open_renderer(model, height, width)
        finally:
            model.vis.quality.offsamples = samples
        self.data = mujoco.MjData(model)
        self.options = mujoco.MjvOption()
        if fast:
            self.options.geomgroup[:] = [1, 1, 0, 1, 0, 0]
        for flag in ("SHADOW", "REFLECTION", "SKYBOX"):
            self.renderer.scene.flags[getattr(mujoco.mjtRndFlag, f"mjRND_{flag}")] = quality == "high"

    def render(
        self, qpos: np.ndarray, camera: str, geom_size: np.ndarray | None, look: Appearance | None = None
    ) -> np.ndarray:
        """Return RGB (height, width, 3) uint8 at joint positions (nq,) with geom sizes (ngeom, 3). Only "fast" frames
        have the camera errors of `look`."""
        self.data.qpos[:] = qpos
        nominal = self.model.geom_size.copy()
        if geom_size is not None:
            self.model.geom_size[:] = geom_size
        if look is not None:
            self.looks.apply(look.values)
        try:
            mujoco.mj_kinematics(self.model, self.data)
            mujoco.mj_comPos(self.model, self.data)
            mujoco.mj_camlight(self.model, self.data)
            self.renderer.update_scene(self.data, camera=SCENE + camera, scene_option=self.options)
            frame = self.renderer.render()
        finally:
            self.model.geom_size[:] = nominal
            if look is not None:
                self.looks.apply({})
        return add_camera_noise(frame, look) if look is not None and self.fast else frame


class Renderers:
    """Render one model on a pool of threads; every thread has its own copy of the model and its own OpenGL contexts.

    A context belongs to one thread, which frees the context when the thread ends. Python itself may free a renderer on
    any thread: if the renderer's context is current on another thread, MuJoCo frees objects of the wrong context.
    Pictures are then wrong, or the process crashes.
    """

    def __init__(self, model: mujoco.MjModel, scene: Scene, threads: int = 0):
        """`threads`: threads of one batch; 0: one per core."""
        cores = os.cpu_count() or 1
        self._size = threads or cores
        self._pool = ThreadPoolExecutor(cores, "render", _begin, (copy.copy(model), scene))

    def frame(
        self, qpos: np.ndarray, camera: str, height: int, width: int, quality: str, sizes: np.ndarray | None,
        look: Appearance | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Return one frame, see `SceneRenderer.render`."""
        return self.later(qpos, camera, height, width, sizes, look, quality).result()

    def later(
        self, qpos: np.ndarray, camera: str, height: int, width: int, sizes: np.ndarray | None,
        look: Appearance | None = None, quality: str = "fast",
    ) -> Future[np.ndarray]:  # fmt: skip
        """Return the future of a frame (height, width, 3) uint8; `qpos` and `sizes` are copied."""
        sizes = None if sizes is None else sizes.copy()
        return self._pool.submit(_draw, qpos.copy(), camera, height, width, quality, sizes, look)

    def batch(
        self, qpos: np.ndarray, camera: str, height: int, width: int, sizes: np.ndarray | None,
        looks: Sequence[Appearance] | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Return "fast" frames (k, height, width, 3) uint8 at joint positions (k, nq), drawn on `threads` threads."""
        frames = np.empty((len(qpos), height, width, 3), np.uint8)

        def draw(rows: np.ndarray) -> None:
            for k in rows:
                size, look = (None if each is None else each[k] for each in (sizes, looks))
                frames[k] = _draw(qpos[k], camera, height, width, "fast", size, look)

        list(self._pool.map(draw, np.array_split(np.arange(len(qpos)), min(self._size, len(qpos)))))
        return frames

    def close(self) -> None:
        """End the threads, which frees their renderers."""
        self._pool.shutdown()


_local = threading.local()  # model, scene and renderers of each thread


def _begin(model: mujoco.MjModel, scene: Scene) -> None:
    """Prepare a thread and give it normal priority, because it would inherit the priority of a twin's loop."""
    _local.model, _local.scene, _local.renderers = copy.copy(model), scene, {}
    if hasattr(os, "sched_setscheduler"):
        with suppress(OSError):  # not permitted, for example in a container without real-time priorities
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _draw(
    qpos: np.ndarray, camera: str, height: int, width: int, quality: str, size: np.ndarray | None,
    look: Appearance | None,
) -> np.ndarray:  # fmt: skip
    """Return a frame drawn by this thread's renderer; see `SceneRenderer.render`."""
    key = (height, width, quality)
    if key not in _local.renderers:
        _local.renderers[key] = SceneRenderer(_local.model, _local.scene, *key)
    return _local.renderers[key].render(qpos, camera, size, look)
