"""Batched forward kinematics and Jacobian of a serial arm, from its RobotSpec alone.

The robot's computer needs no simulator for end-effector control, and simulation uses the very same code.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from robot_rl.rotation import quat_to_matrix
from robot_rl.spec import RobotSpec


class Kinematics:
    """Forward kinematics of one robot for batches of joint positions."""

    def __init__(self, spec: RobotSpec, dtype: torch.dtype = torch.float32):
        def tensor(values: Sequence[tuple[float, ...]]) -> Tensor:
            return torch.tensor(values, dtype=dtype)

        if spec.tool is None:
            raise ValueError(f"robot {spec.name!r} has no tool at the end of a chain")
        # The tool is a last, fixed link of the chain.
        self.offset = tensor([j.position for j in spec.joints] + [spec.tool.position])
        quats = tensor([j.quat for j in spec.joints] + [spec.tool.quat])
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
