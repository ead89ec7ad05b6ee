"""A critic for each reward: Emukpere et al. 2024, "SLIM: Skill Learning with Multiple Critics" (arXiv 2402.00823),
without its discovery of skills.

Policy and schedule: those of ppo; critic: one value per term of the task's reward, each in units of its own spread;
advantage: the weighted sum of the terms' standardized advantages."""

from __future__ import annotations

from dataclasses import dataclass, field

from robot_rl.recipes.ppo import ProximalPolicy
from robot_rl.training.on_policy import OnPolicyConfig


@dataclass(frozen=True)
class SLIM(ProximalPolicy):
    """Learn from all terms of the task's reward, whatever their scales."""

    training: OnPolicyConfig = field(default_factory=lambda: OnPolicyConfig(steps=3_800_000, reward="terms"))
