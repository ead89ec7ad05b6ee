"""Quaternions, matrices and rotation vectors agree, including near half a turn."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from robot_rl.interface.rotation import matrix_to_quat, quat_to_matrix, rotate_back, rotation_error


def matrix(vector: Tensor) -> Tensor:
    """Return rotation matrices of rotation vectors (..., 3) by the matrix exponential."""
    x, y, z = vector.unbind(-1)
    zero = torch.zeros_like(x)
    return torch.matrix_exp(torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).unflatten(-1, (3, 3)))


@st.composite
def rotation_vectors(draw: st.DrawFn, low: float = 0.0, high: float = math.pi) -> Tensor:
    axis = torch.tensor([draw(st.floats(-1, 1)) for _ in range(3)], dtype=torch.float64)
    if axis.norm() < 1e-3:
        axis = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    return axis / axis.norm() * draw(st.floats(low, high))


@settings(deadline=None, derandomize=True, max_examples=100)
@given(rotation_vectors())
def test_quaternion_round_trip(vector: Tensor) -> None:
    rotation = matrix(vector)
    quat = matrix_to_quat(rotation)
    assert quat.norm() == pytest.approx(1, abs=1e-12)
    assert torch.allclose(quat_to_matrix(quat), rotation, atol=1e-9)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(rotation_vectors(low=math.pi - 1e-3))
def test_quaternion_is_accurate_near_half_a_turn_in_float32(vector: Tensor) -> None:
    rotation = matrix(vector)
    quat = matrix_to_quat(rotation.float())
    assert torch.allclose(quat_to_matrix(quat).double(), rotation, atol=2e-6)


def test_largest_component_is_positive() -> None:
    rng = torch.Generator().manual_seed(1)
    quat = torch.randn(500, 4, generator=rng, dtype=torch.float64)
    quat /= quat.norm(dim=-1, keepdim=True)
    found = matrix_to_quat(quat_to_matrix(quat))
    assert (found.gather(-1, found.abs().argmax(-1, keepdim=True)) > 0).all()
    assert torch.allclose((found * quat).sum(-1).abs(), torch.ones(500, dtype=torch.float64))


@settings(deadline=None, derandomize=True, max_examples=100)
@given(rotation_vectors(), rotation_vectors(high=math.pi - 1e-4))
def test_rotation_error_rotates_current_to_target(start: Tensor, turn: Tensor) -> None:
    current = matrix(start)
    target = matrix(turn) @ current
    error = rotation_error(current, target)
    assert torch.allclose(error, turn, atol=1e-6)
    assert torch.allclose(matrix(error) @ current, target, atol=1e-7)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(rotation_vectors(low=math.pi - 1e-6))
def test_rotation_error_at_half_a_turn_has_either_sign(turn: Tensor) -> None:
    error = rotation_error(torch.eye(3, dtype=torch.float64), matrix(turn))
    assert error.isfinite().all()
    assert torch.allclose(matrix(error), matrix(turn), atol=1e-6)


@pytest.mark.parametrize("angle", [0.0, 1e-12, 1e-7, 1e-4])
def test_rotation_error_of_small_angles(angle: float) -> None:
    turn = angle * torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64)
    error = rotation_error(torch.eye(3, dtype=torch.float64), matrix(turn))
    assert torch.allclose(error, turn, rtol=1e-3, atol=1e-13)


def test_matrix_maps_frame_to_world_and_rotate_back_world_to_frame() -> None:
    """The sign convention of gyroscope and projected gravity."""
    quarter = torch.tensor([math.sqrt(0.5), 0.0, 0.0, math.sqrt(0.5)])  # to the left
    forward = torch.tensor([1.0, 0.0, 0.0])
    assert torch.allclose(quat_to_matrix(quarter) @ forward, torch.tensor([0.0, 1.0, 0.0]), atol=1e-6)
    assert torch.allclose(rotate_back(quarter, forward), torch.tensor([0.0, -1.0, 0.0]), atol=1e-6)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(rotation_vectors(), min_size=6, max_size=6), rotation_vectors(high=50.0))
def test_rotate_back_is_the_transposed_matrix_for_batches(turns: list[Tensor], vector: Tensor) -> None:
    rotation, vectors = matrix(torch.stack(turns)).reshape(2, 3, 3, 3), vector.expand(2, 3, 3)
    quat, expected = matrix_to_quat(rotation), (rotation.transpose(-1, -2) @ vector[:, None]).squeeze(-1)
    assert torch.allclose(rotate_back(quat, vectors), expected, atol=1e-9)
    assert torch.allclose(rotate_back(-quat, vectors), expected, atol=1e-9), "-q is the same rotation"
