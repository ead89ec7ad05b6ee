"""Self-referential policy optimization: Fei et al. 2025, "SRPO" (arXiv 2511.15605).

The reward of a success is 1. The reward of a failure grows with its similarity to the group's successes, measured on
frozen features:

    reward = 0.6 sigmoid(10 (0.5 - u)),   u: distance to the nearest cluster of successes, scaled to [0, 1] in the group
    A      = (reward - mean) / std of the group,   shared by all decisions of an episode
    loss   = -mean min(r A, clip(r, 1 - 0.2, 1 + 0.28) A),   r of each token
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.data.sources import Trajectories
from robot_rl.learning.algorithms.token_groups import TokenGroups, TokenGroupsConfig
from robot_rl.util.limits import Fraction, PositiveFloat, PositiveInt

SHARE, STEEPNESS = 0.6, 10.0
"""Largest reward of a failed episode, and slope of the sigmoid in this reward."""
NEAR = 0.5
"""Distance within which successes are neighbours (DBSCAN's eps), relative to the distance of unrelated points."""


@dataclass(frozen=True)
class SRPOConfig(TokenGroupsConfig):
    minibatches: PositiveInt = 8
    """Number of gradient steps per pass over the episodes."""
    shaping: bool = True
    """Reward failed episodes for progress; False: reward success alone, as in GRPO."""
    baseline: bool = True
    """Subtract the group's mean reward; False, without shaping: failures count for nothing, so successes are cloned."""
    clip_low: PositiveFloat = 0.2
    """Clip range of the probability ratio r below 1."""
    clip_high: PositiveFloat = 0.28
    """Clip range of the probability ratio r above 1."""
    least: Fraction = 0.1
    """Least success rate at which a group of episodes is learned from."""
    most: Fraction = 0.9
    """Greatest success rate at which a group of episodes is learned from."""


class SRPO(TokenGroups):
    """Learner of a token policy from group-relative rewards of its episodes."""

    config: SRPOConfig

    def update(self, played: Trajectories) -> dict[str, float]:
        c = self.config
        reward = played.success.float()
        if c.shaping:
            reward = progress_rewards(embedded(played), played.success, played.group)
        advantage, counts = relative(reward, played, c.least, c.most)
        advantage = advantage if c.baseline else reward
        rows = counts[played.episode].nonzero()[:, 0]
        if not len(rows):
            return {"srpo/reward": float(reward.mean()), "srpo/decisions": 0.0}
        data = {name: values[rows.to(values.device)] for name, values in played.columns.items()}
        gained = advantage[played.episode[rows]].to(self.device)[:, None]
        gains, clipped = [], []
        for _ in range(c.epochs):
            order = torch.randperm(len(rows), generator=self.rng, device=self.device)
            for pick in order.split(-(-len(rows) // c.minibatches)):
                change = self._log_prob(data["features"][pick], data["tokens"][pick]) - data["log_prob"][pick]
                ratio = change.clamp(max=20.0).exp()
                held = ratio.clamp(1 - c.clip_low, 1 + c.clip_high)
                gain = torch.minimum(ratio * gained[pick], held * gained[pick]).mean()
                self._step(-gain)
                gains.append(gain.detach())
                clipped.append((ratio != held).float().mean())
        return {
            "srpo/reward": float(reward.mean()),
            "srpo/decisions": float(len(rows)),
            "srpo/surrogate": float(torch.stack(gains).mean()),
            "srpo/clipped": float(torch.stack(clipped).mean()),
        }


def embedded(played: Trajectories) -> Tensor:
    """Return embeddings (E, 2F) of episodes: the mean features (F,) of an episode's decisions, and the features of its
    last decision."""
    features = played.columns["features"].flatten(1).cpu()
    count = torch.bincount(played.episode, minlength=len(played.success))[:, None]
    mean = features.new_zeros(len(count), features.shape[1]).index_add(0, played.episode, features) / count
    at = torch.arange(len(features))  # rows are in the order of time
    last = torch.zeros(len(count), dtype=torch.long).scatter_reduce(0, played.episode.cpu(), at, "amax")
    return torch.cat([mean, features[last]], 1)


def progress_rewards(seen: Tensor, success: Tensor, group: Tensor) -> Tensor:
    """Return rewards (E,) of episodes from their embeddings `seen` (E, F), success (E,) bool and group number (E,)."""
    reward = success.float()
    for number in group.unique():
        rows = (group == number).nonzero()[:, 0]
        succeeded, failed = rows[success[rows]], rows[~success[rows]]
        if not len(succeeded) or not len(failed):
            continue
        mean, spread = seen[succeeded].mean(0), seen[rows].std(0).clamp_min(1e-6)
        scaled = (seen[rows] - mean) / spread
        distance = torch.cdist(scaled[~success[rows]], centres(scaled[success[rows]])).amin(1)
        low, high = distance.aminmax()
        u = (distance - low) / (high - low) if high > low else torch.full_like(distance, 0.5)
        reward[failed] = SHARE * torch.sigmoid(STEEPNESS * (0.5 - u))
    return reward


def centres(points: Tensor) -> Tensor:
    """Return the centres (K, F) of the clusters of points (n, F), or the mean of all points if there is no cluster.
    DBSCAN finds the clusters, of at least two points each (Ester et al. 1996)."""
    near = torch.cdist(points, points) <= NEAR * (2 * points.shape[1]) ** 0.5
    for _ in range(len(points)):  # transitive closure
        near = (near.float() @ near.float()) > 0
    rows = [points[row].mean(0) for row in near.unique(dim=0) if row.sum() > 1]
    return torch.stack(rows) if rows else points.mean(0, keepdim=True)


def relative(reward: Tensor, played: Trajectories, least: float, most: float) -> tuple[Tensor, Tensor]:
    """Return the episodes' advantages (E,) within their groups, and (E,) bool, which episodes are learned from:
    those of groups with a success rate from `least` to `most`."""
    advantage, counts = torch.zeros_like(reward), torch.zeros(len(reward), dtype=torch.bool)
    for number in played.group.unique():
        rows = played.group == number
        rate, spread = played.success[rows].float().mean(), reward[rows].std()
        if least <= rate <= most and spread > 0:
            advantage[rows], counts[rows] = (reward[rows] - reward[rows].mean()) / spread, True
    return advantage, counts
