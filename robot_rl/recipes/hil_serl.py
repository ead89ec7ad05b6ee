"""Human-in-the-loop RL: Luo et al. 2024, "Precise and Dexterous Robotic Manipulation via Human-in-the-Loop
Reinforcement Learning" (HIL-SERL, arXiv 2410.21845).

Critics: 2, minimum, no entropy in the backup; policy: tanh-Gaussian, here as a residual on the bundle's base (scale as
in the bundle), so that learning starts from what was trained in simulation; data: half online, half demonstrations, and
corrections go to both; reward: the task's success test or the operator's mark. Actor and learner are two processes.

Besides the paper: the actor is drawn to the corrections (`imitation`) and held near where it started (`l2`). Without
the two, and with 4 updates a step, three minutes on the twin made panda-lift's policy worse.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from policies.bundle import Bundle
from policies.diffusion import DiffusionPolicy
from policies.residual import ResidualConfig, ResidualPolicy
from robot_rl.data.recording import load_episodes
from robot_rl.interface.pipeline import Pipeline
from robot_rl.learning.actor_critic import ActorCritic, ActorCriticConfig
from robot_rl.training.human_in_the_loop import HumanInTheLoopConfig, Learner
from robot_rl.training.off_policy import demo_replay
from robot_rl.util.errors import Misfit


@dataclass(frozen=True)
class HilSerl:
    """Learn from success and from corrections."""

    agent: ActorCriticConfig = field(
        default_factory=lambda: ActorCriticConfig(
            entropy=True,
            initial_temperature=1e-3,
            target_entropy=-8.0,
            l2=0.02,
            imitation=10.0,
            averaging=0.998,
        )
    )
    training: HumanInTheLoopConfig = field(default_factory=HumanInTheLoopConfig)

    def policy(self, bundle: Bundle) -> ResidualPolicy:
        """The bundle's policy with a learned standard deviation; a bare base gets a residual that starts at zero.

        Misfit if it can have none, or the bundle's critics are others than those that would go on learning.
        """
        if isinstance(bundle.policy, ResidualPolicy):
            base, config = bundle.policy.base, bundle.policy.config
        elif isinstance(bundle.policy, DiffusionPolicy):
            base, config = bundle.policy, ResidualConfig()
        else:
            raise Misfit(
                f"recipe hil-serl cannot continue a {type(bundle.policy).__name__}; it takes diffusion or residual ones"
            )
        policy = ResidualPolicy(base, replace(config, actor=replace(config.actor, std=None)))
        if isinstance(bundle.policy, ResidualPolicy):
            policy.actor.load_state_dict(bundle.policy.actor.state_dict())
        if bundle.critic:
            layers = {int(name.split(".")[1]): w for name, w in bundle.critic.items() if name.endswith("weight")}
            weights = [layers[k] for k in sorted(layers)]
            members, hidden = len(weights[0]), tuple(weight.shape[-1] for weight in weights[:-1])
            if (members, hidden) != (self.agent.critics, tuple(self.agent.hidden)):
                raise Misfit(
                    "the bundle's critics are others than asked for; go on with them by "
                    f"--agent.critics {members} --agent.hidden {' '.join(map(str, hidden))}"
                )
        return policy

    def learner(self, bundle: Bundle, dataset: Path, folder: Path, seed: int) -> Learner:
        """The learner process's part: critics from the bundle where it has them, demonstrations from `dataset`."""
        pipeline = Pipeline(bundle.interface)
        torch.manual_seed(seed)
        policy = self.policy(bundle)
        agent = ActorCritic(policy, self.agent, seed)
        if bundle.critic:
            agent.critic.load_state_dict(bundle.critic)
            agent.target.load_state_dict(bundle.critic)
        rng = torch.Generator().manual_seed(seed)
        demos = demo_replay(policy, load_episodes(dataset, pipeline), rng, self.training.capacity)
        return Learner(agent, pipeline, demos, self.training, folder, seed)
