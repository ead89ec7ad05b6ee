"""Fixtures for robots' specs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch


@pytest.fixture
def random_joints() -> Callable[[Any, int], torch.Tensor]:
    """Return joint positions (count, J) of a robot, uniform between the limits, float64."""

    def draw(robot: Any, count: int) -> torch.Tensor:
        low, high, rng = robot.limit("low").double(), robot.limit("high").double(), torch.Generator().manual_seed(0)
        return low + torch.rand(count, len(robot.joints), generator=rng, dtype=torch.float64) * (high - low)

    return draw
