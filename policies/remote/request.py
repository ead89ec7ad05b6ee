"""Requests of clients: one robot's observation, and options beyond openpi's protocol.

Observation: `observation.state` (D,), `observation.images.<camera>` (height, width, 3) uint8, and the instruction as
text in `prompt`. Options:

    seed      of the sampler's noise for this chunk
    reset     true: a new episode starts
    prefix    {"actions": (horizon, A) in [-1, 1], "weights": (horizon,), "guidance"}: actions that the chunk continues
    robots    n: all arrays have a leading dimension of n; `reset` may list robots, and the answer has `unit_actions`
    rng       state of torch's generator (5056 bytes); the answer has the next state
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.base import Observation, Policy, Prefix
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import LANGUAGE, ObservationSpec
from robot_rl.util.errors import ConfigError

OPTIONS = ("prompt", "seed", "rng", "prefix", "reset", "robots")


@dataclass
class Request:
    """A client's request after validation."""

    observation: Observation
    """Tensors whose leading dimension is the number of robots."""
    robots: int | None
    """Number of robots; None: one robot, whose arrays have no leading dimension."""
    rng: torch.Generator | None
    """Generator of the policy's noise; None: the connection's generator."""
    prefix: Prefix | None
    reset: Tensor | bool
    """Indices of the robots that start a new episode; True: all robots, False: none."""


def read_request(message: Any, spec: ObservationSpec, policy: Policy) -> Request:
    """Validate a client's message; ConfigError if the message does not fit the spec or the policy."""
    if not isinstance(message, dict):
        raise ConfigError(f"a request is a table, not {type(message).__name__}")
    robots = message.get("robots")
    if robots is not None and (type(robots) is not int or robots < 1):
        raise ConfigError(f"robots is {robots!r}; give a number of robots, or leave it out")
    observation = _observation(message, spec, robots)
    spec.check(observation)
    if robots not in (None, (count := len(next(iter(observation.values()))))):
        raise ConfigError(f"robots is {robots}, and the observation is of {count}")
    prefix = _prefix(message.get("prefix"), policy, robots)
    if prefix is not None and prefix.actions.shape != (count, policy.horizon, policy.size.action):
        wanted = (policy.horizon, policy.size.action)
        raise ConfigError(f"prefix.actions have shape {tuple(prefix.actions.shape[1:])}, not {wanted}")
    return Request(observation, robots, _generator(message), prefix, _reset(message.get("reset")))


def _observation(message: Mapping[Any, Any], spec: ObservationSpec, robots: int | None) -> Observation:
    observation = {}
    for key, value in message.items():
        if key in OPTIONS:
            continue
        if key not in spec:
            raise ConfigError(f"the observation has {key!r}, which is not in its spec: {', '.join(spec)}")
        observation[key] = _tensor(key, value, spec[key].dtype == "float32", robots is None)
    if LANGUAGE in spec and LANGUAGE not in observation:
        prompt = message.get("prompt")
        texts = [prompt] if robots is None else prompt
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ConfigError("the observation lacks the instruction; send it in words, as prompt")
        observation[LANGUAGE] = encode(texts)
    return observation


def _tensor(name: str, value: Any, numbers: bool, one: bool) -> Tensor:
    """Return an array as a tensor; `one` adds a leading dimension, `numbers` converts all floats to float32."""
    if not isinstance(value, np.ndarray):
        raise ConfigError(f"{name!r} is {type(value).__name__}, not an array")
    if numbers and value.dtype.kind == "f":
        value = value.astype(np.float32)
    tensor = torch.from_numpy(value)
    return tensor[None] if one else tensor


def _generator(message: Mapping[Any, Any]) -> torch.Generator | None:
    seed, state = message.get("seed"), message.get("rng")
    if seed is not None:
        if type(seed) is not int or not 0 <= seed < 2**63:
            raise ConfigError(f"seed is {seed!r}; give a number from 0 to 2^63 - 1")
        return torch.Generator().manual_seed(seed)
    if state is None:
        return None
    try:
        return torch.Generator().set_state(torch.from_numpy(state))
    except (TypeError, RuntimeError) as error:
        raise ConfigError(f"rng is no state of a generator ({error})") from None


def _prefix(value: Any, policy: Policy, robots: int | None) -> Prefix | None:
    if value is None:
        return None
    if not getattr(policy, "inpaints", False):
        raise ConfigError(f"a {policy.class_name} policy continues no prefix; leave it out")
    if not isinstance(value, dict) or value.keys() != {"actions", "weights", "guidance"}:
        raise ConfigError("prefix is a table of actions, weights and guidance")
    actions, weights = (_tensor(f"prefix.{k}", value[k], True, robots is None) for k in ("actions", "weights"))
    guidance = value["guidance"]
    if not isinstance(guidance, int | float) or not 0 <= guidance < float("inf"):
        raise ConfigError(f"prefix.guidance is {guidance!r}; give a number from 0")
    if weights.shape != actions.shape[:-1] or not ((weights >= 0) & (weights <= 1)).all():
        raise ConfigError("prefix.weights are numbers from 0 to 1, one for each action")
    if actions.dtype is not torch.float32 or not actions.isfinite().all():
        raise ConfigError("prefix.actions are finite numbers")
    return Prefix(actions, weights, float(guidance))


def _reset(value: Any) -> Tensor | bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    if not isinstance(value, list) or not all(type(row) is int and row >= 0 for row in value):
        raise ConfigError(f"reset is {value!r}; give true, or a list of robots")
    return torch.tensor(value, dtype=torch.long) if value else False
