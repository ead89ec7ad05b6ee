"""Plans of states by composed diffusion models, and inverse dynamics that turn plans into actions: Luo et al. 2025,
"Self-Adapting Improvement Loops for Robotic Learning" (SAIL, arXiv 2506.06658).

    plan    = denoised with the score  (1 - w) score_small(plan | state, goal) + w score_prior(plan | state, goal)
    action  = inverse(state before, state after), for each two states of the plan in order

The small model knows its own domain, the frozen prior knows other data. Their weighted score is that of p_small^(1 - w)
p_prior^w at each noise level: a plan that either model excludes is not drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from policies.base import Normalizer, Observation, Policy, Size, from_json, mlp
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from policies.hilbert import GoalIndices
from robot_rl.util.limits import Fraction, PositiveInt, validate

STATE, GOAL, NEXT, FUTURE = (f"{prefix}observation.state" for prefix in ("", "goal.", "next.", "future."))
"""Keys of a sample's state (B, D), its goal (B, D), its next state (B, D), and the states after each action of its
chunk (B, horizon, D)."""
SHARED = ("horizon", "train_steps", "sample_steps", "prediction")
"""Settings in which composed models must agree."""
Part = tuple[DiffusionPolicy, float, Tensor]
"""Model, weight of its score, and its features (B, F) of the observation."""


@dataclass(frozen=True)
class PlannerConfig:
    """Diffusion of plans, its prior's weight, and inverse dynamics."""

    weight: Fraction = 0.5
    """Weight w of the prior's score; 0: the small model alone, 1: the prior alone."""
    initial: Literal["fresh", "prior"] = "fresh"
    """Weights from which the small model is trained. With those of the prior and weight 0, the prior is fine-tuned."""
    plan: DiffusionConfig = field(default_factory=lambda: DiffusionConfig(hidden=128))
    """The small model. A chunk is a plan: the states after each of the next `horizon` steps."""
    inverse: tuple[PositiveInt, ...] = (64, 64)
    """Widths of the hidden layers of the inverse dynamics."""

    def __post_init__(self) -> None:
        validate(self)


def predict(parts: Sequence[Part], noisy: Tensor, time: Tensor) -> Tensor:
    """Return the weighted sum of the models' outputs (B, horizon, P) for noisy plans at noise levels (B,).

    With weights that sum to 1 it is the output of the weighted score, which is affine in both kinds of outputs.
    """
    outputs = [weight * model._predict(noisy, time, condition) for model, weight, condition in parts]
    return torch.stack(outputs).sum(0)


def compose(parts: Sequence[Part], noise: Tensor) -> Tensor:
    """Denoise plans (B, horizon, P) in [-1, 1] with the weighted score, by DDIM without added noise."""
    first, plan = parts[0][0], noise
    for t in first.times:
        time = torch.full((len(plan),), t, device=plan.device)
        plan = first.scheduler.step(predict(parts, plan, time), t, plan).prev_sample
    return plan.clamp(-1, 1)


