"""Distillation of a policy with many sampling steps into a policy with one step.

    |C(noise, s) - sg clip(teacher(noise, s))|^2,   noise ~ N(0, I)

Most observations are drawn in proportion to the spread of the teacher's chunks. A single step is hardest to learn where
the teacher has several modes, and demonstrations contain few such observations.

The loss is one term of RL-100's consistency head (Lei et al. 2025, arXiv 2510.14830), the term at pure noise. It is
consistency distillation (Song et al. 2023, arXiv 2303.01469) whose target is the result of the teacher's whole chain.
"""

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
"""Ratio of observations drawn in proportion to the chunks' spread to observations drawn uniformly."""
DRAWS, BLOCK = 4, 4096
"""Number of chunks per observation from which their spread is estimated, and number of observations per block."""


class Distillation(Cloning):
    """Learner that fits a one-step policy, at demonstrated observations, to a frozen teacher's chunks for the same
    noise."""

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
            target = self.teacher.base(batch, noise)
        return (self.policy.one_step(batch, noise) - target).square().mean((1, 2))


def student_of(teacher: Policy) -> ChunkPolicy:
    """Return a policy with one sampling step and the teacher's weights; ConfigError if the teacher has no steps."""
    if not isinstance(teacher, ChunkPolicy):
        raise ConfigError(f"a {teacher.class_name} policy has no steps to distill; take diffusion-bc, flow-bc or dppo")
    every = {"frozen_steps": 0} if isinstance(teacher, DiffusionPolicy) else {}
    config = replace(teacher.config, sample_steps=1, prediction="sample", **every)
    student = build_policy(type(teacher)(teacher.size, config).describe())
    assert isinstance(student, ChunkPolicy)
    student.load_state_dict(teacher.state_dict(), strict=not every)
    return student
