"""PyTorch devices by name."""

from typing import Any

import torch
from torch import Tensor

from robot_rl.util.errors import ConfigError, UnknownName

COMMON = ("auto", "cpu", "cuda", "cuda:0", "cuda:1", "mps", "xpu")
"""Device names to suggest for an unknown name."""


def find_device(name: str) -> str:
    """Check and return a PyTorch device name; "auto" is cuda if available, else cpu.

    Raises:
        UnknownName: PyTorch does not know the name.
        ConfigError: this machine does not have the device.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    device = known_device(name)
    kind: Any = getattr(torch, device.type, None)
    count = kind.device_count() if hasattr(kind, "device_count") else 0
    if not count:
        raise ConfigError(f"PyTorch finds no {device.type} device here; use --device cpu or auto")
    if (device.index or 0) >= count:
        known = ", ".join(f"{device.type}:{number}" for number in range(count))
        raise ConfigError(f"PyTorch finds no {name} here, {count} in all: {known}; use one of them")
    return name


def known_device(name: str) -> torch.device:
    """Return the device of a PyTorch name, available or not; raise UnknownName for an invalid name."""
    try:
        return torch.device(name)
    except RuntimeError:
        raise UnknownName("device", name, COMMON) from None


def move(value: Any, device: torch.device) -> Any:
    """Move a tensor, or all tensors in nested dicts and tuples, to a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(move(each, device) for each in value)
    return {k: move(v, device) for k, v in value.items()} if isinstance(value, dict) else value
