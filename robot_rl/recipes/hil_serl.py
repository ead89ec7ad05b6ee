"""Human-in-the-loop RL: Luo et al. 2024, "Precise and Dexterous Robotic Manipulation via Human-in-the-Loop
Reinforcement Learning" (HIL-SERL, arXiv 2410.21845).

Critics: 2, minimum, no entropy in the backup; policy: tanh-Gaussian, here as a residual on the bundle's base (scale as
in the bundle), so that learning starts from what was trained in simulation; data: half online, half demonstrations, and
corrections go to both; reward: success, by the task's test or the operator's mark. Actor and learner are two processes.

Besides the paper: the actor is drawn to the corrections (`imitation`) and held near where it started (`l2`). Without
the two, and with 4 updates a step, three minutes on the twin made panda-lift's policy worse."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch

from policies.bundle import Bundle
from policies.residual import ResidualPolicy, residual_from
from robot_rl.data.recording import load_episodes
from robot_rl.interface.pipeline import Pipeline
from robot_rl.learning.actor_critic import ActorCritic, ActorCriticConfig, check_critics
from robot_rl.rewards import SuccessReward
from robot_rl.training.human_in_the_loop import HumanInTheLoopConfig, Learner
from robot_rl.training.off_policy import demo_replay


@dataclass(frozen=True)
class HilSerl:
    """Learn from success and from corrections."""

    agent: ActorCriticConfig = field(
        default_factory=lambda: ActorCriticConfig(
            entropy=True, initial_temperature=1e-3, target_entropy=-8.0, l2=0.02, imitation=10.0, averaging=0.998,
        )
    )  # fmt: skip
    training: HumanInTheLoopConfig = field(default_factory=HumanInTheLoopConfig)

    def policy(self, bundle: Bundle) -> ResidualPolicy:
        """Return the bundle's policy, ready to go on learning; ConfigError if it or its critics cannot."""
        if bundle.critic:
            check_critics(self.agent, bundle.agent)
        return residual_from(bundle.policy)

    def learner(self, bundle: Bundle, dataset: Path, folder: Path, seed: int) -> Learner:
        """Return the learner process's part: critics from the bundle if it has them, demonstrations from `dataset`."""
        pipeline = Pipeline(bundle.interface)
        torch.manual_seed(seed)
        agent = ActorCritic(self.policy(bundle), self.agent, seed, SuccessReward().limits(self.agent.discount))
        if bundle.critic:
            agent.critic.load_state_dict(bundle.critic)
            agent.target.load_state_dict(bundle.critic)
        rng = torch.Generator().manual_seed(seed)
        demos = demo_replay(agent, load_episodes(dataset, pipeline), rng, self.training.capacity)
        return Learner(agent, pipeline, demos, self.training, folder, seed)
