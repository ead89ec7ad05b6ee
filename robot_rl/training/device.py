"""Move observations and actions between devices: a learner on a GPU, physics on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robot_rl.interface.environment import EnvWrapper
from robot_rl.util.errors import ConfigError, UnknownName

DEVICES = ("auto", "cpu", "cuda")


def move(value: Any, device: torch.device) -> Any:
    """Return a tensor, or the tensors in nested dicts, on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    return {k: move(v, device) for k, v in value.items()} if isinstance(value, dict) else value


class DeviceWrapper(EnvWrapper):
    """An environment whose results are on `device`."""

    def __init__(self, env: Any, device: torch.device):
        super().__init__(env)
        self.device = device

    def reset(self, **kwargs: Any) -> Any:
        """Reset the environment."""
        return move(self.env.reset(**kwargs)[0], self.device), {}

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        """Step the environment; it takes actions from any device."""
        return tuple(move(value, self.device) for value in self.env.step(actions.cpu()))

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Restore the environment; return the current observation."""
        return move(super().load_state_dict(state), self.device)


def on_device(env: Any, device: torch.device | str) -> Any:
    """Return the environment with results on `device`."""
    device = torch.device(device)
    return env if device.type == "cpu" else DeviceWrapper(env, device)


def learner_device(name: str) -> str:
    """Return where a learner works: cpu or cuda as named, or for auto cuda where there is one.

    Raise UnknownName for another name, ConfigError for cuda without a GPU.
    """
    if name not in DEVICES:
        raise UnknownName("device", name, DEVICES)
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("PyTorch finds no CUDA device here; use --device cpu, or auto")
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
