"""Trajectory-wise preferences: Zhang et al. 2024, "GRAPE" (arXiv 2411.19309). Of the episodes of a group, which begin
alike, better ones are preferred to worse ones as a whole (TPO):

    loss = -log sigmoid(beta [sum_t log pi(a+|s+) / ref(a+|s+) - sum_t log pi(a-|s-) / ref(a-|s-)])
    rank = 5 success + exp(-time share) + 0.01 mean log-probability

The reference is the policy that played. The paper's costs of stages, which a vision-language model proposes, are
replaced by the share of its time that an episode took.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from robot_rl.data.sources import Trajectories
from robot_rl.learning.algorithms.token_groups import TokenGroups, TokenGroupsConfig
from robot_rl.util.limits import PositiveFloat, PositiveInt


@dataclass(frozen=True)
class GRAPEConfig(TokenGroupsConfig):
    """Hyperparameters of the update."""

    beta: PositiveFloat = 0.1
    """How far the policy may move from the reference; less is further."""
    pairs: PositiveInt = 8
    """Pairs of episodes per gradient step."""


class GRAPE(TokenGroups):
    """Updates a policy that writes tokens by preferences between its episodes."""

    config: GRAPEConfig

    def update(self, played: Trajectories) -> dict[str, float]:
        c, found = self.config, pairs(played)
        if not len(found):
            return {"grape/pairs": 0.0}
        losses, margins = [], []
        for _ in range(c.epochs):
            for pick in torch.randperm(len(found), generator=self.rng, device=self.device).cpu().split(c.pairs):
                loss, margin = self.loss(played, found[pick])
                self._step(loss)
                losses.append(loss.detach())
                margins.append(margin)
        return {
            "grape/pairs": float(len(found)),
            "grape/loss": float(torch.stack(losses).mean()),
            "grape/margin": float(torch.stack(margins).mean()),
        }

    def loss(self, played: Trajectories, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of pairs (K, 2) of a better and a worse episode, and by how much the policy now prefers the
        better one, nats."""
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
    """Return how good each episode was (E,)."""
    likely = played.total(played.columns["log_prob"].mean(1).cpu())
    likely = likely / torch.bincount(played.episode, minlength=len(played.success))
    return 5 * played.success + torch.exp(-played.steps / played.steps.max()) + 0.01 * likely


def pairs(played: Trajectories) -> Tensor:
    """Return pairs (K, 2) of a better and a worse episode: in each group the best with the worst, the second best with
    the second worst, as long as one succeeded and the other did not."""
    rank, found = ranks(played), []
    for number in played.group.unique():
        rows = (played.group == number).nonzero()[:, 0]
        order = rows[rank[rows].argsort(descending=True)]
        found += [
            (int(a), int(b))
            for a, b in zip(order, order.flip(0), strict=True)
            if played.success[a] and not played.success[b]
        ]
    return torch.tensor(found, dtype=torch.long).reshape(-1, 2)
