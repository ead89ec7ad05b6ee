"""Write and check the metadata of policy.onnx: it must match the robot, the interface and the weights."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from policies.base import Policy
from policies.errors import BundleError
from policies.feedforward import FeedforwardPolicy
from policies.onnx import TOLERANCE, OnnxPolicy, require
from policies.onnx_chunks import OnnxChunks
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.pipeline import Interface, Pipeline
from robot_rl.interface.spec import VectorSpec
from robot_rl.robots import robots

FILE = "policy.onnx"
OF_ROBOT = ("robot", "joint_names", "stiffness", "damping", "home", "command_rate")
"""Metadata that come from the robot's spec; the rest come from policy.json."""


Exported = OnnxPolicy | OnnxChunks


def exportable(policy: Policy) -> Policy:
    """Return the policy if it can be exported; raise BundleError otherwise."""
    if type(policy) is FeedforwardPolicy or policy.traceable:  # not what is built on a feed-forward one
        return policy
    raise BundleError(
        f"a {policy.class_name} policy has no ONNX form: its actions depend on more than one moment and drawn noise; "
        "run it with --runtime torch"
    )


def in_onnx(model: bytes, policy: Policy) -> Exported:
    """Return a model as a policy that acts as another does."""
    if isinstance(policy, FeedforwardPolicy):
        return OnnxPolicy(model, policy.size, policy.config)
    return OnnxChunks(model, policy)


def describe(info: EnvInfo, policy: Policy, weights: Path) -> dict[str, Any]:
    """Return the metadata of the ONNX file; robot, policy.json and policy.safetensors must agree with it."""
    chunks = {} if type(policy) is FeedforwardPolicy else {"horizon": policy.horizon, "execute": policy.execute}
    low_high = [pair for f in info.actions.fields for pair in zip(f.low, f.high, strict=True)]
    metadata = {
        "task": info.task,
        "action_names": info.actions.names,
        "action_scale": [(high - low) / 2 for low, high in low_high],
        "action_offset": [(high + low) / 2 for low, high in low_high],
        "observations": [[name, 1] for name in info.state.names],
        "history": getattr(policy.config, "history", 1),
        "control_rate": info.rate,
        "weights": hashlib.sha256(weights.read_bytes()).hexdigest(),
    }
    metadata |= chunks | (_of_robot(info.interface) if info.interface else {})
    plain: dict[str, Any] = json.loads(json.dumps(metadata))
    return plain


def _of_robot(interface: Interface) -> dict[str, Any]:
    """Return the metadata of a policy that a robot runs."""
    robot = robots.get(interface.robot)
    terms = zip(interface.observations, Pipeline(interface, robot).observer.terms, strict=True)
    return {
        "robot": robot.name,
        "joint_names": robot.joint_names,
        "stiffness": [joint.stiffness for joint in robot.joints],
        "damping": [joint.damping for joint in robot.joints],
        "home": robot.home,
        "controller": asdict(interface.controller),
        "observations": [[name, len(term.field.dims)] for name, term in terms],
        "command_rate": robot.command_rate,
        "gait": interface.gait,
        "command": VectorSpec(interface.command).to_json(),
    }


def load_onnx(folder: Path, policy: Policy, info: EnvInfo) -> Exported:
    """Return the policy of a bundle's policy.onnx; raise BundleError if robot, interface, weights or outputs differ."""
    reference, file = exportable(policy), folder / FILE
    again = f"run `robot-rl export {folder}`"
    if not file.is_file():
        raise BundleError(f"{folder} has no {FILE}; {again}")
    require("onnxruntime")
    try:
        loaded = in_onnx(file.read_bytes(), reference)
    except Exception as error:  # the runtime has a dozen error types without a common base
        raise BundleError(f"{file} is damaged ({str(error).splitlines()[0]}); {again}") from None
    ours, theirs = describe(info, reference, folder / "policy.safetensors"), loaded.metadata
    for name, value in ours.items():
        if name not in theirs:
            raise BundleError(f"{file} has no {name} in its metadata; {again}")
        if theirs[name] != value and name == "weights":
            raise BundleError(f"{file} was exported from different weights than policy.safetensors; {again}")
        if theirs[name] != value:
            where = f"on robot {ours['robot']}" if name in OF_ROBOT else "in policy.json"
            raise BundleError(f"{file} does not fit: {name} is {theirs[name]} in it, {value} {where}; {again}")
    try:
        apart = loaded.difference(reference)
    except Exception as error:
        raise BundleError(f"{file} does not run ({str(error).splitlines()[0]}); {again}") from None
    if not apart <= TOLERANCE:
        raise BundleError(f"{file} differs from policy.safetensors: actions differ by {apart:.2g}; {again}")
    return loaded
