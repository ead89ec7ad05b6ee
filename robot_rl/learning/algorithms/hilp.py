"""Embedding whose distances count steps, and a policy that follows directions in it: Park et al. 2024, "Foundation
Policies with Hilbert Representations" (HILP, arXiv 2402.15567).

    V(s, g) = -|phi(s) - phi(g)|
    phi:    mean |tau - [A < 0]| A^2,   A = -1 + discount * V(s', g) - V(s, g)      (equation 5)
    skills: IQL on the reward <phi(s') - phi(s), z>, z a unit vector                (equation 6)

At the goal V(s', g) is 0. Rewards and goals in the data are not used.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from policies.base import normal
from policies.hilbert import SKILL, HilbertPolicy
from robot_rl.data.replay import NEXT, Batch
from robot_rl.data.sources import GOAL
from robot_rl.interface.observation_spec import STATE
from robot_rl.learning.agent import restore, states_of
from robot_rl.learning.algorithms.iql import IQL, IQLConfig
from robot_rl.learning.parts.objectives import average_, expectile_error, gradient_step
from robot_rl.util.limits import Fraction, PositiveFloat


@dataclass(frozen=True)
class HILPConfig:
    expectile: Fraction = 0.8
    """Expectile tau of the value regression; near 1, distances approach those of the shortest paths in the data."""
    discount: Fraction = 0.99
    """Discount of distances per step, which limits distances to 1 / (1 - discount) steps."""
    future: Fraction = 0.625
    """Weight of goals that the same episode achieves later; the remaining weight is that of all goals in the batch."""
    lr: PositiveFloat = 1e-3
    """Learning rate of the embedding (Adam)."""
    tau: Fraction = 0.1
    """Polyak rate of the target embedding, per update."""
    towards: Fraction = 0.5
    """Share of skills that point to goals in the batch; the other skills have random directions."""
    skills: IQLConfig = IQLConfig(
        expectile=0.9, temperature=10.0, discount=0.9, tau=0.005, l2=0.0, actor_delay=1, ema_decay=0.999
    )
    """Settings of the policy that follows directions in the embedding."""


class HILP:
    """Learner of an embedding of achieved states, and of a policy for its directions, from transitions."""

    def __init__(self, policy: HilbertPolicy, config: HILPConfig, tolerance: float, seed: int = 0):
        """`tolerance`: largest distance from a goal at which the goal counts as achieved, in the goal's units."""
        self.policy, self.config, self.tolerance = policy, config, tolerance
        self.skills = IQL(policy, config.skills, seed)
        self.device = self.skills.device
        self.target = copy.deepcopy(policy.metric).requires_grad_(False)
        self.optimizer = torch.optim.Adam(policy.metric.parameters(), config.lr, fused=True)

    def weights(self, columns: dict[str, Tensor]) -> None:
        """Return None, since transitions are drawn uniformly."""

    def update(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """Take one gradient step on a batch of transitions; return metrics. `batch` holds observation.state, action,
        next.observation.state, and goal.observation.state, a state in which the goal is achieved."""
        now, following, goal = (self.policy.achieved(batch[k + STATE]) for k in ("", NEXT, GOAL))
        metrics = self._update_metric(now, following, goal)
        with torch.no_grad():
            at, to = self.policy.embed(now), self.policy.embed(goal)
            moved, skill = self.policy.embed(following) - at, normal(at.shape, rng, at.device)
            any_goal = to[torch.randperm(len(to), generator=rng).to(to.device)]
            towards = torch.rand(len(at), 1, generator=rng).to(at.device) < self.config.towards
            skill = normalize(torch.where(towards, any_goal - at, skill), dim=-1)
            reward = (moved * skill).sum(-1)
        rows = {key: batch[key] for key in (STATE, NEXT + STATE)} | {"action": batch["action"][:, 0]}
        discount = torch.full_like(reward, self.config.skills.discount)
        rows |= {SKILL: skill, NEXT + SKILL: skill, "reward": reward, "discount": discount}
        return metrics | self.skills.update(rows)

    def _update_metric(self, now: Tensor, following: Tensor, goal: Tensor) -> dict[str, Tensor]:
        """Update the embedding by the distances of each achieved state `now` (B, G) to its own and to all other goals
        (B, G) in the batch; `following` (B, G) is achieved one step later."""
        policy, c = self.policy, self.config
        with torch.no_grad():
            reached = torch.cdist(following, goal) < self.tolerance
            target = -1 + c.discount * torch.where(reached, 0.0, self._values(self.target, following, goal))
        value = self._values(policy.metric, now, goal)
        error = expectile_error(target - value, c.expectile)
        loss = c.future * error.diagonal().mean() + (1 - c.future) * error.mean()
        gradient_step(loss, self.optimizer)
        average_(self.target, policy.metric, c.tau)
        return {"metric/loss": loss.detach(), "metric/steps": -value.detach().mean()}

    def _values(self, metric: torch.nn.Module, places: Tensor, goals: Tensor) -> Tensor:
        """Return V (B, B) for every pair of an achieved state in `places` (B, G) and a goal in `goals` (B, G)."""
        at, to = metric(self.policy.scaled(places)), metric(self.policy.scaled(goals))
        return -(at[:, None] - to).square().sum(-1).clamp_min(1e-12).sqrt()

    def finish(self) -> None:
        """Copy the averaged actor into the policy."""
        self.skills.finish()

    def value_state(self) -> dict[str, Tensor]:
        """Return the weights of the skills' critics."""
        return self.skills.value_state()

    def _parts(self) -> dict[str, Any]:
        return {"skills": self.skills, "target": self.target, "optimizer": self.optimizer}

    def state_dict(self) -> dict[str, Any]:
        return states_of(self._parts())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restore(self._parts(), state)
