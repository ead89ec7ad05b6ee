"""Autoregressive soft Q-network: Liu et al. 2025 (ARSQ, 2502.00288).

    td:        (V_i(s) + A_i(s, a) - y)^2 / 2,   y = r + discount * min_i Vbar_i(s'),   i = 1, 2
    imitation: sum over bins of max(A_d(bin) - A_d(bin of a), -margin), over demonstrations
    loss:      td + imitation weight * imitation, each summed over the two networks i

Since advantages are normalized, V includes the policy's entropy: V = alpha log sum over a of exp(Q / alpha).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from policies.autoregressive import AutoregressivePolicy, BinAdvantages
from robot_rl.data.replay import Batch
from robot_rl.learning.algorithms.value_based import ValueBased, ValueBasedConfig, over_demonstrations
from robot_rl.util.limits import NonNegativeFloat


@dataclass(frozen=True)
class ARSQConfig(ValueBasedConfig):
    imitation: NonNegativeFloat = 0.1
    """Weight of the imitation loss on demonstrations."""
    margin: NonNegativeFloat = 0.1
    """Margin by which advantages of demonstrated bins should exceed those of other bins, in units of the return."""


class ARSQ(ValueBased):
    """Value-based agent whose policy is the softmax of its advantages."""

    policy: AutoregressivePolicy
    config: ARSQConfig
    online: BinAdvantages

    def _loss(self, batch: Batch, features: Tensor, after: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        c, policy = self.config, self.policy
        bins = policy.codec.encode(batch["action"])
        with torch.no_grad():
            target = batch["reward"] + batch["discount"] * policy.network.value(after).amin(0)
        advantages = policy.advantages(self.online, features, bins)
        index = bins[None, ..., None].expand(*advantages.shape[:-1], 1)
        taken = advantages.gather(-1, index)
        q = self.online.value(features) + taken.sum((2, 3, 4))
        td = 0.5 * (q - target).square().mean(1).sum()
        metrics = {"values/td": td.detach(), "values/q": q.detach().mean()}
        loss = td
        if c.imitation:
            behind = (advantages - taken).clamp_min(-c.margin).sum((2, 3, 4)).sum(0)
            imitation = over_demonstrations(behind, batch)
            loss = loss + c.imitation * imitation
            metrics |= {"values/imitation": imitation.detach()}
        return loss, metrics
