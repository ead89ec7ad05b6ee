"""RL Token: Physical Intelligence 2026, "RL Token: Bootstrapping Online RL with Vision-Language-Action Models" (RLT).

Policy: a frozen chunked base, whose chunks a small actor edits, from the base's chunk and a token of its features;
critics: 2 on chunks, minimum; actor: maximizes their mean, near the base's chunk (`l2`); data: online, after a warm-up
near the base; reward: success. The paper's token is learned with an encoder and a decoder of the base's features; here
it is their principal components on the demonstrations, a linear encoder and decoder. The paper's actor outputs the
chunk, and reads the base's only in half of its updates, so as not to repeat it; here its output is the edit."""

from dataclasses import dataclass, replace

from policies.edited import EditedConfig, EditedPolicy
from robot_rl.data.sources import Demonstrations
from robot_rl.learning.algorithms.actor_critic import ActorCriticConfig
from robot_rl.learning.parts.explore import ExplorationConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import Need, OffPolicyRecipe
from robot_rl.training.off_policy import ONE_ENV, OffPolicyConfig

TOKEN_ROWS = 4096
"""Largest number of demonstrated steps on which the token's components are computed."""


@dataclass(frozen=True)
class RLToken(OffPolicyRecipe):
    """Learn to edit a frozen base policy's chunks, from a few of its features."""

    reduced = "principal components as token; the actor's output is an edit"
    edits: EditedConfig = EditedConfig()
    agent: ActorCriticConfig = ActorCriticConfig(
        discount=0.99, exploration=ExplorationConfig(warmup_noise=0.4, noise_memory=0.0)
    )
    training: OffPolicyConfig = replace(ONE_ENV, steps=20_000, warmup=1_500, learning_starts=500, demo_share=0.0)
    needs_base = True

    @property
    def needs(self) -> tuple[Need, ...]:
        return "base", "environment", "demonstrations"  # for the token, if not for the replay

    def make_policy(self, job: Job) -> EditedPolicy:
        policy = EditedPolicy(job.require_base().policy, self.edits)
        if policy.token is not None:
            columns = Demonstrations.of(job.demonstrations(demos="all")).columns
            every = -(-len(columns["action"]) // TOKEN_ROWS)
            policy.fit_token({name: rows[::every] for name, rows in columns.items() if name != "action"})
        return policy