class Planner(Policy):
    """Plan the components of the state that do not depend on the goal; act to follow the plan."""

    class_name, config_class = "planner", PlannerConfig
    low: Tensor
    high: Tensor

    def __init__(self, size: Size, config: PlannerConfig, indices: GoalIndices, prior: DiffusionConfig | None = None):
        """`prior`: settings of the prior's model; None: there is none."""
        super().__init__()
        self.size, self.config, self.indices = size, config, indices
        self.horizon, self.execute = config.plan.horizon, config.plan.execute
        self.kept = indices.others(size.observation)
        count = len(self.kept)
        inner = Size(count + len(indices.achieved), count)
        self.small = DiffusionPolicy(inner, config.plan)
        self.prior = DiffusionPolicy(inner, prior).requires_grad_(False) if prior else None
        self.before, self.motion = Normalizer(count), Normalizer(count)
        self.inverse = mlp([2 * count, *config.inverse, size.action])
        self.register_buffer("low", -torch.ones(count))
        self.register_buffer("high", torch.ones(count))

    def describe(self) -> dict[str, Any]:
        prior = asdict(self.prior.config) if self.prior else None
        return super().describe() | {"indices": asdict(self.indices), "prior": prior}

    @classmethod
    def build(cls, description: dict[str, Any]) -> Planner:
        size, indices = Size.from_json(description["size"]), from_json(GoalIndices, description["indices"])
        prior = description["prior"] and from_json(DiffusionConfig, description["prior"])
        return cls(size, from_json(PlannerConfig, description["config"]), indices, prior)

    def adopt(self, other: Planner) -> None:
        """Take another planner's small model as the prior, with the scale of its plans. ValueError if the models cannot
        be composed."""
        assert self.prior is not None
        ours, theirs = self.config.plan, other.config.plan
        for name in SHARED:
            own, prior = getattr(ours, name), getattr(theirs, name)
            if own != prior:
                raise ValueError(f"policy.plan.{name} is {own}, that of the prior {prior}; they must agree")
        if (self.kept, self.indices) != (other.kept, other.indices):
            raise ValueError(f"the prior plans for goal fields {other.indices}, not {self.indices}")
        self.prior.load_state_dict(other.small.state_dict())
        if self.config.initial == "prior":
            if ours != theirs:
                raise ValueError(f"policy.initial prior needs the prior's settings of policy.plan, {theirs}")
            self.small.load_state_dict(other.small.state_dict())
        self.low.copy_(other.low)
        self.high.copy_(other.high)

    def fit(self, columns: dict[str, Tensor]) -> None:
        """Fit the normalizers to steps: columns `STATE` and `NEXT` (N, D). What comes from a prior is kept."""
        state, after = columns[STATE], columns[NEXT]
        if self.config.initial == "fresh":
            self.small.fit({STATE: self.context(state, state[:, list(self.indices.achieved)])})
        self.before.fit(state[:, self.kept])
        self.motion.fit((after - state)[:, self.kept], floor=1e-4)
        if self.prior is None:
            low, high = state[:, self.kept].amin(0), state[:, self.kept].amax(0)
            self.low.copy_(low)
            self.high.copy_(torch.maximum(high, low + 1e-3))

    def context(self, state: Tensor, goal: Tensor) -> Tensor:
        """Return the input (B, C) of the models: states (B, D) without their goals, and goals (B, G)."""
        return torch.cat([state[:, self.kept], goal], -1)

    def scaled(self, states: Tensor) -> Tensor:
        """Return the planned components (..., P) of states (..., D), in [-1, 1] within the fitted data."""
        return 2 * (states[..., self.kept] - self.low) / (self.high - self.low) - 1

    def invert(self, before: Tensor, after: Tensor) -> Tensor:
        """Return actions (..., A), not clipped, that lead from components (..., P) of a state to the next."""
        return self.inverse(torch.cat([self.before(before), self.motion(after - before)], -1))

    def loss(self, batch: Observation, chunk: Tensor, rng: torch.Generator) -> Tensor:
        """Return the loss (B,) of samples with columns `STATE`, `GOAL`, `NEXT` and `FUTURE`, and actions `chunk` (B,
        horizon, A): of the small model's plan, and of the inverse dynamics' first action."""
        context = self.context(batch[STATE], batch[GOAL][:, list(self.indices.achieved)])
        plan = self.small.loss({STATE: context}, self.scaled(batch[FUTURE]), rng)
        action = self.invert(batch[STATE][:, self.kept], batch[NEXT][:, self.kept])
        error = (action - chunk[:, 0]).square().mean(-1)
        self.metrics = {"sail/plan": plan.detach().mean(), "sail/inverse": error.detach().mean()}
        return plan + error

    @torch.no_grad()
    def plan(self, observation: Observation, rng: torch.Generator) -> Tensor:
        """Return the planned components (B, horizon, P) of the next states, towards the goals in the state."""
        state, w = observation[STATE], self.config.weight if self.prior else 0.0
        seen = {STATE: self.context(state, state[:, list(self.indices.wanted)])}
        noise = self.small.noise(len(state), rng)
        if self.prior is None or w in (0.0, 1.0):
            plan = (self.prior if self.prior and w else self.small).base(seen, noise)
        else:
            models = ((self.small, 1 - w), (self.prior, w))
            plan = compose([(model, weight, model.condition(seen)) for model, weight in models], noise)
        return (plan + 1) / 2 * (self.high - self.low) + self.low

    @torch.no_grad()
    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        plan = self.plan(observation, rng)
        states = torch.cat([observation[STATE][:, None, self.kept], plan], 1)
        return self.invert(states[:, :-1], states[:, 1:]).clamp(-1, 1)
