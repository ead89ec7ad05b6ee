"""Learning changes how floats are computed, and leaves no trace of it."""

from __future__ import annotations

import pytest
import torch

from robot_rl.training.numerics import learning_floats

DENORMAL = torch.tensor(1e-38)


def test_denormals_and_precision_are_as_before_at_the_end_also_of_an_error() -> None:
    before = torch.get_float32_matmul_precision()
    with pytest.raises(KeyError), learning_floats("high"):
        assert torch.get_float32_matmul_precision() == "high"
        assert (DENORMAL / 100).item() == 0
        raise KeyError
    assert (DENORMAL / 100).item() > 0
    assert torch.get_float32_matmul_precision() == before
