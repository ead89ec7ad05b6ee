"""Write a policy that needs only this moment's observation as one ONNX graph, by torch's exporter; a chunk of one robot
comes out.

    observation.state (1, D), pictures (1, H, W, 3) uint8, observation.language (1, L), noise (1, horizon, A) -> chunk

An instruction goes in as what `read` makes of it: numbers of words, or features. Steps of sampling are unrolled.
"""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from policies.base import Policy
from policies.errors import BundleError
from policies.networks.chunks import ChunkPolicy
from policies.onnx import require
from policies.onnx_chunks import NOISE, example, graph_inputs
from robot_rl import __version__

OPSET = 18
LARGEST = 2**31
"""Bytes that an ONNX file can hold."""


class Graph(nn.Module):
    """A policy as a function of tensors."""

    def __init__(self, policy: Policy, keys: list[str]):
        super().__init__()
        self.policy, self.keys = policy, keys

    def forward(self, *values: Tensor) -> Tensor:
        """Return chunks (1, horizon, A) in [-1, 1] for the values of the keys."""
        observation = dict(zip(self.keys, values, strict=True))
        if NOISE in observation:
            assert isinstance(self.policy, ChunkPolicy)
            return self.policy.base(observation, observation.pop(NOISE))
        return self.policy.act(observation, torch.Generator())


def build_graph(policy: Policy, metadata: dict[str, Any]) -> bytes:
    """Return the policy as an ONNX model; every value of the metadata is JSON. BundleError where torch cannot trace
    it."""
    onnx = require("onnx")
    require("onnxscript")
    weights = sum(v.numel() * v.element_size() for v in (*policy.parameters(), *policy.buffers()))
    if weights >= LARGEST:
        raise BundleError(
            f"the policy has {weights / 1e9:.1f} GB of weights, and an ONNX file holds {LARGEST / 1e9:.1f} GB; run it "
            "with --runtime torch"
        )
    given = graph_inputs(policy, example(policy, 1, torch.Generator().manual_seed(0)), torch.Generator())
    with _quiet(), torch.no_grad():
        try:
            program = torch.onnx.export(
                Graph(policy, list(given)).eval(), tuple(given.values()), dynamo=True, opset_version=OPSET,
                input_names=list(given), output_names=["chunk"], verbose=False,
                custom_translation_table=_translations(),
            )  # fmt: skip
        except Exception as error:  # of torch's tracer and of its exporter, without a common base
            said = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
            raise BundleError(
                f"torch cannot write this {policy.class_name} policy as a graph ({said[0][:200]}); run it with "
                "--runtime torch"
            ) from None
    assert program is not None
    model = program.model_proto
    model.producer_name, model.producer_version = "robot-rl", __version__
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {name: json.dumps(value) for name, value in metadata.items()})
    data: bytes = model.SerializeToString()
    return data


def _translations() -> dict[Any, Any]:
    """Return operators of transformers' masks that the exporter lacks."""
    from onnxscript import BOOL, INT64, opset18

    op: Any = opset18

    def is_all_true(x: BOOL) -> BOOL:
        every: BOOL = op.Cast(op.ReduceMin(op.Cast(x, to=INT64.dtype), keepdims=0), to=BOOL.dtype)
        return every

    return {torch.ops.aten._is_all_true.default: is_all_true}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Trace without messages about packages that are not needed, and without attention that cannot be traced."""
    log, fast = logging.getLogger("torch.onnx"), torch.backends.mha.get_fastpath_enabled()
    level = log.level
    log.setLevel(logging.ERROR)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
        torch.backends.mha.set_fastpath_enabled(fast)
