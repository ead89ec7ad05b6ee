"""Export a policy as ONNX with torch's exporter. One graph holds normalization, history and unrolled sampling steps.

Metadata in the file and in policy.yaml describe the graph's inputs and outputs, see `policies.onnx`. The graph takes
instructions as encoded by `Policy.read`.
"""

import contextlib
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from policies.base import Policy
from policies.bundle import bundle_folder, load_bundle
from policies.errors import BundleError
from policies.feedforward import FeedforwardPolicy
from policies.networks.chunks import ChunkPolicy
from policies.onnx import (
    FILE,
    MEANING,
    NOISE,
    TOLERANCE,
    OnnxPolicy,
    describe,
    example_inputs,
    exportable,
    is_feedforward,
    require,
)
from robot_rl import __version__
from robot_rl.robots import robots
from robot_rl.util.errors import UserError
from robot_rl.util.files import replace_file

OPSET, IR = 18, 8
"""Versions of ONNX's operator set and of its file format, both from 2022."""
LARGEST = 2**31
"""Largest size of an ONNX file, bytes."""


class FeedforwardGraph(nn.Module):
    """Feed-forward policy and the update of its history, as a function of tensors."""

    def __init__(self, policy: FeedforwardPolicy):
        super().__init__()
        self.policy = policy

    def forward(self, observation: Tensor, start: Tensor | None = None, history: Tensor | None = None) -> Any:
        """Return actions (B, A) for observations (B, D); given a history (B, H, D), also the next history."""
        if start is None or history is None:
            return self._action(observation)
        newest = observation[:, None]
        frames = torch.where(start[:, None, None], newest, torch.cat([history[:, 1:], newest], 1))
        return self._action(frames), frames

    def _action(self, frames: Tensor) -> Tensor:
        return self.policy.transform(self.policy.actor(self.policy.normalizer(frames).flatten(1)), {})


class ChunkGraph(nn.Module):
    """Chunked policy as a function of tensors."""

    def __init__(self, policy: Policy, keys: list[str]):
        super().__init__()
        self.policy, self.keys = policy, keys

    def forward(self, *values: Tensor) -> Tensor:
        """Return the chunk (1, horizon, A) in [-1, 1] for one robot's inputs, given in the order of `keys`."""
        observation = dict(zip(self.keys, values, strict=True))
        if NOISE in observation:
            assert isinstance(self.policy, ChunkPolicy)
            return self.policy.base(observation, observation.pop(NOISE))
        return self.policy.act(observation, torch.Generator())


def build_graph(policy: Policy, metadata: dict[str, Any]) -> bytes:
    """Return the policy without exploration as a serialized ONNX model, with `metadata` as JSON values. BundleError if
    the policy is too large or torch cannot trace it."""
    onnx = require("onnx")
    require("onnxscript")
    weights = sum(v.numel() * v.element_size() for v in (*policy.parameters(), *policy.buffers()))
    if weights >= LARGEST:
        raise BundleError(
            f"the policy has {weights / 1e9:.1f} GB of weights, and an ONNX file holds {LARGEST / 1e9:.1f} GB; run it "
            "with --runtime torch"
        )
    batched = is_feedforward(policy)
    inputs = example_inputs(policy, 2 if batched else 1)
    graph = FeedforwardGraph(policy) if isinstance(policy, FeedforwardPolicy) else ChunkGraph(policy, list(inputs))
    names = ["action", "next_history"][: 1 + ("history" in inputs)] if batched else ["chunk"]
    batch = tuple({0: torch.export.Dim("batch")} for _ in inputs)
    with _quiet(), torch.no_grad():
        try:
            program = torch.onnx.export(
                graph.eval(), tuple(inputs.values()), dynamo=True, opset_version=OPSET, input_names=list(inputs),
                output_names=names, dynamic_shapes=batch if batched else None, verbose=False,
                custom_translation_table=_translations(),
            )  # fmt: skip
        except Exception as error:  # torch's tracer and exporter have no common base class of errors
            reason = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
            raise BundleError(
                f"torch cannot write this {policy.class_name} policy as a graph ({reason[0][:200]}); run it with "
                "--runtime torch"
            ) from None
    assert program is not None
    model = program.model_proto
    model.producer_name, model.producer_version, model.ir_version = "robot-rl", __version__, IR
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {name: json.dumps(value) for name, value in metadata.items()})
    data: bytes = model.SerializeToString()
    return data


def export_onnx(path: Path) -> tuple[Policy, OnnxPolicy, float]:
    """Write policy.onnx and policy.yaml into a bundle after checking that graph and policy agree. Returns the torch
    policy, the ONNX policy, and the largest difference between their actions."""
    folder, bundle = bundle_folder(path), load_bundle(path)
    policy = exportable(bundle.policy)
    require("onnxruntime")
    if bundle.contract is not None:
        bundle.check_robot(robots.get(bundle.interface.robot))
    metadata = describe(bundle.info, policy, folder / "policy.safetensors")
    metadata |= {"version": __version__, "commit": bundle.provenance.get("commit", "unknown")}
    model = build_graph(policy, metadata)
    exported = OnnxPolicy(model, policy)
    apart = exported.difference(policy)
    if not apart <= TOLERANCE:
        raise BundleError(f"{folder}: ONNX and torch differ by {apart:.2g} in [-1, 1]; nothing was written")
    meaning = require("yaml").safe_dump(metadata, sort_keys=False, allow_unicode=True, default_flow_style=None)
    for name, content in ((FILE, model), (MEANING, meaning.encode())):
        try:
            replace_file(folder / name, content)
        except OSError as error:
            raise UserError(
                f"cannot write {folder / name} ({error.strerror}); free space or make the folder writable"
            ) from error
    return policy, exported, apart


def _translations() -> dict[Any, Any]:
    """Return ONNX translations of the operators in transformers' attention masks that the exporter cannot translate."""
    from onnxscript import BOOL, INT64, opset18

    op: Any = opset18

    def is_all_true(x: BOOL) -> BOOL:
        every: BOOL = op.Cast(op.ReduceMin(op.Cast(x, to=INT64.dtype), keepdims=0), to=BOOL.dtype)
        return every

    return {torch.ops.aten._is_all_true.default: is_all_true}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's messages about optional packages, and disable attention kernels that cannot be traced."""
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
