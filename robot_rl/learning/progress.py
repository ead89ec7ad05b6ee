"""How far an episode has come, learned from demonstrations, as a potential that shapes the reward of practice.

Lu et al. 2025, "VLA-RL" (arXiv 2505.18719) learn such a reward with a second vision-language model. Here a small
network reads the frozen features that the policy itself has of pictures and instruction:

    Phi(s) in [0, 1]:  t / T in a demonstration of T frames;  0 where another instruction is read than was followed
    r'     = r + weight (gamma Phi(s') - Phi(s)),   Phi = 0 after a terminal step

Shaping by a potential does not change which policy is best (Ng et al. 1999).
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


class Progress(nn.Module):
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
    another episode: 0 where that differs."""
    names = [name for name in episodes[0] if name.startswith("observation.")]
    rows = {name: torch.cat([e[name][: len(e["action"]) : EVERY] for e in episodes]) for name in names}
    ways = [torch.arange(len(e["action"])) / max(1, len(e["action"]) - 1) for e in episodes]
    done = torch.cat([way[::EVERY] for way in ways])
    other = rows[LANGUAGE][torch.randperm(len(done), generator=rng)]
    differs = (other != rows[LANGUAGE]).any(1)
    wrong = {name: values[differs] for name, values in rows.items()} | {LANGUAGE: other[differs]}
    parts = [
        read({name: values[k : k + READ] for name, values in batch.items()})
        for batch in (rows, wrong)
        for k in range(0, len(batch[LANGUAGE]), READ)
    ]
    features = torch.cat(parts)
    return features, torch.cat([done, torch.zeros(int(differs.sum()))]).to(features.device)


def shaping(potential: Tensor, begins: Tensor, terminated: Tensor, done: Tensor, discount: float) -> Tensor:
    """Return gamma Phi(s') - Phi(s) (T, N) of the steps of a rollout.

    `potential` (T, N) is known where a chunk begins, and holds until the next one. Before the first and after the last
    of an episode, where it is not known, it does not change; after a terminal step it is 0.
    """
    time = torch.arange(len(begins), device=begins.device)[:, None]
    since = torch.where(begins, time, -1).cummax(0).values
    held = potential.gather(0, since.clamp_min(0))
    following = torch.cat([held[1:], held[-1:]])
    following = torch.where(done, held, following).where(~terminated, 0.0)
    return torch.where(since >= 0, discount * following - held, 0.0)
