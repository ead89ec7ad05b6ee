"""Potential-based reward shaping by task progress, which is learned from demonstrations.

Lu et al. 2025, "VLA-RL" (arXiv 2505.18719) learn a progress reward with a second vision-language model. Here a small
network reads the policy's own frozen features of pictures and instruction:

    Phi(s) in [0, 1]:  t / T in frame t of a demonstration of T frames;  0 for an instruction that was not followed
    r'     = r + weight (gamma Phi(s') - Phi(s)),   Phi = 0 after a terminal step

Potential-based shaping preserves the optimal policy (Ng et al. 1999). If a time limit cuts a chunk, the state at the
cut is not observed, and Phi(s') is taken to be Phi(s).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from policies.base import Normalizer
from robot_rl.interface.observation_spec import LANGUAGE
from robot_rl.learning.parts.objectives import gradient_step

EVERY, BATCH, READ = 4, 256, 64
"""Stride between training frames, batch size of training, and batch size in which features are computed."""
UPDATES, LR = 1000, 1e-3


class ProgressEstimate(nn.Module):
    """Network that estimates task progress from features (B, width)."""

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
        """Fit the network to successful episodes; return the RMS error on the last batch. `read` computes features
        from observations."""
        features, target = labelled(read, episodes, rng)
        self.normalizer.fit(features)
        optimizer, loss = torch.optim.Adam(self.parameters(), LR), torch.zeros(())
        for _ in range(UPDATES):
            pick = torch.randint(len(target), (BATCH,), generator=rng).to(target.device)
            loss = (self(features[pick]) - target[pick]).square().mean()
            gradient_step(loss, optimizer)
        return float(loss.detach().sqrt())


@torch.no_grad()
def labelled(
    read: Callable[[dict[str, Tensor]], Tensor], episodes: Sequence[dict[str, Tensor]], rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return features (N, width) of the episodes' frames, and the frames' progress (N,).

    The frames are followed by copies with another episode's instruction, if the two differ, and progress 0. If an
    episode's instruction changed, only frames with the episode's last instruction are used.
    """
    names = [name for name in episodes[0] if name.startswith("observation.")]
    parts, shares = [], []
    for episode in episodes:
        count, instruction = len(episode["action"]), episode[LANGUAGE]
        earlier = (instruction[:count] != instruction[count - 1]).any(1).nonzero()
        start = int(earlier[-1]) + 1 if len(earlier) else 0
        parts.append({name: episode[name][start:count:EVERY] for name in names})
        shares.append((torch.arange(count - start) / max(1, count - start - 1))[::EVERY])
    rows = {name: torch.cat([part[name] for part in parts]) for name in names}
    progress = torch.cat(shares)
    other = rows[LANGUAGE][torch.randperm(len(progress), generator=rng)]
    differs = (other != rows[LANGUAGE]).any(1)
    wrong = {name: values[differs] for name, values in rows.items()} | {LANGUAGE: other[differs]}
    batches = [
        {name: values[k : k + READ] for name, values in part.items()}
        for part in (rows, wrong)
        for k in range(0, len(part[LANGUAGE]), READ)
    ]
    features = torch.cat([read(batch) for batch in batches])
    return features, torch.cat([progress, torch.zeros(int(differs.sum()))]).to(features.device)


def shaping(
    potential: Tensor, last: Tensor, begins: Tensor, terminated: Tensor, done: Tensor, discount: float
) -> Tensor:
    """Return gamma Phi(s') - Phi(s) (T, N) for the steps of a rollout.

    `potential` (T, N) is valid in steps where a chunk `begins` (T, N) bool, and is held until the next chunk begins.
    `last` (N,) is the potential after the rollout. Steps before the first chunk gain 0. After a terminal step the
    potential is 0; at a time limit it keeps its value.
    """
    time = torch.arange(len(begins), device=begins.device)[:, None]
    since = torch.where(begins, time, -1).cummax(0).values
    held = potential.gather(0, since.clamp_min(0))
    following = torch.cat([held[1:], last[None]])
    following = torch.where(done, held, following).where(~terminated, 0.0)
    return torch.where(since >= 0, discount * following - held, 0.0)
