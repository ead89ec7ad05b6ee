"""Render frames of simulations offscreen: fast for policies, high quality for videos."""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from sim.gl import mujoco, open_renderer
from sim.looks import Look, Looks, spoil
from sim.scenes import Scene


class SceneRenderer:
    """Render one simulation's joint positions through a private MjData.

    "fast" draws collision shapes without shadows, reflections, skybox or multisampling; "video" draws the visual
    meshes; "high" adds the rest. On Mesa's software rasterizer that is 1,100, 20 and under 1 frame/s for a Panda at
    96x96, 640x480 and 640x480.
    """

    def __init__(self, model: mujoco.MjModel, scene: Scene, height: int, width: int, quality: str):
        self.model, self.looks = model, Looks(model, scene)
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
        for flag in (
            mujoco.mjtRndFlag.mjRND_SHADOW,
            mujoco.mjtRndFlag.mjRND_REFLECTION,
            mujoco.mjtRndFlag.mjRND_SKYBOX,
        ):
            self.renderer.scene.flags[flag] = quality == "high"

    def render(
        self, qpos: np.ndarray, camera: str, geom_size: np.ndarray | None, look: Look | None = None
    ) -> np.ndarray:
        """Return RGB (height, width, 3) uint8 at joint positions (nq,) with geom sizes (ngeom, 3); a look's faults of
        the sensor are in fast frames alone."""
        self.data.qpos[:] = qpos
        nominal = self.model.geom_size.copy()
        if geom_size is not None:
            self.model.geom_size[:] = geom_size
        if look is not None:
            self.looks.wear(look.values)
        try:
            mujoco.mj_kinematics(self.model, self.data)
            mujoco.mj_comPos(self.model, self.data)
            mujoco.mj_camlight(self.model, self.data)
            self.renderer.update_scene(self.data, camera=camera, scene_option=self.options)
            frame = self.renderer.render()
        finally:
            self.model.geom_size[:] = nominal
            if look is not None:
                self.looks.wear({})
        return spoil(frame, look) if look is not None and self.fast else frame


class Renderers:
    """The renderers of one model: one per size and quality for single frames, and one per core and size for batches."""

    def __init__(self, model: mujoco.MjModel, scene: Scene):
        self.model, self.scene = model, scene
        self._single: dict[tuple[int, int, str], SceneRenderer] = {}
        self._threads: list[_RenderThread] = []
        self._end = weakref.finalize(self, _end, self._threads)
        self._end.atexit = False  # the interpreter has ended the threads by then

    def frame(
        self, qpos: np.ndarray, camera: str, height: int, width: int, quality: str, sizes: np.ndarray | None,
        look: Look | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Return one frame, as `SceneRenderer.render` does."""
        key = (height, width, quality)
        if key not in self._single:
            self._single[key] = SceneRenderer(self.model, self.scene, height, width, quality)
        return self._single[key].render(qpos, camera, sizes, look)

    def batch(
        self, qpos: np.ndarray, camera: str, height: int, width: int, sizes: np.ndarray | None,
        looks: Sequence[Look] | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Return fast frames (k, height, width, 3) uint8 at joint positions (k, nq), on all cores."""
        frames = np.empty((len(qpos), height, width, 3), np.uint8)
        threads = self._opened(os.cpu_count() or 1)
        shares = np.array_split(np.arange(len(qpos)), min(len(threads), len(qpos)))
        started = [
            thread.pool.submit(thread.draw, frames, rows, qpos, camera, sizes, looks)
            for thread, rows in zip(threads, shares, strict=False)
        ]
        for done in started:
            done.result()
        return frames

    def later(
        self,
        qpos: np.ndarray,
        camera: str,
        height: int,
        width: int,
        sizes: np.ndarray | None,
        look: Look | None = None,
    ) -> Future[np.ndarray]:
        """Return the future of a fast frame (height, width, 3), which a thread renders from copies of positions."""
        frame, thread = np.empty((1, height, width, 3), np.uint8), self._opened(1)[0]
        sizes = None if sizes is None else sizes[None].copy()
        return thread.pool.submit(
            thread.draw, frame, np.zeros(1, int), qpos[None].copy(), camera, sizes, None if look is None else [look]
        )

    def _opened(self, least: int) -> list[_RenderThread]:
        while len(self._threads) < least:
            self._threads.append(_RenderThread(self.model, self.scene))
        return self._threads

    def close(self) -> None:
        """End the threads; another batch would start new ones."""
        _end(self._threads)


class _RenderThread:
    """A thread with its own copy of the model and OpenGL contexts, which only this thread may open, use and close."""

    def __init__(self, model: mujoco.MjModel, scene: Scene):
        self.pool = ThreadPoolExecutor(1, "render", _without_realtime)
        self.model, self.scene = copy.copy(model), scene
        self.renderers: dict[tuple[int, int], SceneRenderer] = {}

    def draw(
        self, frames: np.ndarray, rows: np.ndarray, qpos: np.ndarray, camera: str, sizes: np.ndarray | None,
        looks: Sequence[Look] | None,
    ) -> np.ndarray:  # fmt: skip
        """Render rows (k,) into frames (n, height, width, 3); return the first of them."""
        height, width = frames.shape[1:3]
        if (height, width) not in self.renderers:
            self.renderers[height, width] = SceneRenderer(self.model, self.scene, height, width, "fast")
        for k in rows:
            size, look = (None if each is None else each[k] for each in (sizes, looks))
            frames[k] = self.renderers[height, width].render(qpos[k], camera, size, look)
        return frames[rows[0]]

    def close(self) -> None:
        for renderer in self.renderers.values():
            renderer.renderer.close()


def _without_realtime() -> None:
    """Give this thread ordinary priority: it would inherit that of a twin's loop."""
    if hasattr(os, "sched_setscheduler"):
        with suppress(OSError):  # not permitted, as perhaps in a container: then it was not given either
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _end(threads: list[_RenderThread]) -> None:
    for thread in threads:
        thread.pool.submit(thread.close).result()
        thread.pool.shutdown()
    threads.clear()
