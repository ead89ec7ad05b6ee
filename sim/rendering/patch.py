"""Uneven ground around the robot: to draw a whole height field takes half a second on a software rasterizer."""

import numpy as np

from sim.rendering.gl import mujoco

REACH = 6.0
"""Half the edge of the part that is drawn, m."""
_STEP = 1.5
"""The part moves in steps of this size, m: eight fill the part, as do eight copies of the texture, which thus stays in
place. After a step, the graphics library compiles the triangles again."""


class GroundPatch:
    """Square part of the height field of a model that belongs to one renderer. Only pictures change: the model cannot
    be simulated any more."""

    def __init__(self, model: mujoco.MjModel):
        """Shrink the model's only height field to a part around the origin."""
        self.model = model
        self._geom = int(np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_HFIELD)[0])
        self._trunk = int(model.jnt_qposadr[np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)[0]])
        shape = int(model.hfield_nrow[0]), int(model.hfield_ncol[0])
        self._whole = model.hfield_data.reshape(shape).copy()
        self._scale = 2 * model.hfield_size[0, 0] / (shape[1] - 1)
        self._half = model.hfield_size[0, 1::-1].copy()  # of rows and columns
        self._cells = [min(round(2 * REACH / self._scale), size - 1) for size in shape]
        self._first: tuple[int, int] | None = None
        model.hfield_nrow[0], model.hfield_ncol[0] = (cells + 1 for cells in self._cells)
        model.hfield_size[0, 1::-1] = np.array(self._cells) * self._scale / 2
        self.move(np.zeros(model.nq))

    def move(self, qpos: np.ndarray) -> bool:
        """Move the part to the trunk at positions `qpos` (nq,); return whether its heights changed."""
        centre = np.nan_to_num(qpos[self._trunk : self._trunk + 2][::-1] / _STEP).round() * _STEP
        room = np.array(self._whole.shape) - 1 - self._cells
        first = ((centre + self._half) / self._scale - np.array(self._cells) / 2).round().clip(0, room).astype(int)
        row, column = (int(k) for k in first)
        if (row, column) == self._first:
            return False
        self._first = row, column
        part = self._whole[row : row + self._cells[0] + 1, column : column + self._cells[1] + 1]
        self.model.hfield_data[: part.size] = part.ravel()
        middle = (first + np.array(self._cells) / 2) * self._scale - self._half
        self.model.geom_pos[self._geom, :2] = middle[::-1]
        return True
