"""Actions within a range that grows as the robot learns: Smith et al. 2023, "Grow Your Limits: Continuous Improvement
with Real-World RL for Robotic Locomotion" (APRL, arXiv 2310.17634).

    actor:    the actor's loss + penalty |a|_1 for each sampled a with a component outside [-range, range]
    model:    |f(s, a) - (s' - s)|^2, per component in units of its variance
    surprise: the model's error in the steps just taken / its error in steps from the replay, of a step at most LARGEST
    range:    grows while the surprise is small, shrinks faster when it is large, as after a change of the dynamics

The replay and the critics know nothing of the range, so old steps stay valid. Deviations: the range moves in equal
steps, and not linearly in time and by halves; the surprise is relative, so that its limit does not depend on the task,
and bounded in each step, so that other dynamics shrink the range and a single fall does not; dropout in the critics is
left out.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from policies.base import Observation, elu, mlp
from robot_rl.data.replay import NEXT, Batch
from robot_rl.learning.agent import LearningPhase
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig, Limits
from robot_rl.learning.parts.curriculum import Curriculum
from robot_rl.learning.parts.objectives import gradient_step
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeFloat, PositiveFloat, PositiveFraction, PositiveInt

MOVES = 100
"""Number of steps in which the range grows from its start to its end."""
BACK = 20.0
"""Number of these steps that the range shrinks by at once."""
LARGEST = 2.0
"""Largest surprise of a step, in units of the limit."""
MEMORY = 0.99
"""Share of the past in the running means of the model's error and of the variance of the changes, per update."""


@dataclass(frozen=True)
class APRLConfig(ActorCriticConfig):
    range_start: PositiveFraction = 0.35
    """Largest magnitude of a component of the first actions, in units of the action range [-1, 1]."""
    range_end: PositiveFraction = 0.6
    """Largest magnitude that the range grows to."""
    range_steps: PositiveInt = 30_000
    """Environment steps in which the range grows from start to end without a surprise."""
    penalty: NonNegativeFloat = 12.0
    """Weight of the magnitudes of an action outside the range, in units of the value; 0: no range."""
    surprise: PositiveFloat = 1.5
    """Ratio of the model's error in new steps to that in the replay, above which the range shrinks."""
    model_lr: PositiveFloat = 3e-4
    """Learning rate of the model (Adam)."""

    def __post_init__(self) -> None:
        if self.range_start > self.range_end:
            raise ValueError(f"range_start is {self.range_start:g}, above range_end, {self.range_end:g}")
        if self.n_step != 1:
            raise ValueError(f"n_step is {self.n_step}, but the model predicts one step; make it 1")


class APRL(ActorCritic):
    """Actor-critic whose actor is penalized for actions outside a range, see above."""

    config: APRLConfig

    def _extend(self, value_limits: Limits) -> None:
        policy, c = self.policy, self.config
        if policy.size.extra_inputs or policy.horizon > 1:
            raise ConfigError("aprl needs a state without pictures or instructions, and single actions")
        states = policy.size.observation
        self.model = mlp([states + policy.size.action, 256, 256, states], elu).to(self.device)
        self.model_optimizer = torch.optim.Adam(self.model.parameters(), c.model_lr, fused=True)
        self.extra |= {"model": self.model, "model_optimizer": self.model_optimizer}
        self.variance = torch.ones(states, device=self.device)
        """Running mean square of each component's change in a step."""
        self.error = torch.zeros((), device=self.device)
        """Running mean of the model's error in steps from the replay; 0 before the first update."""
        start, end = (torch.tensor([value], dtype=torch.double) for value in (c.range_start, c.range_end))
        size = max(1, c.range_steps // MOVES)
        self.range = Curriculum(start, end, 1 / MOVES, size, -c.surprise, -c.surprise, BACK)
        self.surprise = 1.0
        """Running mean of the surprise, a metric."""
        self.last: dict[str, Tensor] | None = None
        """State (n, D) and action (n, A) of the step before, and whether (n,) its episode goes on."""

    @property
    def limit(self) -> float:
        """Return the present range."""
        return float(self.range.value)

    # ---- acting ------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def act(self, observation: Observation, rng: torch.Generator, phase: LearningPhase) -> tuple[Tensor, Observation]:
        state = observation["observation.state"]
        if self.last is not None and float(self.error):
            goes_on = self.last["goes_on"]
            error = self._error(self.last["state"], self.last["action"], state)[goes_on] / self.error
            error = error.clamp_max(LARGEST * self.config.surprise).cpu()
            self.range.report(torch.zeros(len(error), dtype=torch.long), -error)
            if len(error):
                self.surprise += 0.01 * (float(error.mean()) - self.surprise)
        action, kept = super().act(observation, rng, phase)
        if phase == LearningPhase.WARMUP:
            action = action * self.limit
        self.last = {"state": state, "action": action, "goes_on": torch.ones_like(state[:, 0], dtype=torch.bool)}
        return action, kept

    def reset(self, ids: Tensor | None = None) -> None:
        super().reset(ids)
        if self.last is not None:
            self.last["goes_on"][slice(None) if ids is None else ids] = False

    # ---- learning ----------------------------------------------------------------------------------------------
    def _error(self, state: Tensor, action: Tensor, following: Tensor) -> Tensor:
        """Return the model's error (B,) in steps from states (B, D) with actions (B, A) to following states (B, D):
        the mean square of the components, each divided by the variance of its change."""
        scale = self.variance.clamp_min(1e-8)
        change = self.model(torch.cat([state, action], -1)) * scale.sqrt()
        return ((following - state - change).square() / scale).mean(-1)

    def _update_models(self, batch: Batch) -> dict[str, Tensor]:
        state, following = batch["observation.state"], batch[NEXT + "observation.state"]
        keep = MEMORY if float(self.error) else 0.0
        self.variance = self.variance.lerp((following - state).square().mean(0), 1 - keep)
        loss = self._error(state, batch["action"], following).mean()
        gradient_step(loss, self.model_optimizer)
        self.error = self.error.lerp(loss.detach(), 1 - keep)
        measured = {"range": torch.tensor(self.limit), "surprise": torch.tensor(self.surprise)}
        return {"aprl/error": self.error} | {f"aprl/{name}": value for name, value in measured.items()}

    def _actor_value(self, batch: Batch, seen: Tensor, u: Tensor) -> Tensor:
        outside = (u.abs() > self.limit).any(-1)
        return super()._actor_value(batch, seen, u) - self.config.penalty * outside * u.abs().sum(-1)

    # ---- checkpoints -------------------------------------------------------------------------------------------
    def memory(self) -> dict[str, Any]:
        return super().memory() | {"last": self.last}

    def load_memory(self, memory: dict[str, Any], observation: Observation) -> None:
        super().load_memory(memory, observation)
        self.last = memory["last"] and {name: value.to(self.device) for name, value in memory["last"].items()}

    def state_dict(self) -> dict[str, Any]:
        own = {"variance": self.variance, "error": self.error, "range": self.range.state_dict()}
        return super().state_dict() | own | {"surprise": self.surprise}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.variance, self.error = (state[name].to(self.device) for name in ("variance", "error"))
        self.range.load_state_dict(state["range"])
        self.surprise = state["surprise"]
