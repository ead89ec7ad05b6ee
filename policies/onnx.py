"""Run policy.onnx in ONNX Runtime, and describe its inputs and outputs.

The graph of a feed-forward policy takes a batch of observations. It shifts and resets their history, which the caller
passes to the next call. Other policies' graphs take one robot's current observation, and noise if the policy samples::

    action, next_history = graph(observation, start, history)    (history 1: action = graph(observation))
    chunk = graph(observation.state, pictures, observation.language, noise)
"""

import hashlib
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.base import Observation, Policy
from policies.errors import BundleError
from policies.feedforward import DecodedPolicy, FeedforwardPolicy, require_count, require_shape
from policies.networks.chunks import ChunkPolicy
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import IMAGES, LANGUAGE, STATE
from robot_rl.interface.pipeline import Interface
from robot_rl.interface.spec import VectorSpec
from robot_rl.robots import robots
from robot_rl.util import errors

FILE, MEANING = "policy.onnx", "policy.yaml"
"""Names of two files: the graph with its metadata, and the metadata alone."""
NOISE = "noise"
"""Name of the graph's input for noise."""
TOLERANCE = 1e-4
"""Largest accepted difference between the actions of ONNX and torch, in units of the action range [-1, 1]."""
OF_ROBOT = ("robot", "joint_names", "stiffness", "damping", "home", "command_rate")
"""Names of the metadata from the robot's spec; all other metadata are from policy.json."""


require = partial(errors.require, use="ONNX", extra="onnx")


def exportable(policy: Policy) -> Policy:
    """Return the policy; raise BundleError if the policy cannot be exported."""
    if is_feedforward(policy) or policy.traceable:
        return policy
    raise BundleError(
        f"a {policy.class_name} policy has no ONNX form: its actions depend on more than one moment and drawn noise; "
        "run it with --runtime torch"
    )


def is_feedforward(policy: Policy) -> bool:
    """Return whether the policy's action is a function of its history alone, without a second network."""
    return isinstance(policy, FeedforwardPolicy) and not isinstance(policy, DecodedPolicy)


