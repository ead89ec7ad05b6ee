"""Trajectory-wise preference optimization (TPO): Zhang et al. 2024, "GRAPE" (arXiv 2411.19309).

    loss = -log sigmoid(beta [sum_t log pi(a+|s+) / ref(a+|s+) - sum_t log pi(a-|s-) / ref(a-|s-)])
    rank = 5 success + exp(-relative duration) + 0.01 mean log-probability

+ marks a better and - a worse episode of a group, whose episodes start in the same situation. The reference is the
policy that collected the episodes. The paper ranks episodes by stage costs from a vision-language model; here the
episode's duration replaces these costs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from robot_rl.data.sources import Trajectories
from robot_rl.learning.algorithms.token_groups import TokenGroups, TokenGroupsConfig
from robot_rl.util.limits import PositiveFloat, PositiveInt


@dataclass(frozen=True)
class GRAPEConfig(TokenGroupsConfig):
    beta: PositiveFloat = 0.1
    """Factor of the log-ratios; a larger factor keeps the policy closer to the reference policy."""
    pairs: PositiveInt = 8
    """Number of pairs of episodes per gradient step."""


class GRAPE(TokenGroups):
    """Learner of a token policy from preferences between its episodes."""

    config: GRAPEConfig

    def update(self, played: Trajectories) -> dict[str, float]:
        c, chosen = self.config, pairs(played)
        if not len(chosen):
            return {"grape/pairs": 0.0}
        losses, margins = [], []
        for _ in range(c.epochs):
            for pick in torch.randperm(len(chosen), generator=self.rng, device=self.device).cpu().split(c.pairs):
                loss, margin = self.loss(played, chosen[pick])
                self._step(loss)
                losses.append(loss.detach())
                margins.append(margin)
        return {
            "grape/pairs": float(len(chosen)),
            "grape/loss": float(torch.stack(losses).mean()),
            "grape/margin": float(torch.stack(margins).mean()),
        }

    def loss(self, played: Trajectories, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of pairs (K, 2) of a better and a worse episode, and the mean difference of their log-ratios,
        nats."""
        sign = torch.zeros(len(chosen), len(played.success))
        sign[torch.arange(len(chosen)), chosen[:, 0]] = 1.0
        sign[torch.arange(len(chosen)), chosen[:, 1]] = -1.0
        rows = sign.abs().sum(0).bool()[played.episode].nonzero()[:, 0]
        data = {name: values[rows.to(values.device)] for name, values in played.columns.items()}
        now = self._log_prob(data["features"], data["tokens"])
        change = (now - data["log_prob"]).sum(1)
        margin = sign[:, played.episode[rows]].to(self.device) @ change
        return -logsigmoid(self.config.beta * margin).mean(), margin.detach().mean()


def ranks(played: Trajectories) -> Tensor:
    """Return the rank (E,) of each episode, a number that is larger for better episodes."""
    log_prob = played.total(played.columns["log_prob"].mean(1).cpu())
    log_prob = log_prob / torch.bincount(played.episode, minlength=len(played.success))
    return 5 * played.success + torch.exp(-played.steps / played.steps.max()) + 0.01 * log_prob


def pairs(played: Trajectories) -> Tensor:
    """Return pairs (K, 2), each of a successful and a failed episode of one group. The group's best episode is paired
    with its worst, the second best with the second worst, and so on."""
    rank, chosen = ranks(played), []
    for number in played.group.unique():
        rows = (played.group == number).nonzero()[:, 0]
        order = rows[rank[rows].argsort(descending=True)]
        couples = zip(order.tolist(), order.flip(0).tolist(), strict=True)
        chosen += [(a, b) for a, b in couples if played.success[a] and not played.success[b]]
    return torch.tensor(chosen, dtype=torch.long).reshape(-1, 2)
