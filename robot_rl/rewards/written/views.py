"""Views for written rewards: the fields of an observation as named tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from policies.base import Observation
from robot_rl.interface.observation_spec import PRIVILEGED, STATE
from robot_rl.interface.spec import NOTHING, Field, VectorSpec

TRUE = "true:"
"""Prefix of the views of the true state, which is known in simulation only."""


@dataclass(frozen=True)
class Views:
    """Named fields of observation.state and of the true state."""

    state: VectorSpec
    true: VectorSpec = NOTHING

    @classmethod
    def of(cls, env: Any) -> Views:
        """Return the views of an environment."""
        return cls(env.info.state, getattr(env, "true_spec", NOTHING))

    @cached_property
    def fields(self) -> dict[str, Field]:
        """Return all fields by view name."""
        return {f.name: f for f in self.state.fields} | {TRUE + f.name: f for f in self.true.fields}

    def __call__(self, observation: Observation) -> dict[str, Tensor]:
        """Return the views (n, size) of an observation, with the true state if the observation has it."""
        views = _split(observation[STATE], self.state, "")
        if self.true.size and PRIVILEGED in observation:
            views |= _split(observation[PRIVILEGED], self.true, TRUE)
        return views

    def describe(self) -> str:
        """Return one line per view for a language model."""
        return "\n".join(f"{name!r}: {_described(field)}" for name, field in self.fields.items())


def final_observation(following: Observation, done: Tensor, infos: dict[str, Any]) -> Observation:
    """Return the observation at a step's end: `following`, or the final observation where the episode ended."""
    if "final_obs" not in infos:
        return following
    final = infos["final_obs"]
    return {k: torch.where(done.view(-1, *[1] * (v.dim() - 1)), final[k], v) for k, v in following.items()}


def _split(vector: Tensor, spec: VectorSpec, prefix: str) -> dict[str, Tensor]:
    parts = vector[:, : spec.size].split([len(field.dims) for field in spec.fields], 1)
    return {prefix + field.name: part for field, part in zip(spec.fields, parts, strict=True)}


def _described(field: Field) -> str:
    unit = "without a unit" if field.unit in ("", "1") else f"in {field.unit}"
    frame = f", {field.frame} frame" if field.frame else ""
    return f"(n, {len(field.dims)}) {unit}{frame}: {', '.join(field.dims)}"
