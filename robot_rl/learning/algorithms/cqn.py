"""Coarse-to-fine Q-network: Seo et al. 2024, "Continuous Control with Coarse-to-fine Reinforcement Learning" (CQN,
2407.07787).

    td:     Z(s, bin of a) against r + discount * Zbar(s', best bin), at every level and dimension (C51, double)
    fosd:   sum over atoms of max(0, F(bin of a) - F(bin)), F the distribution function (stochastic dominance)
    margin: max(0, m - Q(bin of a) + Q(bin))
    loss:   td_weight * td + imitation * (fosd + margin), fosd and margin being means over all bins of demonstrations
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from policies.coarse_to_fine import CoarseToFinePolicy
from robot_rl.data.replay import DEMONSTRATION, Batch
from robot_rl.learning.algorithms.actor_critic import UNLIMITED, Limits
from robot_rl.learning.algorithms.value_based import ValueBased, ValueBasedConfig, over_demonstrations
from robot_rl.learning.parts.heads import C51
from robot_rl.util.limits import NonNegativeFloat, PositiveInt


@dataclass(frozen=True)
class CQNConfig(ValueBasedConfig):
    atoms: PositiveInt = 51
    """Number of atoms of the return distribution."""
    value_low: float | None = None
    """Return of the lowest atom; None: the reward's least return."""
    value_high: float | None = None
    """Return of the highest atom; None: the reward's greatest return."""
    td_weight: NonNegativeFloat = 0.1
    """Weight of the temporal-difference loss."""
    imitation: NonNegativeFloat = 1.0
    """Weight of the imitation loss on demonstrations."""
    margin: NonNegativeFloat = 0.01
    """Margin by which values of demonstrated bins should exceed those of other bins; 0: stochastic dominance alone."""


class CQN(ValueBased):
    """Value-based agent with a return distribution per bin; all values start at 0."""

    policy: CoarseToFinePolicy
    config: CQNConfig

    def __init__(self, policy: CoarseToFinePolicy, config: CQNConfig, seed: int = 0, value_limits: Limits = UNLIMITED):
        atoms = policy.atoms
        self.head = C51(atoms.low, atoms.high, atoms.count)
        self.head.start(policy.network.value)
        super().__init__(policy, config, seed, value_limits)

    def _target(self, batch: Batch, after: Tensor) -> Tensor:
        """Return target distributions (B, L, A, atoms) for L levels and A action dimensions."""
        policy = self.policy
        best = policy.greedy(self.online, after)  # type: ignore[arg-type]
        following = taken(policy.logits(policy.network, after, best), best)
        return self.head.target(batch["reward"], batch["discount"], following)

    def _loss(self, batch: Batch, features: Tensor, after: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        c, policy = self.config, self.policy
        with torch.no_grad():
            bins, target = policy.codec.encode(batch["action"]), self._target(batch, after)
        logits = policy.logits(self.online, features, bins)  # type: ignore[arg-type]
        td = self.head.loss(taken(logits, bins), target).mean()
        value = self.head.mean(logits)
        metrics = {"values/td": td.detach(), "values/q": value.detach().amax(-1).mean()}
        loss = c.td_weight * td
        if c.imitation:
            below = logits.softmax(-1).cumsum(-1)
            fosd = (taken(below, bins)[:, :, :, None] - below).clamp_min(0).sum(-1)
            behind = fosd
            if c.margin:
                behind = fosd + (c.margin - taken(value[..., None], bins) + value).clamp_min(0)
            imitation = over_demonstrations(behind.mean((1, 2, 3)), batch)
            loss = loss + c.imitation * imitation
            metrics |= {"values/imitation": imitation.detach(), "values/demos": batch[DEMONSTRATION].float().mean()}
        return loss, metrics


def taken(values: Tensor, bins: Tensor) -> Tensor:
    """Return the entries (B, L, A, K) of values (B, L, A, bins, K) at bins (B, L, A)."""
    index = bins[..., None, None].expand(*bins.shape, 1, values.shape[-1])
    return torch.gather(values, 3, index).squeeze(3)
