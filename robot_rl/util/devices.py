"""Devices by name, and environments whose physics is on another one than their learner."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robot_rl.util.errors import ConfigError, UnknownName

COMMON = ("auto", "cpu", "cuda", "cuda:0", "cuda:1", "mps", "xpu")
"""Names to suggest."""


def find_device(name: str) -> str:
    """Return a device by the name that PyTorch has for it; for auto cuda if there is one, else cpu.

    Raises:
        UnknownName: PyTorch knows no such device.
        ConfigError: there is none here, or not as many.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    device = known_device(name)
    kind: Any = getattr(torch, device.type, None)
    count = kind.device_count() if hasattr(kind, "device_count") else 0
    if not count:
        raise ConfigError(f"PyTorch finds no {device.type} device here; use --device cpu or auto")
    if (device.index or 0) >= count:
        here = ", ".join(f"{device.type}:{number}" for number in range(count))
        raise ConfigError(f"PyTorch finds no {name} here, {count} in all: {here}; use one of them")
    return name


def known_device(name: str) -> torch.device:
    """Return a device by PyTorch's name for it, whether or not it is here; raise UnknownName for another name."""
    try:
        return torch.device(name)
    except RuntimeError:
        raise UnknownName("device", name, COMMON) from None


def move(value: Any, device: torch.device) -> Any:
    """Return a tensor, or the tensors in nested dicts and tuples, on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(move(each, device) for each in value)
    return {k: move(v, device) for k, v in value.items()} if isinstance(value, dict) else value


class OnDevice:
    """Return an environment's results on `device`; delegate everything else."""

    def __init__(self, env: Any, device: torch.device, physics: torch.device):
        self.env, self.device, self.physics = env, device, physics

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, **kwargs: Any) -> Any:
        """Reset the environment."""
        return move(self.env.reset(**kwargs)[0], self.device), {}

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        """Step the environment with actions of any device."""
        stepped: tuple[Any, ...] = move(self.env.step(actions.to(self.physics)), self.device)
        return stepped

    def still(self) -> Tensor:
        """Return the environment's actions that hold."""
        held: Tensor = self.env.still().to(self.device)
        return held

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Restore the environment; return the current observation."""
        return move(self.env.load_state_dict(state), self.device)


def on_device(env: Any, device: torch.device | str) -> Any:
    """Return the environment with results on `device`; one that does not say where its physics is has it on the CPU."""
    device, physics = torch.device(device), torch.device(getattr(env, "device", "cpu"))
    return env if device == physics else OnDevice(env, device, physics)
