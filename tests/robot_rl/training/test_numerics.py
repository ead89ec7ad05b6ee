"""Floating-point and thread settings of learning."""

from __future__ import annotations

import pytest
import torch

from robot_rl.recipes import recipes
from robot_rl.training.numerics import learner_threads, learning_floats

DENORMAL = torch.tensor(1e-38)


def test_settings_are_restored_after_an_error() -> None:
    before = torch.get_float32_matmul_precision()
    with pytest.raises(KeyError), learning_floats("high"):
        assert torch.get_float32_matmul_precision() == "high"
        assert (DENORMAL / 100).item() == 0
        raise KeyError
    assert (DENORMAL / 100).item() > 0
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize(("recipe", "used"), [("diffusion-bc", 3), ("ppo", 3), ("resfit", 1), ("hil-serl", 1)])
def test_threads_beside_a_running_simulation(
    monkeypatch: pytest.MonkeyPatch, recipe: str, used: int
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert learner_threads(getattr(recipes.get(recipe), "sim_idle_during_update", False)) == used
