"""Residual off-policy RL on a frozen base: Ankile et al. 2025, "Residual Off-Policy RL for Finetuning Behavior Cloning
Policies" (ResFiT, arXiv 2509.19301).

Critics: 2 with LayerNorm, minimum; transform: residual with a zero-initialized actor; data: half demonstrations, half
online; reward: sparse; schedule: critic-only warm-up with random corrections, then both. The paper's 10 critics and
actor rate of 1e-6 suit hours of training; these numbers suit minutes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from policies.bundle import Bundle, load_bundle
from policies.diffusion import DiffusionPolicy
from policies.residual import ResidualConfig, ResidualPolicy
from robot_rl.learning.actor_critic import ActorCritic, ActorCriticConfig
from robot_rl.recipes.job import Job
from robot_rl.robots import robots
from robot_rl.training.off_policy import OffPolicyConfig, demo_replay, train_off_policy
from robot_rl.util.errors import Misfit


@dataclass(frozen=True)
class ResFiT:
    """Correct a base policy at every step."""

    residual: ResidualConfig = field(default_factory=ResidualConfig)
    agent: ActorCriticConfig = field(default_factory=ActorCriticConfig)
    training: OffPolicyConfig = field(default_factory=OffPolicyConfig)
    reads: ClassVar[tuple[str, ...]] = ("base", "dataset", "simulation")
    """Of what a job holds."""

    def train(self, job: Job) -> Bundle:
        """Return the improved policy, with its critics."""
        from sim.env import TaskEnv
        from sim.tasks import tasks

        if job.base is None:
            raise Misfit("recipe resfit improves an existing policy: name its bundle with --base")
        bundle = load_bundle(job.base)
        if bundle.interface.task != job.task:
            raise Misfit(f"bundle {job.base} is for task {bundle.interface.task!r}, not {job.task!r}")
        if not isinstance(bundle.policy, DiffusionPolicy):
            raise Misfit(
                f"recipe resfit needs a chunked base policy; {job.base} holds a {type(bundle.policy).__name__}"
            )
        bundle.check_task(tasks.get(job.task).interface)
        bundle.check_robot(robots.get(bundle.interface.robot))
        env = TaskEnv(job.task, self.training.num_envs, **job.simulation)
        torch.manual_seed(job.seed)
        policy = ResidualPolicy(bundle.policy, self.residual)
        agent = ActorCritic(policy, self.agent, job.seed)
        episodes = job.demonstrations(env.pipeline)
        demos = demo_replay(policy, episodes, torch.Generator().manual_seed(job.seed))
        train_off_policy(
            env, agent, demos, self.training, job.run, job.seed,
            lambda step, metrics: job.progress("environment steps", step, self.training.steps, metrics),
        )  # fmt: skip
        env.close()
        return Bundle(policy, env.task.interface, env.robot.fingerprint(), critic=agent.critic.state_dict())
