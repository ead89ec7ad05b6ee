"""Imitation of observed states: rewards by optimal transport, and a discount that rises with the agent's progress.

    plan    mu* = argmin sum_tj C_tj mu_tj - eps H(mu), marginals 1 / T;  C: distances between states
    reward  r_t = -sum_j C_tj mu*_tj / mass_t, for the demonstration whose plan costs least
    score   length of the longest increasing subsequence of the demonstrated steps nearest to the agent's, among first p
    p       rises by 1 while the 0.9 quantile of recent episodes' scores is at least 0.9 of that between demonstrations
    gamma   0.2^(1/p)

Liu et al. 2024, "Imitation Learning from Observation with Automatic Discount Scheduling" (ADS, arXiv 2310.07433).
Transport: Cuturi 2013 (arXiv 1306.0895), made exact as by Altschuler et al. 2017 (arXiv 1705.09634, algorithm 2).
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from robot_rl.data.replay import Batch
from robot_rl.util.limits import Fraction, PositiveFloat, PositiveFraction, PositiveInt


@dataclass(frozen=True)
class ImitationConfig:
    features: tuple[str, ...] = ()
    """Fields of observation.state in which agent and demonstrations are compared; (): the whole state."""
    schedule: bool = True
    """Raise the discount with the agent's progress; if not, `agent.discount` stays."""
    weight: PositiveFraction = 0.2
    """Weight of the reward at the end of the progress p; the discount is weight^(1/p)."""
    start: PositiveFraction = 0.2
    """Initial progress, as a share of the longest episode's steps."""
    threshold: PositiveFraction = 0.9
    """Share of the demonstrations' score that the agent's score must reach for progress."""
    quantile: Fraction = 0.9
    """Quantile of recent episodes' scores that counts as the agent's score."""
    recent: PositiveInt = 10
    """Number of recent episodes whose scores count."""
    advances: PositiveInt = 5
    """Largest number of steps by which the progress rises after an episode."""
    smoothing: PositiveFloat = 0.02
    """Weight of the transport plan's entropy, as a share of the mean cost."""
    iterations: PositiveInt = 50
    """Number of Sinkhorn iterations."""


def transport(cost: Tensor, give: Tensor, take: Tensor, smoothing: float, iterations: int) -> Tensor:
    """Return plans (E, T, D) of little cost that move masses `give` (T,) of states to masses `take` (E, D) of others.

    `cost`: (E, T, D). Masses sum to 1; they are 0 in `take` for rows that only fill up a shorter sequence.
    """
    cost, give, take = cost.double(), give.double()[:, None], take.double()[:, None]
    scale = smoothing * (cost * give * take).sum((1, 2), keepdim=True)
    kernel = -cost / scale.clamp_min(1e-12)
    to = torch.zeros_like(take)
    for _ in range(iterations):  # logarithms, since a small entropy underflows otherwise
        off = give.log() - (kernel + to).logsumexp(2, keepdim=True)
        to = take.log() - (kernel + off).logsumexp(1, keepdim=True)
    plan = (kernel + off + to).exp()
    # Few iterations leave errors in the marginals: take off what is too much, then spread what is missing.
    plan = plan * (give / plan.sum(2, keepdim=True)).clamp(max=1)
    plan = plan * (take / plan.sum(1, keepdim=True).clamp_min(1e-300)).clamp(max=1)
    lacks = (give - plan.sum(2, keepdim=True)).clamp(min=0)
    wants = (take - plan.sum(1, keepdim=True)).clamp(min=0)
    return plan + lacks * wants / lacks.sum(1, keepdim=True).clamp_min(1e-300)


def masses(lengths: Tensor, horizon: int) -> Tensor:
    """Return the masses (E, D) of the states of sequences of `lengths` (E,): 1 / horizon each, the rest on the last.

    So a sequence that ends early counts as if its last state stayed.
    """
    place = torch.arange(int(lengths.max()))
    mass = (place < lengths[:, None]) / torch.tensor(horizon).double()
    return torch.where(place == lengths[:, None] - 1, (1 - (lengths - 1) / horizon)[:, None].double(), mass)


def distances(states: Tensor, others: Tensor) -> Tensor:
    """Return Euclidean distances (..., T, D) of states (..., T, F) from others (..., D, F)."""
    return torch.cdist(states, others, compute_mode="donot_use_mm_for_euclid_dist")  # the fast way errs near 0


