"""Device names, and environments on another device than the learner."""

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
    """Let PyTorch report two CUDA devices and an Apple GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.mps, "device_count", lambda: 1)


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:0", "cuda:1", "mps"])
def test_available_devices_are_found(name: str, two_gpus: None) -> None:
    assert find_device(name) == name and find_device("auto") == "cuda"


@pytest.mark.parametrize(("name", "message"), [
    ("cuda:2", "2 in all: cuda:0, cuda:1"), ("mps:3", "1 in all"), ("xpu", "no xpu device here"), ("meta", "no meta")
])  # fmt: skip
def test_missing_devices_are_refused(name: str, message: str, two_gpus: None) -> None:
    with pytest.raises(ConfigError, match=message):
        find_device(name)


@pytest.mark.parametrize("name", ["cud", "cuda:x", "gpu", "", "cuda:-1"])
def test_unknown_device_names_are_refused(name: str) -> None:
    with pytest.raises(UnknownName, match="unknown device"):
        find_device(name)
    assert find_device("auto") == "cpu"


@pytest.mark.parametrize(
    ("physics", "learner"), [("cuda", "cuda"), ("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "first")]
)
def test_actions_move_to_physics_and_results_back(physics: str, learner: str, fake_cuda: Any, monkeypatch: Any) -> None:
    """No copy through the host, which would wait for the GPU."""
    places = {"cpu": torch.device("cpu"), "cuda": fake_cuda, "first": torch.device("cuda")}
    copied: list[Any] = []
    move_tensor = Tensor.to
    source, target = places[physics], places[learner]
    physics_env = SimpleNamespace(num_envs=3, device=source, hold_action=lambda: torch.zeros(3, 2, device=source))
    physics_env.step = lambda actions: (actions + physics_env.hold_action(), {"final": {"a": actions}})
    env = on_device(physics_env, target)
    monkeypatch.setattr(Tensor, "to", lambda x, *to: copied.append(to) or move_tensor(x, *to))
    monkeypatch.setattr(Tensor, "cpu", lambda x: copied.append("cpu") or move_tensor(x, "cpu"))
    seen, infos = env.step(torch.zeros(3, 2, device=target))
    assert seen.device == infos["final"]["a"].device == torch.zeros(1, device=target).device and env.num_envs == 3
    assert source.type != target.type or not copied
    assert env.hold_action().device == seen.device
