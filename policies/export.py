"""Write a feed-forward policy as ONNX: normalizer, history and network in one graph, the interface in its metadata.

The graph is written node by node, so it does not depend on torch's tracer and every runtime since 2022 reads it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from policies.base import Policy
from policies.bundle import bundle_folder, load_bundle
from policies.errors import BundleError
from policies.feedforward import FeedforwardPolicy
from policies.metadata import FILE, Exported, describe, exportable, in_onnx
from policies.onnx import TOLERANCE, require
from robot_rl import __version__
from robot_rl.robots import robots
from robot_rl.util.errors import UserError
from robot_rl.util.files import replace_file

OPSET, IR = 17, 8
"""Versions of ONNX's operators and of its file format, both of 2022."""


def build(policy: FeedforwardPolicy, metadata: dict[str, Any]) -> bytes:
    """Return the policy without exploration as an ONNX model; every value of the metadata is JSON.

    Inputs: observation (B, D) float32, unnormalized; with a history H above 1 also start (B,) bool, true at the first
    frame of an episode, and history (B, H, D) float32, the last call's next_history (ignored where start is true).
    Outputs: action (B, A) float32 in [-1, 1]; with a history also next_history (B, H, D).
    """
    onnx = require("onnx")
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    size, length = policy.size, policy.config.history
    nodes: list[Any] = []
    constants: list[Any] = []

    def constant(value: torch.Tensor) -> str:
        name = f"constant_{len(constants)}"
        constants.append(onnx.numpy_helper.from_array(value.detach().cpu().numpy(), name))
        return name

    def add(kind: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        to = to or f"{kind.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [to], **attributes))
        return to

    def clip(x: str, limit: float, to: str = "") -> str:
        return add("Clip", x, constant(torch.tensor(-limit)), constant(torch.tensor(limit)), to=to)

    inputs = [helper.make_tensor_value_info("observation", float32, ["batch", size.observation])]
    outputs = [helper.make_tensor_value_info("action", float32, ["batch", size.action])]
    x = "observation"
    if length > 1:
        frames = ["batch", length, size.observation]
        inputs.append(helper.make_tensor_value_info("start", onnx.TensorProto.BOOL, ["batch"]))
        inputs.append(helper.make_tensor_value_info("history", float32, frames))
        outputs.append(helper.make_tensor_value_info("next_history", float32, frames))
        newest = add("Unsqueeze", "observation", constant(torch.tensor([1])))
        older = add("Slice", "history", *(constant(torch.tensor([k])) for k in (1, length, 1)))
        moved = add("Concat", older, newest, axis=1)
        starts = add("Unsqueeze", "start", constant(torch.tensor([1, 2])))
        x = add("Where", starts, newest, moved, to="next_history")
    x = add("Div", add("Sub", x, constant(policy.normalizer.mean)), constant(policy.normalizer.std))
    x = clip(x, policy.normalizer.limit)
    if length > 1:
        x = add("Reshape", x, constant(torch.tensor([-1, length * size.observation])))
    for layer in policy.actor:
        if isinstance(layer, nn.Linear):
            x = add("Gemm", x, constant(layer.weight), constant(layer.bias), transB=1)
        elif isinstance(layer, nn.ELU):
            x = add("Elu", x, alpha=float(layer.alpha))
        else:
            raise BundleError(f"layer {type(layer).__name__} of the policy's network cannot be exported")
    clip(x, 1.0, to="action")

    graph = helper.make_graph(nodes, "policy", inputs, outputs, constants)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR,
        producer_name="robot-rl", producer_version=__version__,
    )  # fmt: skip
    helper.set_model_props(model, {name: json.dumps(value) for name, value in metadata.items()})
    onnx.checker.check_model(model, full_check=True)
    data: bytes = model.SerializeToString()
    return data


def export_onnx(path: Path) -> tuple[Policy, Exported, float]:
    """Write policy.onnx into a bundle, once it is shown to act alike.

    Returns the policy in torch, the same in ONNX Runtime, and the largest difference of their actions.
    """
    folder, bundle = bundle_folder(path), load_bundle(path)
    policy = exportable(bundle.policy)
    require("onnxruntime")
    if bundle.contract is not None:
        bundle.check_robot(robots.get(bundle.interface.robot))
    metadata = describe(bundle.info, policy, folder / "policy.safetensors")
    metadata |= {"version": __version__, "commit": bundle.provenance.get("commit", "unknown")}
    if isinstance(policy, FeedforwardPolicy):
        model = build(policy, metadata)
    else:
        from policies.graph import build_graph

        model = build_graph(policy, metadata)
    exported = in_onnx(model, policy)
    apart = exported.difference(policy)
    if not apart <= TOLERANCE:
        raise BundleError(f"{folder}: ONNX and torch differ by {apart:.2g} in [-1, 1]; nothing was written")
    try:
        replace_file(folder / FILE, model)
    except OSError as error:
        raise UserError(
            f"cannot write {folder / FILE} ({error.strerror}); free space or make the folder writable"
        ) from error
    return policy, exported, apart