def longest_increasing(rows: Tensor) -> Tensor:
    """Return the length (B,) of the longest strictly increasing subsequence of each row (B, T) of numbers from 0 on.

    A row that ends early is filled up with -1.
    """
    ends = torch.full((len(rows), rows.shape[1] + 1), torch.iinfo(torch.long).max)
    """The smallest last number of an increasing subsequence, by length."""
    for column in rows.long().split(1, 1):
        ends.scatter_(1, torch.searchsorted(ends, column.contiguous()), column)
    return (ends[:, :-1] < torch.iinfo(torch.long).max).sum(1)


class Imitation:
    """Reward of finished episodes, and discount, of an agent that imitates demonstrated states."""

    def __init__(
        self, demonstrations: Sequence[Tensor], config: ImitationConfig, discount: float, horizon: int = 0,
        features: Callable[[Tensor], Tensor] = lambda states: states,
    ):  # fmt: skip
        """`demonstrations`: states (T, S) that the steps of each demonstration reached. `discount`: discount without a
        schedule. `horizon`: steps of the longest episode, if known. `features`: from states (T, S) to what is compared
        (T, F)."""
        self.config, self.fixed, self.features = config, discount, features
        self.demos = [features(states).cpu() for states in demonstrations]
        """Features (T, F) of each demonstration."""
        lengths = torch.tensor([len(demo) for demo in self.demos])
        self.padded = pad_sequence(self.demos, batch_first=True)
        self.horizon = max(horizon, int(lengths.max()))
        """Steps of an episode; sequences that end earlier are taken to stay in their last state."""
        self.mass = masses(lengths, self.horizon)
        """Mass (E, D) of each demonstrated state."""
        self.progress = max(1, round(config.start * self.horizon))
        """Number p of first steps that the agent must imitate now; it never falls."""
        self.recent: deque[tuple[Tensor, int]] = deque(maxlen=config.recent)
        """First features (T, F) of recent episodes, each with the number of its demonstration."""
        self._references: dict[int, float] = {}

    @property
    def discount(self) -> float:
        """Return the present discount per step."""
        return float(self.config.weight ** (1 / self.progress)) if self.config.schedule else self.fixed

    def reward(self, states: Tensor) -> tuple[Tensor, int]:
        """Return the rewards (T,) of steps that reached states (T, S), and the number of the nearest demonstration.

        A reward is minus the mean distance from a state to the demonstrated states that it is matched with.
        """
        steps = len(states)
        give = masses(torch.tensor([steps]), max(steps, self.horizon))[0]
        cost = distances(self.features(states).cpu(), self.padded)
        moved = cost * transport(cost, give, self.mass, self.config.smoothing, self.config.iterations)
        nearest = int(moved.sum((1, 2)).argmin())
        return -(moved[nearest].sum(1) / give).float(), nearest

    def __call__(self, episode: Batch) -> Tensor:
        """Return the rewards (T,) of a finished episode, whose observed columns have T + 1 rows; progress may rise."""
        states = episode["observation.state"][1:]
        reward, nearest = self.reward(states)
        if self.config.schedule:
            self.recent.append((self.features(states[: self.horizon]).cpu(), nearest))
            self._advance()
        return reward

    def scores(self, pairs: Sequence[tuple[Tensor, int]], progress: int) -> Tensor:
        """Return the score (B,) of each pair of features (T, F) and a demonstration's number, within `progress`."""
        nearest = [distances(seen[:progress], self.demos[k][:progress]).argmin(1) for seen, k in pairs]
        return longest_increasing(pad_sequence(nearest, batch_first=True, padding_value=-1)).float()

    def reference(self, progress: int) -> float:
        """Return the median score between two demonstrations."""
        if progress not in self._references:
            count = range(len(self.demos))
            pairs = [(self.demos[i], j) for i in count for j in count if i != j]
            self._references[progress] = float(self.scores(pairs, progress).quantile(0.5))
        return self._references[progress]

    def _advance(self) -> None:
        for _ in range(self.config.advances):
            if self.progress >= self.horizon:
                return
            score = float(self.scores(self.recent, self.progress).quantile(self.config.quantile))
            if score < self.config.threshold * self.reference(self.progress):
                return
            self.progress += 1

    def metrics(self) -> dict[str, float]:
        """Return the progress in steps, and the discount."""
        return {"train/progress": float(self.progress), "train/discount": self.discount}

    def state_dict(self) -> dict[str, Any]:
        recent = [{"features": seen, "nearest": nearest} for seen, nearest in self.recent]
        return {"progress": self.progress, "recent": recent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.progress = state["progress"]
        self.recent.clear()
        self.recent.extend((each["features"].cpu(), each["nearest"]) for each in state["recent"])
