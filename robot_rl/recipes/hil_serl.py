"""Human-in-the-loop RL: Luo et al. 2024, "Precise and Dexterous Robotic Manipulation via Human-in-the-Loop
Reinforcement Learning" (HIL-SERL, arXiv 2410.21845).

Critics: 2, minimum, no entropy in the backup; policy: tanh-Gaussian, here as a residual on the bundle's base (scale as
in the bundle), so that learning starts from what was trained in simulation; data: half online, half demonstrations, and
corrections go to both; reward: success, by the task's test or the operator's mark. On a robot actor and learner are two
processes (`robot-rl finetune`); in simulation one, with a scripted operator (`robot-rl train`).

Besides the paper: the actor is drawn to the corrections (`imitation`) and held near where it started (`l2`). Without
the two, and with 4 updates a step, three minutes on the twin made panda-lift's policy worse."""

from __future__ import annotations

from dataclasses import dataclass, field

from robot_rl.learning.actor_critic import ActorCriticConfig
from robot_rl.recipes.corrected import CorrectedRecipe


@dataclass(frozen=True)
class HilSerl(CorrectedRecipe):
    """Learn from success and from corrections."""

    agent: ActorCriticConfig = field(
        default_factory=lambda: ActorCriticConfig(
            entropy=True, initial_temperature=1e-3, target_entropy=-8.0, l2=0.02, imitation=10.0, ema_decay=0.998,
        )
    )  # fmt: skip
