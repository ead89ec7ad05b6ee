"""What a written reward reads: an observation as named tensors."""

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
"""Views of the true state, which only simulation knows, begin so."""


@dataclass(frozen=True)
class Views:
    """The fields of observation.state by their names, and those of the true state."""

    state: VectorSpec
    true: VectorSpec = NOTHING

    @classmethod
    def of(cls, env: Any) -> Views:
        """Return the views of an environment."""
        return cls(env.info.state, getattr(env, "true_spec", NOTHING))

    @cached_property
    def fields(self) -> dict[str, Field]:
        """Return every field by the name of its view."""
        return {f.name: f for f in self.state.fields} | {TRUE + f.name: f for f in self.true.fields}

    def __call__(self, observation: Observation) -> dict[str, Tensor]:
        """Return the views (n, size) of an observation; without the true state if it has none."""
        found = _split(observation[STATE], self.state, "")
        if self.true.size and PRIVILEGED in observation:
            found |= _split(observation[PRIVILEGED], self.true, TRUE)
        return found

    def describe(self) -> str:
        """Return a line on each view, for a model to read."""
        return "\n".join(f"{name!r}: {_described(field)}" for name, field in self.fields.items())


def arrived(following: Observation, done: Tensor, infos: dict[str, Any]) -> Observation:
    """Return what was observed at the end of the step, also where the next episode has begun."""
    if "final_obs" not in infos:
        return following
    final = infos["final_obs"]
    return {k: torch.where(done.view(-1, *[1] * (v.dim() - 1)), final[k], v) for k, v in following.items()}


def _split(vector: Tensor, spec: VectorSpec, prefix: str) -> dict[str, Tensor]:
    found, start = {}, 0
    for field in spec.fields:
        found[prefix + field.name] = vector[:, start : start + len(field.dims)]
        start += len(field.dims)
    return found


def _described(field: Field) -> str:
    unit = "without a unit" if field.unit in ("", "1") else f"in {field.unit}"
    frame = f", {field.frame} frame" if field.frame else ""
    return f"(n, {len(field.dims)}) {unit}{frame}: {', '.join(field.dims)}"
