"""Batched forward kinematics and Jacobian of a serial arm, from its RobotSpec alone.

The robot's computer needs no simulator for end-effector control, and simulation uses the very same code.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from robot_rl.spec import RobotSpec


def quat_to_matrix(quat: Tensor) -> Tensor:
    """Rotation matrices (..., 3, 3) of unit quaternions (..., 4), w x y z."""
    w, x, y, z = quat.unbind(-1)
    rows = [
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    ]  # fmt: skip
    return torch.stack(rows, -1).unflatten(-1, (3, 3))


def matrix_to_quat(matrix: Tensor) -> Tensor:
    """Unit quaternions (..., 4), w x y z with the largest component positive, of rotation matrices."""
    m = matrix.flatten(-2)
    xx, yy, zz = m[..., 0], m[..., 4], m[..., 8]
    # Four times the outer product of the quaternion with itself: its longest row is never ill-conditioned.
    w = torch.stack([1 + xx + yy + zz, m[..., 7] - m[..., 5], m[..., 2] - m[..., 6], m[..., 3] - m[..., 1]], -1)
    x = torch.stack([w[..., 1], 1 + xx - yy - zz, m[..., 3] + m[..., 1], m[..., 2] + m[..., 6]], -1)
    y = torch.stack([w[..., 2], x[..., 2], 1 - xx + yy - zz, m[..., 7] + m[..., 5]], -1)
    z = torch.stack([w[..., 3], x[..., 3], y[..., 3], 1 - xx - yy + zz], -1)
    rows = torch.stack([w, x, y, z], -2)
    best = rows.diagonal(dim1=-2, dim2=-1).argmax(-1)
    row = rows.gather(-2, best[..., None, None].expand(*best.shape, 1, 4)).squeeze(-2)
    return row / row.norm(dim=-1, keepdim=True)


def rotation_error(current: Tensor, target: Tensor) -> Tensor:
    """Rotation vector (..., 3), rad, that turns `current` into `target`; both (..., 3, 3), angle below pi."""
    quat = matrix_to_quat(target @ current.transpose(-1, -2))
    quat = torch.where(quat[..., :1] < 0, -quat, quat)
    vector = quat[..., 1:]
    sine = vector.norm(dim=-1, keepdim=True)
    angle = 2 * torch.atan2(sine, quat[..., :1])
    return vector * torch.where(sine > 1e-8, angle / sine.clamp_min(1e-8), 2.0)


class Kinematics:
    """Forward kinematics of one robot for batches of joint positions."""

    def __init__(self, spec: RobotSpec, dtype: torch.dtype = torch.float32):
        def tensor(values: Sequence[tuple[float, ...]]) -> Tensor:
            return torch.tensor(values, dtype=dtype)

        # The tool is a last, fixed link of the chain.
        self.offset = tensor([j.position for j in spec.joints] + [spec.tool_position])
        quats = tensor([j.quat for j in spec.joints] + [spec.tool_quat])
        self.rotation = quat_to_matrix(quats / quats.norm(dim=-1, keepdim=True))
        x, y, z = tensor([j.axis for j in spec.joints]).unbind(-1)
        zero = torch.zeros_like(x)
        self.skew = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).unflatten(-1, (3, 3))
        self.axis = torch.stack([x, y, z], -1)

    def forward(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Tool position (n, 3) in m and rotation (n, 3, 3) in the base frame at joint positions (n, J) in rad."""
        position, rotation, _, _ = self._chain(q)
        return position, rotation

    def jacobian(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tool position, rotation and geometric Jacobian (n, 6, J): linear rows first, base frame."""
        position, rotation, origins, axes = self._chain(q)
        linear = torch.linalg.cross(axes, position[:, None] - origins)
        return position, rotation, torch.cat([linear, axes], -1).transpose(1, 2)

    def _chain(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # Rodrigues' formula for all joints at once, then one product per joint along the chain.
        sin, cos = q.sin()[..., None, None], q.cos()[..., None, None]
        turn = torch.eye(3, dtype=q.dtype) + sin * self.skew + (1 - cos) * (self.skew @ self.skew)
        local = self.rotation[:-1] @ turn
        position, rotation = self.offset[0].expand(len(q), 3), local[:, 0]
        origins, axes = [position], [self.rotation[0] @ self.axis[0].expand(len(q), 3).unsqueeze(-1)]
        for j in range(1, local.shape[1]):
            position = position + rotation @ self.offset[j]
            origins.append(position)
            axes.append(rotation @ (self.rotation[j] @ self.axis[j])[:, None])
            rotation = rotation @ local[:, j]
        position = position + rotation @ self.offset[-1]
        return position, rotation @ self.rotation[-1], torch.stack(origins, 1), torch.stack(axes, 1).squeeze(-1)
