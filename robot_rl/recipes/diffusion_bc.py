"""Behaviour cloning of a diffusion policy: Chi et al. 2023, "Diffusion Policy: Visuomotor Policy Learning via Action
Diffusion" (arXiv 2303.04137). Policy class: chunked diffusion; loss: denoising; data: demonstrations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from policies.base import Size
from policies.bundle import Bundle
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.data.recording import concatenate
from robot_rl.interface.pipeline import Pipeline
from robot_rl.recipes.job import Job
from robot_rl.training.supervised import Demonstrations, SupervisedConfig, clone


@dataclass(frozen=True)
class DiffusionBC:
    """Clone demonstrations."""

    policy: DiffusionConfig = field(default_factory=DiffusionConfig)
    training: SupervisedConfig = field(default_factory=SupervisedConfig)
    reads: ClassVar[tuple[str, ...]] = ("dataset",)
    """Of what a job holds."""
    alone: ClassVar[bool] = True
    """Nothing else wants the cores while it learns."""

    def train(self, job: Job) -> Bundle:
        """Return the cloned policy."""
        from sim.tasks import tasks

        interface = tasks.get(job.task).interface
        pipeline = Pipeline(interface)
        data = Demonstrations(*concatenate(job.demonstrations(pipeline)))
        torch.manual_seed(job.seed)
        policy = DiffusionPolicy(Size(pipeline.observer.spec.size, pipeline.actions.size), self.policy)
        clone(
            policy, data, self.training, job.run, job.seed,
            lambda step, metrics: job.progress("updates", step, self.training.updates, metrics),
        )  # fmt: skip
        return Bundle(policy, interface, pipeline.robot.fingerprint())
