"""Batched forward kinematics and Jacobian of a serial arm, computed from its RobotSpec without a simulator."""

import torch
from torch import Tensor

from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.rotation import quat_to_matrix


class Kinematics:
    """Forward kinematics of one robot for batches of joint positions.

    Internally, the batch is the last axis and all operations are elementwise. Small matrix products would be several
    times slower, and their precision would depend on process settings.
    """

    def __init__(self, spec: RobotSpec, dtype: torch.dtype = torch.float32):
        if spec.tool is None:
            raise ValueError(f"robot {spec.name!r} has no tool at the end of a chain")
        # The tool is a fixed last link. Link frames are rotated so that every joint axis is z.
        turn, links, turns = torch.eye(3, dtype=torch.float64), [], []
        places = [(j.position, j.quat, j.axis) for j in spec.joints] + [(spec.tool.position, spec.tool.quat, None)]
        for position, quat, axis in places:
            offset, rotation = (torch.tensor(x, dtype=torch.float64) for x in (position, quat))
            own = torch.eye(3, dtype=torch.float64) if axis is None else _frame(torch.tensor(axis, dtype=torch.float64))
            frame = turn.T @ quat_to_matrix(rotation / rotation.norm()) @ own
            links.append(torch.cat([frame.T, (turn.T @ offset)[None]]))
            turn = own
            turns.append(own)
        self.turns = turns[:-1]
        """Rotations (3, 3) from the frames of the joints' links to those used here."""
        self.links = torch.stack(links)[..., None, None].to(dtype)
        """(J + 1, 4, 3, 1, 1): axes and origin of each link's frame in its parent frame, at joint position 0."""

    def forward(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Return tool position (n, 3), m, and rotation (n, 3, 3) in the base frame at joint positions (n, J), rad."""
        position, rotation, _, _ = self.chain(q)
        return position.T.contiguous(), rotation.permute(2, 1, 0)

    def jacobian(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return tool position, rotation and geometric Jacobian (n, 6, J) in the base frame; linear rows come first."""
        position, rotation, origins, axes = self.chain(q)
        a, r = torch.stack([turned[2] for turned in axes], 1), position[:, None] - torch.stack(origins, 1)  # (3, J, n)
        linear = torch.stack([a[1] * r[2] - a[2] * r[1], a[2] * r[0] - a[0] * r[2], a[0] * r[1] - a[1] * r[0]])
        return position.T.contiguous(), rotation.permute(2, 1, 0), torch.cat([linear, a]).permute(2, 0, 1).contiguous()

    def chain(self, q: Tensor) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
        """Return, in the base frame, tool position (3, n), tool axes (3 axes, 3, n), and of each joint's link, turned
        by `turns`, the origin (3, n) and the axes (3 axes, 3, n), of which the last is the joint's."""
        sin, cos = q.sin().T.contiguous(), q.cos().T.contiguous()
        axes, position = torch.eye(3, dtype=q.dtype, device=q.device)[..., None], q.new_zeros(3, 1)
        origins, turned = [], []
        for link, s, c in zip(self.links, sin, cos, strict=False):
            x, y, z, step = (link * axes).sum(1)
            position = (position + step).expand(3, len(q))
            axes = torch.stack([c * x + s * y, c * y - s * x, z.expand(3, len(q))])
            origins.append(position)
            turned.append(axes)
        last = (self.links[-1] * axes).sum(1)
        return position + last[3], last[:3], origins, turned


def _frame(z: Tensor) -> Tensor:
    """Return a rotation matrix whose last column is parallel to z (3,)."""
    z = z / z.norm()
    shortest = torch.arange(3, device=z.device) == z.abs().argmin()
    x = torch.linalg.cross(shortest.to(z.dtype), z)
    x = x / x.norm()
    return torch.stack([x, torch.linalg.cross(z, x), z], 1)
