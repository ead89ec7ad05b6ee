"""PPO on the noise of a flow, which is refitted in stages to the executed actions: GoRL (arXiv 2512.02581).

    stage 0    u is the action                          PPO on u
    stage k    fit flow(s, N(0, I)) to the last stage's (s, a);  u ~ N(0, I) again;  PPO on u, the flow frozen

The policy of each stage starts as a copy of the previous stage's action distribution, which may have any shape. All
stages train the same critic V(s).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from policies.base import Observation
from policies.feedforward import DecodedPolicy
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.learning.algorithms.ppo import PPO, PPOConfig
from robot_rl.util.limits import NonNegativeInt, PositiveFraction, PositiveInt


@dataclass(frozen=True)
class GoRLConfig(PPOConfig):
    fits: NonNegativeInt = 3
    """Number of fits of the flow, and so of stages after the first; 0: plain PPO."""
    stage: PositiveInt = 50
    """Number of PPO updates in a stage, between two fits."""
    rollouts: PositiveInt = 4
    """Number of latest rollouts to which the flow is fitted."""
    best: PositiveFraction = 1.0
    """Share of these rollouts' steps to which the flow is fitted: the steps with the largest advantages."""
    fit_updates: PositiveInt = 1000
    """Number of gradient steps per fit of the flow."""
    fit_batch: PositiveInt = 512
    """Batch size of the flow's fits."""
    cloning: CloningConfig = CloningConfig()
    """Optimizer settings of the flow's fits."""


class GoRL(PPO):
    """PPO for a policy whose noise a flow decodes into actions."""

    policy: DecodedPolicy
    config: GoRLConfig
    kept: ClassVar[tuple[str, ...]] = (*PPO.kept, "executed")

    def __init__(
        self, policy: DecodedPolicy, privileged: int, config: GoRLConfig, seed: int = 0, terms: int | None = None
    ):
        super().__init__(policy, privileged, config, seed, terms=terms)
        self.updates = 0
        self.recent: list[dict[str, Tensor]] = []
        """Observations (B, D), executed actions (B, A) and advantages (B,) of the latest rollouts."""

    @torch.no_grad()
    def act(self, observation: Observation, rng: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        action, row = super().act(observation, rng)
        return action, row | {"executed": action}

    def update(self, batch: dict[str, Tensor]) -> dict[str, float]:
        newest = batch["frames"][:, -self.policy.size.observation :]
        row = {"observation.state": newest, "action": batch["executed"], "advantage": batch["advantage"]}
        self.recent = [*self.recent, row][-self.config.rollouts :]
        metrics = super().update(batch)
        self.updates += 1
        if self.updates % self.config.stage == 0 and self.updates <= self.config.stage * self.config.fits:
            self.fit()
        return metrics | {"gorl/fits": float(self.policy.fits)}

    def fit(self) -> None:
        """Fit the flow to the recent rollouts, and reset the noise to N(0, I)."""
        c = self.config
        data = {name: torch.cat([row[name] for row in self.recent]) for name in self.recent[0]}
        best = data["advantage"].topk(max(1, round(c.best * len(data["advantage"])))).indices
        data = {name: x[best] for name, x in data.items()}
        decoder = self.policy.decoder
        decoder.fit(data)
        cloning = Cloning(decoder, c.cloning, c.fit_updates)
        for _ in range(c.fit_updates):
            pick = torch.randint(len(best), (c.fit_batch,), generator=self.rng, device=self.device)
            seen = {"observation.state": data["observation.state"][pick]}
            cloning.update(seen | {"action": data["action"][pick][:, None]}, self.rng)
        cloning.finish()
        self.policy.anchor()
        for parameter in self.actor_parameters:  # the critic and its moments are kept
            self.optimizer.state.pop(parameter, None)
        self.optimizer.param_groups[0]["lr"] = c.actor_lr

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"updates": self.updates, "recent": self.recent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.updates = state["updates"]
        self.recent = [{name: x.to(self.device) for name, x in row.items()} for row in state["recent"]]
