"""Distillation of a policy that samples in many steps into one that takes a single one.

    |C(noise, s) - sg clip(teacher(noise, s))|^2,   noise ~ N(0, I)

Most observations are drawn in proportion to how far the teacher's chunks spread there: where it chooses between ways, a
single step has most to learn, and in demonstrations such moments are rare.

The part at pure noise of the consistency head of RL-100 (Lei et al. 2025, arXiv 2510.14830): consistency distillation
(Song et al. 2023, arXiv 2303.01469) with the teacher's whole chain as the target, where a policy begins when it acts.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from policies.base import Policy, build_policy
from policies.diffusion import DiffusionPolicy
from policies.networks.chunks import ChunkPolicy
from robot_rl.data.replay import Batch
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.util.errors import ConfigError

SPREAD = 4.0
"""Observations drawn by the spread, for one that is drawn uniformly."""
DRAWS, BLOCK = 4, 4096
"""Chunks per observation that tell how far they spread, and observations at once."""


class Distillation(Cloning):
    """Fit a policy of one step to a frozen teacher's chunks for the same noise, at demonstrated observations."""

    policy: ChunkPolicy

    def __init__(self, policy: ChunkPolicy, teacher: ChunkPolicy, config: CloningConfig, updates: int):
        super().__init__(policy, config, updates)
        self.teacher = teacher.requires_grad_(False).eval()

    @torch.no_grad()
    def weights(self, columns: dict[str, Tensor]) -> Tensor:
        seen = {name: values for name, values in columns.items() if name != "action"}
        rng, spreads = torch.Generator().manual_seed(0), []
        for first in range(0, len(columns["action"]), BLOCK):
            part = {name: values[first : first + BLOCK] for name, values in seen.items()}
            rows = len(next(iter(part.values())))
            chunks = [self.teacher.base(part, self.teacher.noise(rows, rng)) for _ in range(DRAWS)]
            spreads.append(torch.stack(chunks).std(0).mean((1, 2)))
        spread = torch.cat(spreads)
        return 1 + SPREAD * spread / spread.mean().clamp_min(1e-6)

    def _loss(self, batch: Batch, rng: torch.Generator) -> Tensor:
        noise = self.teacher.noise(len(batch["action"]), rng)
        with torch.no_grad():
            aim = self.teacher.base(batch, noise)
        return (self.policy.one_step(batch, noise) - aim).square().mean((1, 2))


def student_of(teacher: Policy) -> ChunkPolicy:
    """Return a policy of one sample step that begins with the teacher's weights; ConfigError for a teacher that does
    not denoise chunks."""
    if not isinstance(teacher, ChunkPolicy):
        raise ConfigError(
            f"a {teacher.class_name} policy has no steps to distill; take one of diffusion-bc, flow-bc or dppo"
        )
    every = {"frozen_steps": 0} if isinstance(teacher, DiffusionPolicy) else {}
    config = replace(teacher.config, sample_steps=1, prediction="sample", **every)
    student = build_policy(type(teacher)(teacher.size, config).describe())
    assert isinstance(student, ChunkPolicy)
    student.load_state_dict(teacher.state_dict(), strict=not every)
    return student
