"""Devices by name."""

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