def open_session(model: bytes) -> tuple[Any, dict[str, Any]]:
    """Return an ONNX Runtime session with torch's number of threads, and the model's metadata."""
    runtime = require("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # leave the core to the control loop
    options.log_severity_level = 4  # errors are raised anyway
    session: Any = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session, {k: json.loads(v) for k, v in session.get_modelmeta().custom_metadata_map.items()}


class OnnxPolicy(Policy):
    """Exported policy without exploration; only feed-forward policies are evaluated as a batch."""

    def __init__(self, model: bytes, reference: Policy):
        """`reference` is the exported policy in torch: it defines sizes, encodes instructions and draws noise."""
        super().__init__()
        self.size, self.config = reference.size, reference.config
        self.horizon, self.execute = reference.horizon, reference.execute
        self._reference = [reference]  # in a list, so its weights are not registered as submodules
        self.session, self.metadata = open_session(model)
        self.batched = is_feedforward(reference)
        self.frames = reference.config.history if self.batched else 1
        self.history: np.ndarray[Any, Any] | None = None
        """(B, history, D) the last frames, oldest first"""
        self.start = np.ones(0, dtype=np.bool_)
        """(B,) bool, true for environments whose next frame begins an episode"""

    @property
    def words(self) -> tuple[str, ...]:
        return self._reference[0].words

    def reset(self, ids: Tensor | None = None) -> None:
        if ids is None:
            self.history = None
        elif self.history is not None:
            self.start[ids.cpu().numpy()] = True

    @torch.no_grad()
    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        state = observation[STATE]
        require_shape(state, self.size.observation)
        inputs = {key: v.numpy() for key, v in graph_inputs(self._reference[0], observation, rng).items()}
        if self.batched:
            return torch.from_numpy(self._batch(inputs))[:, None]
        rows = [
            self.session.run(["chunk"], {key: values[k : k + 1] for key, values in inputs.items()})[0]
            for k in range(len(state))
        ]
        return torch.from_numpy(rows[0] if len(rows) == 1 else np.concatenate(rows))

    def _batch(self, inputs: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """Return the actions (B, A) of all robots and update the history."""
        action: np.ndarray[Any, Any]
        if self.frames == 1:
            (action,) = self.session.run(["action"], inputs)
            return action
        count = len(inputs["observation"])
        if self.history is None:
            self.history = np.zeros((count, self.frames, self.size.observation), dtype=np.float32)
            self.start = np.ones(count, dtype=np.bool_)
        require_count(len(self.history), count)
        inputs |= {"start": self.start, "history": self.history}
        action, self.history = self.session.run(["action", "next_history"], inputs)
        self.start[:] = False
        return action

    def peek(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> Tensor:
        if not self.batched:
            return super().peek(observation, rows, rng)
        kept = self.history, self.start.copy()
        chunk = self.act(observation, rng)  # all rows, because the history covers every environment
        self.history, self.start = kept
        return chunk[rows]

    def difference(self, reference: Policy) -> float:
        """Return the largest difference from the actions of `reference` over random episodes; both policies are reset.
        Infinity if only one policy returns NaN for a NaN observation, because the shield must be able to reject NaN."""
        rng, rows, worst = torch.Generator().manual_seed(0), 8 if self.batched else 2, 0.0
        self.reset()
        reference.reset()
        steps = self.frames + 8
        for k in range(steps):
            observation = example(reference, rows, rng)
            if k == steps - 1:
                observation[STATE][0] = torch.nan
            a, b = (p.act(observation, torch.Generator().manual_seed(k)).cpu() for p in (self, reference))
            worst = max(worst, float((a - b).abs().nan_to_num(0.0).max()))
            if a.shape != b.shape or not torch.equal(a.isnan(), b.isnan()):
                worst = torch.inf
            ids = torch.randint(0, rows, (2,), generator=rng)
            self.reset(ids)
            reference.reset(ids)
        self.reset()
        reference.reset()
        return worst


def graph_inputs(policy: Policy, observation: Observation, rng: torch.Generator) -> dict[str, Tensor]:
    """Return the graph's inputs for observations with leading dimension B, without the history."""
    state = observation[STATE].cpu().float().contiguous()
    if is_feedforward(policy):
        return {"observation": state}
    inputs = {STATE: state} | {key: observation[key].cpu().contiguous() for key in policy.size.extra_inputs}
    if LANGUAGE in inputs:
        inputs[LANGUAGE] = policy.read(inputs[LANGUAGE])
    if isinstance(policy, ChunkPolicy):
        inputs[NOISE] = policy.noise(len(state), rng).cpu()
    return inputs


def example_inputs(policy: Policy, rows: int = 1) -> dict[str, Tensor]:
    """Return random inputs of a policy's graph, including the history if the graph has one."""
    rng = torch.Generator().manual_seed(0)
    inputs = graph_inputs(policy, example(policy, rows, rng), rng)
    if is_feedforward(policy) and policy.config.history > 1:
        frames = torch.randn(rows, policy.config.history, policy.size.observation, generator=rng)
        inputs |= {"start": torch.zeros(rows, dtype=torch.bool), "history": frames}
    return inputs


def example(policy: Policy, rows: int, rng: torch.Generator) -> Observation:
    """Return random observations (rows, ...) with the sizes of a policy's inputs."""
    state = torch.randn(rows, policy.size.observation, generator=rng)
    if isinstance(policy, FeedforwardPolicy):  # distributed like the training data
        state = policy.normalizer.mean + 2 * policy.normalizer.std * state
    observation = {STATE: state}
    for key, field in policy.size.extra_inputs.items():
        shape = (rows, *field.shape)
        if key == LANGUAGE:
            observation[key] = encode([f"move the thing {k}" for k in range(rows)])
        elif field.dtype == "uint8":
            observation[key] = torch.randint(0, 256, shape, generator=rng, dtype=torch.uint8)
        else:
            observation[key] = torch.randn(shape, generator=rng)
    return observation


def describe(info: EnvInfo, policy: Policy, weights: Path) -> dict[str, Any]:
    """Return the metadata of the ONNX file, derived from robot, policy.json and policy.safetensors."""
    metadata = {
        "task": info.task,
        "control_rate": info.rate,
        "horizon": policy.horizon,
        "execute": policy.execute,
        "history": getattr(policy.config, "history", 1),
        "inputs": _inputs(policy, info),
        "outputs": _outputs(policy, info),
        "conventions": {
            "quaternions": "w x y z",
            "rotations": "the first two columns of the matrix, one after the other",
            "rates": "Hz; an action lasts a control period, 1 / control_rate",
            "chunks": "the first `execute` of `horizon` actions are executed, then the next chunk is asked for",
        },
        "weights": hashlib.sha256(weights.read_bytes()).hexdigest(),
    }
    metadata |= _of_robot(info.interface) if info.interface else {}
    plain: dict[str, Any] = json.loads(json.dumps(metadata))
    return plain


def _of_robot(interface: Interface) -> dict[str, Any]:
    """Return the metadata that only policies for robots have."""
    robot = robots.get(interface.robot)
    return {
        "robot": robot.name,
        "joint_names": robot.joint_names,
        "home": robot.home,
        "stiffness": [joint.stiffness for joint in robot.joints],
        "damping": [joint.damping for joint in robot.joints],
        "units": {"home": "rad", "stiffness": "N m/rad", "damping": "N m s/rad"},
        "command_rate": robot.command_rate,
        "controller": asdict(interface.controller),
        "gait": interface.gait,
        "command": VectorSpec(interface.command).to_json(),
    }


def _inputs(policy: Policy, info: EnvInfo) -> dict[str, Any]:
    """Return shape, type and meaning of each input of the graph."""
    first = "batch" if is_feedforward(policy) else 1
    inside = "none: the graph normalizes"
    inputs: dict[str, Any] = {}
    for key, value in example_inputs(policy).items():
        about: dict[str, Any] = {}
        if key in (STATE, "observation"):
            about = {"normalization": inside, "fields": info.state.to_json()}
        elif key.startswith(IMAGES):
            about = {"layout": "height, width, channels (red, green, blue)", "range": [0, 255], "normalization": inside}
            about["meaning"] = "the newest picture, cropped about its centre to these proportions and averaged down"
        elif key == LANGUAGE:
            texts = [each.text for each in info.interface.instructions] if info.interface else []
            values = policy.read(encode(texts)).tolist() if texts else []
            about = {"meaning": "numbers that stand for the instruction"}
            about |= {"values": dict(zip(texts, values, strict=True))} if texts else {}
        elif key == NOISE:
            about = {"meaning": "drawn from a standard normal distribution for each chunk"}
        elif key == "start":
            about = {"meaning": "true for the first frame of an episode"}
        elif key == "history":
            about = {"order": "oldest frame first", "meaning": "next_history of the call before; where start, ignored"}
        kind = str(value.dtype).removeprefix("torch.")
        inputs[key] = {"shape": [first, *value.shape[1:]], "dtype": kind} | about
    return inputs


def _outputs(policy: Policy, info: EnvInfo) -> dict[str, Any]:
    """Return shape, type and meaning of each output of the graph."""
    size, batched = info.actions.size, is_feedforward(policy)
    action = {
        "shape": ["batch", size] if batched else [1, policy.horizon, size], "dtype": "float32", "range": [-1.0, 1.0],
        "meaning": "physical = low + (value + 1) / 2 * (high - low)", "fields": info.actions.to_json(),
    }  # fmt: skip
    if batched and policy.config.history > 1:
        return {"action": action, "next_history": {"meaning": "the history of the next call"}}
    return {"action" if batched else "chunk": action}


def load_onnx(folder: Path, policy: Policy, info: EnvInfo) -> OnnxPolicy:
    """Return the policy in a bundle's policy.onnx; BundleError if metadata, weights or actions differ from the
    bundle."""
    reference, file = exportable(policy), folder / FILE
    again = f"run `robot-rl export {folder}`"
    if not file.is_file():
        raise BundleError(f"{folder} has no {FILE}; {again}")
    require("onnxruntime")
    try:
        loaded = OnnxPolicy(file.read_bytes(), reference)
    except Exception as error:  # ONNX Runtime has no common base class of errors
        raise BundleError(f"{file} is damaged ({str(error).splitlines()[0]}); {again}") from None
    ours, theirs = describe(info, reference, folder / "policy.safetensors"), loaded.metadata
    for name in ours:
        if name not in theirs:
            raise BundleError(f"{file} has no {name} in its metadata; {again}")
        if theirs[name] != ours[name] and name == "weights":
            raise BundleError(f"{file} was exported from different weights than policy.safetensors; {again}")
        if theirs[name] != ours[name]:
            where = f"on robot {ours['robot']}" if name in OF_ROBOT else "in policy.json"
            path, one, other = _first_difference(theirs[name], ours[name], name)
            raise BundleError(f"{file} does not fit: {path} is {one} in it, {other} {where}; {again}")
    try:
        apart = loaded.difference(reference)
    except Exception as error:
        raise BundleError(f"{file} does not run ({str(error).splitlines()[0]}); {again}") from None
    if not apart <= TOLERANCE:
        raise BundleError(f"{file} differs from policy.safetensors: actions differ by {apart:.2g}; {again}")
    return loaded


def _first_difference(one: Any, other: Any, path: str) -> tuple[str, Any, Any]:
    """Return the path of the first difference between two JSON values, and both values; a list of scalars counts as one
    value."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            if one.get(key) != other.get(key):
                return _first_difference(one.get(key), other.get(key), f"{path}.{key}")
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for k, (a, b) in enumerate(zip(one, other, strict=True)):
            if a != b and isinstance(a, dict):
                return _first_difference(a, b, f"{path}.{k}")
    return path, one, other
