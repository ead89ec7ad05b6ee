"""Run a feed-forward policy in ONNX Runtime.

The graph shifts and resets the observation history itself; a caller in any language only passes back the last output::

    action, next_history = graph(observation, start, history)    (history 1: action = graph(observation))
"""

from __future__ import annotations

import importlib
import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.base import Observation, Policy, Size
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from robot_rl.util.errors import UserError

TOLERANCE = 1e-4
"""Largest difference from torch's action, in units of the action range [-1, 1]."""


def require(name: str) -> Any:
    """Import and return a package that only ONNX needs; raise UserError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(
            f"ONNX needs the package {name}, which is not installed: pip install -c constraints.txt -e '.[onnx]'"
        ) from None


def open_session(model: bytes) -> tuple[Any, dict[str, Any]]:
    """Return ONNX Runtime's session of a model, on as many threads as torch has, and the model's metadata."""
    runtime = require("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the control loop needs the core
    options.log_severity_level = 4  # errors are raised as well
    session: Any = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session, {k: json.loads(v) for k, v in session.get_modelmeta().custom_metadata_map.items()}


class OnnxPolicy(Policy):
    """Act as the exported `FeedforwardPolicy` without exploration."""

    horizon = execute = 1

    def __init__(self, model: bytes, size: Size, config: FeedforwardConfig):
        super().__init__()
        self.size, self.config = size, config
        self.session, self.metadata = open_session(model)
        self.history: np.ndarray[Any, Any] | None = None
        """(B, history, D) the last frames, oldest first"""
        self.start = np.ones(0, dtype=np.bool_)
        """(B,) environments whose next frame begins an episode"""

    def reset(self, ids: Tensor | None = None) -> None:
        if ids is None:
            self.history = None
        elif self.history is not None:
            self.start[ids.cpu().numpy()] = True

    @torch.no_grad()
    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        state = observation["observation.state"]
        if state.ndim != 2 or state.shape[1] != self.size.observation:
            raise ValueError(
                f"observation.state has shape {tuple(state.shape)}; the policy reads (B, {self.size.observation})"
            )
        frame = np.ascontiguousarray(state.cpu().numpy(), dtype=np.float32)
        if self.config.history == 1:
            return torch.from_numpy(self.session.run(["action"], {"observation": frame})[0])[:, None]
        if self.history is None:
            self.history = np.zeros((len(frame), self.config.history, self.size.observation), dtype=np.float32)
            self.start = np.ones(len(frame), dtype=np.bool_)
        elif len(self.history) != len(frame):
            raise ValueError(
                f"the policy has the history of {len(self.history)} environments, the observation has {len(frame)}: "
                "reset first"
            )
        given = {"observation": frame, "start": self.start, "history": self.history}
        action, self.history = self.session.run(["action", "next_history"], given)
        self.start[:] = False
        return torch.from_numpy(action)[:, None]

    def peek(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> Tensor:
        kept = self.history, self.start.copy()
        chunk = self.act(observation, rng)  # all rows, because the history covers every environment
        self.history, self.start = kept
        return chunk[rows]

    def difference(self, reference: Policy) -> float:
        """Return the largest difference from a policy's actions over random episodes; reset both before and after.

        Infinity if one of them maps a non-finite observation to a finite action: the shield must be able to reject it.
        """
        assert isinstance(reference, FeedforwardPolicy)
        rng, rows, worst = torch.Generator().manual_seed(0), 8, 0.0
        self.reset()
        reference.reset()
        steps = reference.config.history + 8
        for k in range(steps):
            noise = torch.randn(rows, reference.size.observation, generator=rng)
            state = reference.normalizer.mean + 2 * reference.normalizer.std * noise
            if k == steps - 1:
                state[0] = torch.nan
            a, b = (p.act({"observation.state": state}, rng) for p in (self, reference))
            worst = max(worst, float((a - b).abs().nan_to_num(0.0).max()))
            if a.shape != b.shape or not torch.equal(a.isnan(), b.isnan()):
                worst = torch.inf
            ids = torch.randint(0, rows, (2,), generator=rng)
            self.reset(ids)
            reference.reset(ids)
        self.reset()
        reference.reset()
        return worst
