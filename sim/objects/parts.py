"""Poses of the tracked parts of objects, by forward kinematics."""

from __future__ import annotations

import torch
from torch import Tensor

from robot_rl.interface.rotation import quat_product, quat_to_matrix, rotation_quat
from sim.objects.base import Object
from sim.rendering.gl import mujoco


class PartPoses:
    """Forward kinematics from an object's positions to the poses of its tracked parts, on a device."""

    def __init__(self, thing: Object, device: torch.device | str = "cpu"):
        m, self.device = thing.compiled, device
        self.parts = {name: self._chain(m, name) for name in thing.poses[1:]}
        self.zero, self.slides = m.qpos0.tolist(), [int(k) == mujoco.mjtJoint.mjJNT_SLIDE for k in m.jnt_type]

    def _chain(
        self, m: mujoco.MjModel, part: str
    ) -> list[tuple[Tensor, Tensor, list[tuple[int, Tensor, Tensor]]]]:
        """Return offset, rotation and joints (index, axis, anchor) of each body between the object and the part."""
        chain, body = [], m.body(part).id
        while m.body_parentid[body]:
            first, count = m.body_jntadr[body], m.body_jntnum[body]
            joints = [(k, self._tensor(m.jnt_axis[k]), self._tensor(m.jnt_pos[k])) for k in range(first, first + count)]
            chain.append((self._tensor(m.body_pos[body]), self._tensor(m.body_quat[body]), joints))
            body = int(m.body_parentid[body])
        return chain[::-1]

    def __call__(self, name: str, qpos: Tensor) -> Tensor:
        """Return the poses (n, 7) of part `name` at positions (n, 7 + J): the object's pose, then its joints."""
        position, quat = qpos[:, :3], qpos[:, 3:7]
        for offset, turn, joints in self.parts[name]:
            position = position + _turned(quat, offset)
            quat = quat_product(quat, turn.expand_as(quat))
            for k, axis, anchor in joints:
                moved = qpos[:, 7 + k, None] - self.zero[k]
                if self.slides[k]:
                    position = position + moved * _turned(quat, axis)
                else:
                    about = position + _turned(quat, anchor)
                    quat = quat_product(quat, rotation_quat(moved * axis))
                    position = about - _turned(quat, anchor)
        return torch.cat([position, quat], 1)


    def _tensor(self, values: object) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float32, device=self.device)


def _turned(quat: Tensor, vector: Tensor) -> Tensor:
    """Return a vector (3,) rotated by quaternions (n, 4)."""
    return quat_to_matrix(quat) @ vector
