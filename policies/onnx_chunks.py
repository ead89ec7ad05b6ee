"""Run a policy of chunks in ONNX Runtime: see `policies.graph` for its inputs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from policies.base import Observation, Policy
from policies.networks.chunks import ChunkPolicy
from policies.onnx import open_session
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import LANGUAGE, STATE

NOISE = "noise"
"""Name of the graph's input of noise."""


class OnnxChunks(Policy):
    """Act as the exported policy, one robot after the other."""

    def __init__(self, model: bytes, reference: Policy):
        """`reference` tells sizes, reads instructions and draws noise."""
        super().__init__()
        self.size, self.config = reference.size, reference.config
        self.horizon, self.execute = reference.horizon, reference.execute
        self._reference = [reference]  # its weights are not ours
        self.session, self.metadata = open_session(model)

    @property
    def words(self) -> tuple[str, ...]:
        return self._reference[0].words

    @torch.no_grad()
    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        given = {key: v.numpy() for key, v in graph_inputs(self._reference[0], observation, rng).items()}
        rows = [
            self.session.run(["chunk"], {key: values[k : k + 1] for key, values in given.items()})[0]
            for k in range(len(observation[STATE]))
        ]
        return torch.from_numpy(rows[0] if len(rows) == 1 else np.concatenate(rows))

    def difference(self, reference: Policy) -> float:
        """Return the largest difference from a policy's actions at random observations.

        Infinity if one of them maps a non-finite observation to a finite action: the shield must be able to reject it.
        """
        worst = 0.0
        for seed in range(8):
            rngs = [torch.Generator().manual_seed(seed) for _ in range(2)]
            observation = example(reference, 2, torch.Generator().manual_seed(100 + seed))
            if seed == 7:
                observation[STATE][0] = torch.nan
            a, b = (p.act(observation, rng).cpu() for p, rng in zip((self, reference), rngs, strict=True))
            worst = max(worst, float((a - b).abs().nan_to_num(0.0).max()))
            if a.shape != b.shape or not torch.equal(a.isnan(), b.isnan()):
                return torch.inf
        return worst


def graph_inputs(policy: Policy, observation: Observation, rng: torch.Generator) -> dict[str, Tensor]:
    """Return the inputs of a policy's graph for observations with leading dimension B."""
    given = {key: observation[key].cpu().contiguous() for key in (STATE, *policy.size.others)}
    if LANGUAGE in given:
        given[LANGUAGE] = policy.read(given[LANGUAGE])
    if isinstance(policy, ChunkPolicy):
        given[NOISE] = policy.noise(len(given[STATE]), rng).cpu()
    return given


def example(policy: Policy, rows: int, rng: torch.Generator) -> Observation:
    """Return random observations (rows, ...) that a policy can read."""
    found = {STATE: torch.randn(rows, policy.size.observation, generator=rng)}
    for key, field in policy.size.others.items():
        shape = (rows, *field.shape)
        if key == LANGUAGE:
            found[key] = encode([f"move the thing {k}" for k in range(rows)])
        elif field.dtype == "uint8":
            found[key] = torch.randint(0, 256, shape, generator=rng, dtype=torch.uint8)
        else:
            found[key] = torch.randn(shape, generator=rng)
    return found
