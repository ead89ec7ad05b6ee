"""How far an episode has come, learned from demonstrations, as a potential that shapes the reward of practice.

Lu et al. 2025, "VLA-RL" (arXiv 2505.18719) learn such a reward with a second vision-language model. Here a small
network reads the frozen features that the policy itself has of pictures and instruction:

    Phi(s) in [0, 1]:  t / T in a demonstration of T frames;  0 where another instruction is read than was followed
    r'     = r + weight (gamma Phi(s') - Phi(s)),   Phi = 0 after a terminal step

Shaping by a potential does not change which policy is best (Ng et al. 1999). Where a time limit cuts a chunk, its end
is not seen, and Phi stays what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from policies.base import Normalizer
from robot_rl.interface.observation_spec import LANGUAGE

EVERY, BATCH, READ = 4, 256, 64
"""Frames from one that is learned from to the next, and samples that are learned from or read at once."""
UPDATES, LR = 1000, 1e-3


class ProgressEstimate(nn.Module):
    """Estimate progress from features (B, width)."""

    def __init__(self, width: int, hidden: int = 128):
        super().__init__()
        self.normalizer = Normalizer(width)
        self.net = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, features: Tensor) -> Tensor:
        """Return progress (B,) in [0, 1]."""
        return self.net(self.normalizer(features)).sigmoid()[:, 0]

    def fit(
        self, read: Callable[[dict[str, Tensor]], Tensor], episodes: Sequence[dict[str, Tensor]], rng: torch.Generator
    ) -> float:
        """Fit to successful episodes, whose observations `read` turns into features; return the last error, RMS."""
        features, target = labelled(read, episodes, rng)
        self.normalizer.fit(features)
        optimizer, loss = torch.optim.Adam(self.parameters(), LR), torch.zeros(())
        for _ in range(UPDATES):
            pick = torch.randint(len(target), (BATCH,), generator=rng).to(target.device)
            loss = (self(features[pick]) - target[pick]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return float(loss.detach().sqrt())


@torch.no_grad()
def labelled(
    read: Callable[[dict[str, Tensor]], Tensor], episodes: Sequence[dict[str, Tensor]], rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return features (N, width) of frames and their progress (N,), then the same frames read with the instruction of
    another episode: 0 where that differs. Of an episode whose instruction changed, only the last one was achieved."""
    names = [name for name in episodes[0] if name.startswith("observation.")]
    parts, ways = [], []
    for episode in episodes:
        count, told = len(episode["action"]), episode[LANGUAGE]
        before = (told[:count] != told[count - 1]).any(1).nonzero()
        begun = int(before[-1]) + 1 if len(before) else 0
        parts.append({name: episode[name][begun:count:EVERY] for name in names})
        ways.append((torch.arange(count - begun) / max(1, count - begun - 1))[::EVERY])
    rows = {name: torch.cat([part[name] for part in parts]) for name in names}
    done = torch.cat(ways)
    other = rows[LANGUAGE][torch.randperm(len(done), generator=rng)]
    differs = (other != rows[LANGUAGE]).any(1)
    wrong = {name: values[differs] for name, values in rows.items()} | {LANGUAGE: other[differs]}
    found = [
        read({name: values[k : k + READ] for name, values in batch.items()})
        for batch in (rows, wrong)
        for k in range(0, len(batch[LANGUAGE]), READ)
    ]
    features = torch.cat(found)
    return features, torch.cat([done, torch.zeros(int(differs.sum()))]).to(features.device)


def shaping(
    potential: Tensor, last: Tensor, begins: Tensor, terminated: Tensor, done: Tensor, discount: float
) -> Tensor:
    """Return gamma Phi(s') - Phi(s) (T, N) of the steps of a rollout, after which the potential is `last` (N,).

    `potential` (T, N) is known where a chunk begins, and holds until the next one. Before the first, where it is not
    known, nothing is gained; after a terminal step it is 0, and after a time limit as before.
    """
    time = torch.arange(len(begins), device=begins.device)[:, None]
    since = torch.where(begins, time, -1).cummax(0).values
    held = potential.gather(0, since.clamp_min(0))
    following = torch.cat([held[1:], last[None]])
    following = torch.where(done, held, following).where(~terminated, 0.0)
    return torch.where(since >= 0, discount * following - held, 0.0)
