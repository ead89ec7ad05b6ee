"""Human-in-the-loop RL: Luo et al. 2024, "Precise and Dexterous Robotic Manipulation via Human-in-the-Loop
Reinforcement Learning" (HIL-SERL, arXiv 2410.21845).

Critics: 2, minimum, 3-step returns, no entropy in the backup; policy: tanh-Gaussian, or a residual on the bundle's
policy; data: half online, half demonstrations, corrections in both halves; reward: success, by the task's test or the
operator's mark. On a robot (`robot-rl finetune`), actor and learner are two processes. In simulation, one process runs
both, with a scripted operator; without a bundle, learning starts there from scratch, as in the paper.

Not in the paper: a cloning loss on corrections (`imitation`), a penalty on the distance from the initial actor (`l2`),
and returns of 3 steps, which end where control changes. Without the first two, three minutes on the twin made
panda-lift's policy worse. With 1-step returns, three minutes in simulation helped it less (docs/results.md)."""

from dataclasses import dataclass

from robot_rl.learning.algorithms.actor_critic import ActorCriticConfig
from robot_rl.recipes.corrected import CorrectedRecipe


@dataclass(frozen=True)
class HilSerl(CorrectedRecipe):
    """Learn from success and from a person's corrections."""

    agent: ActorCriticConfig = ActorCriticConfig(
        n_step=3, entropy=True, initial_temperature=1e-3, target_entropy=-8.0, l2=0.02, imitation=10.0,
        ema_decay=0.998,
    )  # fmt: skip
