"""Q-chunking: Li et al. 2025, "Reinforcement Learning with Action Chunking" (QC, arXiv 2507.07969).

Policy: the best of 32 chunks of 5 actions from a cloned flow; critics: 2 on chunks, with unbiased 5-step returns; data:
offline updates, then half demonstrations, half online; reward: success, or the task's. Targets use the critics'
minimum, and the averaged critics choose the chunk; the authors' code uses the critics' mean, and the latest critics.
Networks are smaller than the paper's. With --policy.candidates 1 the method is behaviour cloning."""

from dataclasses import dataclass

from policies.base import Size
from policies.best_of import BestOfConfig, BestOfPolicy, CriticSize
from policies.generative import GenerativeConfig
from robot_rl.learning.algorithms.actor_critic import ActorCriticConfig
from robot_rl.learning.algorithms.best_of import BestOf
from robot_rl.learning.parts.explore import ExplorationConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import OffPolicyRecipe
from robot_rl.training.off_policy import OFFLINE, OffPolicyConfig


@dataclass(frozen=True)
class QChunking(OffPolicyRecipe):
    """Learn values of chunks, and execute the chunk of largest value among a cloned flow's chunks."""

    policy: BestOfConfig = BestOfConfig(candidates=32, scale=0.0, flow=GenerativeConfig(horizon=5))
    agent: ActorCriticConfig = ActorCriticConfig(
        tau=0.005, discount=0.99, l2=0.0, exploration=ExplorationConfig(noise_memory=0.0)
    )
    training: OffPolicyConfig = OFFLINE
    agent_class = BestOf

    def make_policy(self, job: Job) -> BestOfPolicy:
        return best_of_policy(job.size, self.policy, self.agent)


def best_of_policy(size: Size, config: BestOfConfig, agent: ActorCriticConfig) -> BestOfPolicy:
    """Return a policy that chooses among candidates by critics as large as those of `agent`."""
    return BestOfPolicy(size, config, CriticSize(agent.critics, agent.hidden, agent.layer_norm))
