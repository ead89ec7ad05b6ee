"""Policy that draws a latent plan and follows it for a while: Lynch et al. 2020, "Learning Latent Plans from Play"
(Play-LMP, arXiv 1903.01973).

    recognition  q(z | window)        sees a whole window of play, in training only
    proposal     p(z | state, goal)   guesses the plan from the first state and the goal alone
    decoder      pi(a | state, goal, z)

    loss = mean of -log pi(a_t | s_t, goal, z) over the window's steps + beta KL(q || p),   z ~ q, goal = window's end

Play goes to the same goal in several ways. Their mean may be no way at all; a plan says which one.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from policies.base import Normalizer, Observation, Policy, Size, from_json, mlp, normal
from policies.feedforward import require_count
from policies.hilbert import GoalIndices
from robot_rl.util.limits import NonNegativeFloat, NonNegativeInt, PositiveInt, validate

GOAL, INSIDE = "goal.observation.state", "inside"
"""Keys of the state (B, D) in which a window ends, and of which of its rows (B, W) belong to it, bool."""
Gaussian = tuple[Tensor, Tensor]
"""Mean and log standard deviation (B, Z)."""


@dataclass(frozen=True)
class PlayConfig:
    """Latent plans, their proposal and their decoder."""

    plan: NonNegativeInt = 8
    """Number of dimensions of a plan; 0: no plans, which is cloning with hindsight goals."""
    hold: PositiveInt = 20
    """Number of steps for which a plan is held before the next is drawn; about 1 s."""
    window: tuple[PositiveInt, PositiveInt] = (16, 32)
    """Shortest and longest window of play, steps; about 1 to 2 s. Only the ends of episodes give shorter windows."""
    beta: NonNegativeFloat = 0.1
    """Weight of KL(recognition || proposal), against the mean log-likelihood of an action."""
    hidden: tuple[PositiveInt, ...] = (64, 64)
    """Widths of the hidden layers of all three networks."""

    def __post_init__(self) -> None:
        validate(self)
        if self.window[0] > self.window[1]:
            raise ValueError(f"window {self.window} has its shortest length last; name the shortest first")


def divergence(q: Gaussian, p: Gaussian) -> Tensor:
    """Return KL(q || p) (B,), nats, of diagonal Gaussians."""
    (mean, log_std), (other, other_log_std) = q, p
    variance = (2 * log_std).exp() + (mean - other).square()
    return (other_log_std - log_std + 0.5 * variance * (-2 * other_log_std).exp() - 0.5).sum(-1)


def network(sizes: list[int]) -> nn.Sequential:
    """Return an MLP with LayerNorm: between the plans of two ways, its actions change fast. Without, plans from there,
    which the proposal draws too, are decoded to the mean of the ways."""
    return mlp(sizes, nn.ReLU, norm=True)


class PlayPolicy(Policy):
    """Action = clip(mean of pi(. | state, goal, z), -1, 1), for the goal in the state. Each environment holds its plan
    z for `hold` steps."""

    class_name, config_class = "play", PlayConfig
    horizon = execute = 1
    LOG_STD, PLAN_LOG_STD = (-4.0, 2.0), (-1.0, 2.0)
    """Bounds of log standard deviations, of actions and of plans. Plans of a small scale would be decoded to blurred
    actions."""

    def __init__(self, size: Size, config: PlayConfig, indices: GoalIndices):
        super().__init__()
        self.size, self.config, self.indices = size, config, indices
        self.normalizer = Normalizer(size.observation)
        self.kept = indices.others(size.observation)
        context, step = len(self.kept) + len(indices.achieved), len(self.kept) + size.action
        if config.plan:
            window = config.window[1] * step + len(indices.achieved)
            self.recognition = network([window, *config.hidden, 2 * config.plan])
            self.proposal = network([context, *config.hidden, 2 * config.plan])
        self.decoder = network([context + config.plan, *config.hidden, size.action])
        self.log_std = nn.Parameter(torch.full((size.action,), math.log(0.5)))
        self.plans: Tensor | None = None
        """(B, Z) plan of every environment; None before the first"""
        self.left: Tensor | None = None
        """(B,) number of steps for which each plan is still held; 0: the next step draws a new one"""

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"indices": asdict(self.indices)}

    @classmethod
    def build(cls, description: dict[str, Any]) -> PlayPolicy:
        config = from_json(PlayConfig, description["config"])
        return cls(Size.from_json(description["size"]), config, from_json(GoalIndices, description["indices"]))

    def fit(self, columns: dict[str, Tensor]) -> None:
        self.normalizer.fit(columns["observation.state"])

    def context(self, state: Tensor, goal: Tensor) -> Tensor:
        """Return the input (..., C) of proposal and decoder: states (..., D) without their goals, and goals (..., G) in
        the units of achieved states, both standardized."""
        at = list(self.indices.achieved)
        goal = (goal - self.normalizer.mean[at]) / self.normalizer.std[at]
        return torch.cat([self.normalizer(state)[..., self.kept], goal], -1)

    def recognize(self, context: Tensor, action: Tensor, inside: Tensor) -> Gaussian:
        """Return q(z | window) for contexts (B, W, C), actions (B, W, A) and the rows `inside` (B, W) of the window."""
        steps = torch.cat([context[..., : len(self.kept)], action], -1) * inside[..., None]
        return self._plan(self.recognition(torch.cat([steps.flatten(1), context[:, 0, len(self.kept) :]], -1)))

    def propose(self, context: Tensor) -> Gaussian:
        """Return p(z | state, goal) for contexts (B, C)."""
        return self._plan(self.proposal(context))

    def _plan(self, output: Tensor) -> Gaussian:
        mean, log_std = output.chunk(2, -1)
        return mean, log_std.clamp(*self.PLAN_LOG_STD)

    def decode(self, context: Tensor, plan: Tensor) -> Tensor:
        """Return mean actions (..., A), not clipped, for contexts (..., C) and plans (..., Z)."""
        return self.decoder(torch.cat([context, plan], -1))

    def loss(self, window: Observation, chunk: Tensor, rng: torch.Generator) -> Tensor:
        """Return the loss (B,) of windows: observation.state (B, W, D), actions `chunk` (B, W, A), and columns `GOAL`
        and `INSIDE`."""
        inside, goal = window[INSIDE], window[GOAL][:, None, list(self.indices.achieved)]
        context = self.context(window["observation.state"], goal.expand(-1, chunk.shape[1], -1))
        plan, kl = chunk.new_zeros(len(chunk), 0), chunk.new_zeros(len(chunk))
        if self.config.plan:
            q = self.recognize(context, chunk, inside)
            plan = q[0] + q[1].exp() * normal(q[0].shape, rng, q[0].device)
            kl = divergence(q, self.propose(context[:, 0]))
        log_std = self.log_std.clamp(*self.LOG_STD)
        error = chunk - self.decode(context, plan[:, None].expand(-1, chunk.shape[1], -1))
        unlikely = (0.5 * (error / log_std.exp()).square() + log_std).sum(-1)
        unlikely = (unlikely * inside).sum(1) / inside.sum(1)
        self.metrics = {"play/kl": kl.detach().mean(), "play/error": unlikely.detach().mean()}
        return unlikely + self.config.beta * kl

    def reset(self, ids: Tensor | None = None) -> None:
        if ids is None:
            self.plans = self.left = None
        elif self.left is not None:
            self.left[ids] = 0

    @torch.no_grad()
    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        state = observation["observation.state"]
        context = self.context(state, state[:, list(self.indices.wanted)])
        if self.plans is None or self.left is None:
            self.plans = state.new_zeros(len(state), self.config.plan)
            self.left = torch.zeros(len(state), dtype=torch.long, device=state.device)
        require_count(len(self.left), len(state))
        due = self.left == 0
        if self.config.plan and due.any():
            mean, log_std = self.propose(context)
            drawn = mean + log_std.exp() * normal(mean.shape, rng, mean.device)
            self.plans = torch.where(due[:, None], drawn, self.plans)
        self.left = torch.where(due, self.config.hold, self.left) - 1
        return self.decode(context, self.plans).clamp(-1, 1)[:, None]

    def peek(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> Tensor:
        kept = self.plans, self.left
        chunk = self.act(observation, rng)  # all rows, because every environment has its plan
        self.plans, self.left = kept
        return chunk[rows]
