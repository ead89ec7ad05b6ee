"""Checkpoint files: bit-identical round trip; damaged files raise."""

from __future__ import annotations

import json
import math
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from robot_rl.training.checkpoint import load_state, save_state
from robot_rl.util.errors import UserError

Same = Callable[[Any, Any], bool]

tensors = st.builds(
    lambda shape, dtype, seed: (100 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(
        [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
    ),
    st.integers(0, 99),
)
arrays = st.builds(
    lambda shape, dtype, seed: np.random.default_rng(seed).normal(size=shape, scale=100).astype(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([np.float32, np.float64, np.int64, np.int32, np.bool_]),
    st.integers(0, 99),
)
plain = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text()
keys = st.integers() | st.text() | st.booleans() | st.sampled_from(["tensor", "array", "dict", "list"])
trees = st.recursive(
    plain | tensors | arrays,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, derandomize=True, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees)
def test_round_trip_of_trees(tree: Any, tmp_path: Path, same: Same) -> None:
    save_state(tree, tmp_path / "a.safetensors")
    assert same(load_state(tmp_path / "a.safetensors"), tree)


def test_round_trip_of_an_optimizer(tmp_path: Path, same: Same) -> None:
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(net.parameters(), fused=True)
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    save_state(optimizer.state_dict(), tmp_path / "a")
    loaded = load_state(tmp_path / "a")
    assert list(loaded["state"]) == [0, 1], "integer keys"
    other = torch.optim.Adam(torch.nn.Linear(3, 2).parameters(), fused=True)
    other.load_state_dict(loaded)
    assert same(other.state_dict()["state"], optimizer.state_dict()["state"])


def test_round_trip_of_views_shared_memory_and_tuples(tmp_path: Path, same: Same) -> None:
    whole = torch.arange(12.0).view(3, 4)
    save_state({"t": whole.T, "row": whole[1], "same": whole, "pair": (1, whole[0])}, tmp_path / "a")
    loaded = load_state(tmp_path / "a")
    assert same(loaded, {"t": whole.T.contiguous(), "row": whole[1], "same": whole, "pair": [1, whole[0]]})
    loaded["row"][0] = 99.0
    assert whole[1, 0] == 4 and loaded["same"][1, 0] == 4


def test_numpy_numbers_become_plain_numbers(tmp_path: Path) -> None:
    save_state({"a": np.float64(0.1), "b": np.int64(3), "c": math.inf, "d": np.bool_(True)}, tmp_path / "a")
    assert load_state(tmp_path / "a") == {"a": 0.1, "b": 3, "c": math.inf, "d": True}


@pytest.mark.parametrize("damage", ["empty", "half", "last byte", "noise", "foreign", "bad tree", "folder", "missing"])
def test_damaged_file_raises_with_its_name(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "checkpoint.safetensors"
    save_state({"a": torch.arange(100.0), "b": [1, 2]}, file)
    data = file.read_bytes()
    if damage == "foreign":
        save_file({"a": torch.ones(3)}, file)
    elif damage == "bad tree":
        save_file({"0": torch.ones(3)}, file, {"tree": json.dumps({"dict": [["a", {"tensor": "7"}]]})})
    elif damage in ("folder", "missing"):
        file.unlink()
        file.mkdir() if damage == "folder" else None
    else:
        file.write_bytes({"empty": b"", "half": data[:200], "last byte": data[:-1], "noise": b"\x07" * 300}[damage])
    with pytest.raises(UserError, match=r"checkpoint\.safetensors"):
        load_state(file)


def test_full_disk_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_state({"a": 1}, file)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        with pytest.raises(UserError, match=r"cannot write .*a\.safetensors"):
            save_state({"a": torch.zeros(10_000)}, file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert load_state(file) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]
