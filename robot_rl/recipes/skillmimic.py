"""On-policy imitation of recorded states, with transitions between skills: Yu et al. 2025, "SkillMimic-V2: Learning
Robust and Generalizable Interaction Skills from Sparse and Noisy Demonstrations" (arXiv 2505.02094).

Policy, critic, target and schedule: as ppo; data: on-policy, from states of demonstrations, some of which are linked to
another skill or noisy; reward: tracking the recorded states, whose actions are not used. Deviations: no encoder of the
history, no alignment of linked states, a reward of one kind, and links of any length."""

from dataclasses import dataclass
from typing import Any

from policies.feedforward import FeedforwardConfig
from robot_rl.interface.observation_spec import STATE
from robot_rl.learning.algorithms.ppo import PPO
from robot_rl.recipes.job import Job
from robot_rl.recipes.ppo import HIDDEN, ProximalPolicy
from robot_rl.recipes.recipe import Need
from robot_rl.training.on_policy import OnPolicyConfig
from robot_rl.training.references import ReferenceEnv, ReferencesConfig
from robot_rl.util.errors import ConfigError


@dataclass(frozen=True)
class SkillMimic(ProximalPolicy):
    """Learn to track recorded states, and to get from those of one skill to those of another."""

    data_parallel = False
    reduced = "no encoder of the history, no alignment of links"
    policy: FeedforwardConfig = FeedforwardConfig(hidden=HIDDEN, history=1, initial_std=0.3)
    references: ReferencesConfig = ReferencesConfig()
    training: OnPolicyConfig = OnPolicyConfig(steps=300_000, num_envs=64)

    @property
    def needs(self) -> tuple[Need, ...]:
        return (*super().needs, "demonstrations")

    def practise(self, job: Job, agent: PPO, env: Any) -> None:
        if self.training.reward != "task":
            raise ConfigError("recipe skillmimic is paid for tracking references: leave --training.reward at task")
        episodes = [episode[STATE] for episode in job.demonstrations()]
        super().practise(job, agent, ReferenceEnv(env, episodes, self.references))
