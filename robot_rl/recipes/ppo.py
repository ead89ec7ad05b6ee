"""On-policy RL from nothing: Schulman et al. 2017, "Proximal Policy Optimization Algorithms" (PPO, arXiv 1707.06347),
as legged robots learn to walk with it: Rudin et al. 2022, "Learning to Walk in Minutes Using Massively Parallel Deep
Reinforcement Learning" (arXiv 2109.11978).

Policy: feed-forward Gaussian with a history and its own normalizer; critic: one value that sees what only the simulator
knows; target: GAE, truncations bootstrapped with the episode's last state; reward: the task's; schedule: learning rate
by divergence. Mirrored rows (Mittal et al. 2024, arXiv 2403.04359) for tasks that declare their symmetry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from policies.base import Size
from policies.bundle import Bundle
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from robot_rl.interface.symmetry import Mirror
from robot_rl.learning.ppo import PPO, PPOConfig
from robot_rl.recipes.job import Job
from robot_rl.training.on_policy import OnPolicyConfig, train_on_policy

_HIDDEN = (128, 128, 128)


@dataclass(frozen=True)
class ProximalPolicy:
    """Learn from the task's reward, in many environments at once."""

    policy: FeedforwardConfig = field(
        default_factory=lambda: FeedforwardConfig(hidden=_HIDDEN, history=3, initial_std=0.3)
    )
    agent: PPOConfig = field(default_factory=lambda: PPOConfig(hidden=_HIDDEN, epochs=4))
    training: OnPolicyConfig = field(default_factory=lambda: OnPolicyConfig(steps=3_800_000))
    symmetry: bool = True
    """Learn from every step and its mirror image, where the task says how it is mirrored."""
    reads: ClassVar[tuple[str, ...]] = ("simulation",)
    """Of what a job holds."""
    alone: ClassVar[bool] = True
    """Nothing else wants the cores while it learns."""
    may_grow: ClassVar[str] = "training.steps"
    """A resumed run may be longer than it was meant to be: nothing that is learned depends on how long that was."""

    def train(self, job: Job) -> Bundle:
        """Return the learned policy, with its critic."""
        from sim.env import TaskEnv

        env = TaskEnv(job.task, self.training.num_envs, **job.simulation)
        mirror = mirror_of(env.task, env.randomization) if self.symmetry else None
        torch.manual_seed(job.seed)
        size = Size(env.pipeline.observer.spec.size, env.pipeline.actions.size)
        policy = FeedforwardPolicy(size, self.policy)
        agent = PPO(policy, env.privileged_size, self.agent, job.seed, mirror)
        train_on_policy(
            env, agent, self.training, job.run, job.seed,
            lambda step, metrics: job.progress("environment steps", step, self.training.steps, metrics),
        )  # fmt: skip
        env.close()
        policy.eval()
        return Bundle(policy, env.task.interface, env.robot.fingerprint(), critic=agent.critic.state_dict())


def mirror_of(task: Any, drawn: Sequence[Any]) -> Mirror | None:
    """The task's mirror, if it has one, where only the parameters `drawn` of all that it declares are randomized.

    What is drawn stands at the end of what is privileged.
    """
    if task.mirror is None:
        return None
    used, names = {r.parameter for r in drawn}, [r.parameter for r in task.randomization]
    first = len(task.mirror.privileged) - len(names)
    kept = [*range(first), *(first + k for k, name in enumerate(names) if name in used)]
    return replace(task.mirror, privileged=task.mirror.privileged.only(kept))
