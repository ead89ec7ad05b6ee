"""Checkpoints: nested state in one safetensors file, with values other than tensors as JSON metadata. No pickle."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from robot_rl.util.errors import UserError
from robot_rl.util.files import replacing


def save_state(state: Any, path: Path) -> None:
    """Write a tree of dicts, lists, tensors, arrays and plain values to a file that appears when it is complete."""
    tensors: dict[str, torch.Tensor] = {}
    tree = _flatten(state, tensors)
    try:
        with replacing(path) as part:
            save_file(tensors, part, {"tree": json.dumps(tree)})
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write {path} ({error}); free space or choose another --out") from error


def load_state(path: Path) -> Any:
    """Read the tree of a file of `save_state`; tuples come back as lists."""
    try:
        with safe_open(path, "pt") as file:
            tree = json.loads((file.metadata() or {})["tree"])
            tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118 - safe_open is not a mapping
        return _restore(tree, tensors)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (SafetensorError, KeyError, json.JSONDecodeError, OSError) as error:
        raise UserError(f"{path} is damaged or no checkpoint ({error}); start again without --resume") from None


def _flatten(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor | np.ndarray):
        name = str(len(tensors))
        # Copies: safetensors does not save views that share memory.
        if isinstance(value, np.ndarray):
            tensors[name] = torch.from_numpy(value.copy())
            return {"array": name}
        tensors[name] = value.detach().clone().contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        # Pairs: an optimizer has integer keys, JSON objects only strings.
        return {"dict": [[k, _flatten(v, tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return {"list": [_flatten(v, tensors) for v in value]}
    if isinstance(value, np.generic):
        return value.item()
    return value


def _restore(node: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if not isinstance(node, dict):
        return node
    ((kind, value),) = node.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "array":
        return tensors[value].numpy()
    if kind == "dict":
        return {k: _restore(v, tensors) for k, v in value}
    return [_restore(v, tensors) for v in value]
