"""Devices by PyTorch's names, and environments that are on another one than their learner."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from robot_rl.interface.environment import on_device
from robot_rl.util.devices import find_device
from robot_rl.util.errors import ConfigError, UnknownName


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch counts two CUDA devices and an Apple GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.mps, "device_count", lambda: 1)


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:0", "cuda:1", "mps"])
def test_any_device_that_is_there_is_found(name: str, two_gpus: None) -> None:
    assert find_device(name) == name and find_device("auto") == "cuda"


@pytest.mark.parametrize(
    ("name", "said"),
    [("cuda:2", "2 in all: cuda:0, cuda:1"), ("mps:3", "1 in all"), ("xpu", "no xpu device here"), ("meta", "no meta")],
)
def test_one_that_is_not_there_is_refused_with_those_that_are(name: str, said: str, two_gpus: None) -> None:
    with pytest.raises(ConfigError, match=said):
        find_device(name)


@pytest.mark.parametrize("name", ["cud", "cuda:x", "gpu", "", "cuda:-1"])
def test_what_pytorch_does_not_know_is_no_device(name: str) -> None:
    with pytest.raises(UnknownName, match="unknown device"):
        find_device(name)
    assert find_device("auto") == "cpu"


@pytest.mark.parametrize(("physics", "learner"), [("cuda", "cuda"), ("cpu", "cuda"), ("cuda", "cpu")])
def test_actions_go_where_the_physics_is_and_results_where_the_learner_is(
    physics: str, learner: str, fake_cuda: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none by way of the host, which would wait for the GPU: fake tensors only say where they are."""
    places = {"cpu": torch.device("cpu"), "cuda": fake_cuda}
    copied: list[Any] = []
    real = Tensor.to
    here, there = places[physics], places[learner]
    physics_env = SimpleNamespace(num_envs=3, device=here, hold_action=lambda: torch.zeros(3, 2, device=here))
    physics_env.step = lambda actions: (actions + physics_env.hold_action(), {"final": {"a": actions}})
    env = on_device(physics_env, there)
    monkeypatch.setattr(Tensor, "to", lambda x, *to: copied.append(to) or real(x, *to))
    monkeypatch.setattr(Tensor, "cpu", lambda x: copied.append("cpu") or real(x, "cpu"))
    seen, infos = env.step(torch.zeros(3, 2, device=there))
    assert seen.device == infos["final"]["a"].device == there and env.num_envs == 3
    assert here != there or not copied
    assert env.hold_action().device == there
