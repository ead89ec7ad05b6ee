"""Batched rotations as unit quaternions (..., 4) w x y z, matrices (..., 3, 3), and rotation vectors (..., 3), rad."""

import torch
from torch import Tensor


def quat_to_matrix(quat: Tensor) -> Tensor:
    """Return rotation matrices (..., 3, 3) of unit quaternions (..., 4), w x y z."""
    w, x, y, z = quat.unbind(-1)
    rows = [
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    ]  # fmt: skip
    return torch.stack(rows, -1).unflatten(-1, (3, 3))


def matrix_to_quat(matrix: Tensor) -> Tensor:
    """Return unit quaternions (..., 4), w x y z, of rotation matrices (..., 3, 3). The component with the largest
    magnitude is positive."""
    m = matrix.flatten(-2)
    xx, yy, zz = m[..., 0], m[..., 4], m[..., 8]
    # Four times the outer product of the quaternion with itself; its longest row is always well-conditioned.
    w = torch.stack([1 + xx + yy + zz, m[..., 7] - m[..., 5], m[..., 2] - m[..., 6], m[..., 3] - m[..., 1]], -1)
    x = torch.stack([w[..., 1], 1 + xx - yy - zz, m[..., 3] + m[..., 1], m[..., 2] + m[..., 6]], -1)
    y = torch.stack([w[..., 2], x[..., 2], 1 - xx + yy - zz, m[..., 7] + m[..., 5]], -1)
    z = torch.stack([w[..., 3], x[..., 3], y[..., 3], 1 - xx - yy + zz], -1)
    rows = torch.stack([w, x, y, z], -2)
    best = rows.diagonal(dim1=-2, dim2=-1).argmax(-1)
    row = rows.gather(-2, best[..., None, None].expand(*best.shape, 1, 4)).squeeze(-2)
    return row / row.norm(dim=-1, keepdim=True)


def matrix_to_columns(matrix: Tensor) -> Tensor:
    """Return the first two columns (..., 6) of rotation matrices (..., 3, 3), a continuous representation. Zhou et al.
    2019, On the Continuity of Rotation Representations in Neural Networks, arXiv 1812.07035."""
    return matrix[..., :2].transpose(-1, -2).flatten(-2)


def columns_to_matrix(columns: Tensor) -> Tensor:
    """Restore rotation matrices (..., 3, 3) from the result (..., 6) of `matrix_to_columns`."""
    x, y = columns.unflatten(-1, (2, 3)).unbind(-2)
    return torch.stack([x, y, torch.linalg.cross(x, y)], -1)


CONJUGATE = torch.tensor([1.0, -1.0, -1.0, -1.0])
"""Factor of a unit quaternion that gives the inverse rotation."""


def quat_product(first: Tensor, second: Tensor) -> Tensor:
    """Return the products (n, 4) of quaternions (n, 4), w x y z: the rotation `second`, then `first`."""
    (a, b, c, d), (w, x, y, z) = first.unbind(-1), second.unbind(-1)
    product = (
        a * w - b * x - c * y - d * z, a * x + b * w + c * z - d * y,
        a * y - b * z + c * w + d * x, a * z + b * y - c * x + d * w,
    )  # fmt: skip
    return torch.stack(product, -1)


def rotation_quat(vector: Tensor) -> Tensor:
    """Return unit quaternions (..., 4), w x y z, of rotation vectors (..., 3), rad."""
    half = vector.norm(dim=-1, keepdim=True) / 2
    # sin(a/2) / a, written with torch.sinc(x) = sin(pi x) / (pi x), which is defined at 0.
    return torch.cat([half.cos(), vector * torch.sinc(half / torch.pi) / 2], -1)


def rotation_error(current: Tensor, target: Tensor) -> Tensor:
    """Return rotation vectors (..., 3), rad, of length at most pi that turn `current` into `target`, matrices
    (..., 3, 3)."""
    return rotation_vector(matrix_to_quat(target @ current.transpose(-1, -2)))


def rotation_vector(quat: Tensor) -> Tensor:
    """Return the rotation vectors (..., 3), rad, of length at most pi, of unit quaternions (..., 4), w x y z."""
    quat = torch.where(quat[..., :1] < 0, -quat, quat)
    vector = quat[..., 1:]
    sine = vector.norm(dim=-1, keepdim=True)
    angle = 2 * torch.atan2(sine, quat[..., :1])
    return vector * torch.where(sine > 1e-8, angle / sine.clamp_min(1e-8), 2.0)


def rotation_matrix(vector: Tensor) -> Tensor:
    """Return rotation matrices (..., 3, 3) of rotation vectors (..., 3), rad."""
    return quat_to_matrix(rotation_quat(vector))


def heading(quat: Tensor) -> Tensor:
    """Return the horizontal unit vectors (n, 2), cos and sin of the yaw angle, along the x axes of frames with
    orientations (n, 4), w x y z. The x axis must not be vertical."""
    w, x, y, z = quat.unbind(-1)
    forward = torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y + w * z)], -1)
    return forward / forward.norm(dim=-1, keepdim=True).clamp_min(1e-6)


def rotate_back(quat: Tensor, vector: Tensor) -> Tensor:
    """Rotate vectors (..., 3) by the inverse of unit quaternions (..., 4), w x y z. For a frame's orientation in the
    world, this turns vectors in the world into vectors in the frame."""
    real, axis = quat[..., :1], quat[..., 1:]
    twice = 2 * torch.linalg.cross(vector, axis)
    return vector + real * twice + torch.linalg.cross(twice, axis)
