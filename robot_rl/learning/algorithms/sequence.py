"""Sequences of actions at low decision rates: Patel and Siegelmann 2025, "Overcoming Slow Decision Frequencies in
Continuous Control" (SRL, arXiv 2410.08979).

    critic: Q(s, a) of single steps, as in a plain actor-critic; a' is the first action of the sequence at s'
    model:  |m(s, a) - (s' - s)|^2, states in units of their spread
    actor:  -mean_k Q(s_k, u_k) + alpha log pi(u|s) / J,   s_{k+1} = s_k + m(s_k, u_k),   u = all J actions at s_0

The actor plans J actions ahead. Acting needs neither model nor critics. While exploring, the actor executes the first 1
to J actions of each sequence, a number drawn at random. With J = 1 the method is the plain actor-critic.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from policies.base import Observation, RunningNormalizer, mlp
from robot_rl.data.replay import NEXT, Batch, Sampling
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig, Limits
from robot_rl.learning.parts.critics import Critic
from robot_rl.learning.parts.heads import Head
from robot_rl.learning.parts.objectives import gradient_step, pooled
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import PositiveFloat, PositiveInt


@dataclass(frozen=True)
class SequenceConfig(ActorCriticConfig):
    model_hidden: tuple[PositiveInt, ...] = (256, 256)
    """Widths of the model's hidden layers."""
    model_lr: PositiveFloat = 3e-4
    """Learning rate of the model (Adam)."""


class DynamicsModel(nn.Module):
    """Model that predicts the next state from state and action."""

    def __init__(self, state: int, actions: int, hidden: tuple[int, ...]):
        super().__init__()
        self.states, self.changes = RunningNormalizer(state), RunningNormalizer(state)
        self.net = mlp([state + actions, *hidden, state])

    def change(self, state: Tensor, action: Tensor) -> Tensor:
        """Return the predicted change (B, D), normalized, of states (B, D) in one step with actions (B, A)."""
        return self.net(torch.cat([self.states(state), action], -1))

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """Return the predicted next states (B, D) for states (B, D) and actions (B, A)."""
        return state + self.changes.mean + self.changes.std * self.change(state, action)


class SequenceRL(ActorCritic):
    """Actor-critic whose actor plans sequences of actions, which are evaluated step by step along a learned model."""

    config: SequenceConfig

    def _extend(self, value_limits: Limits) -> None:
        policy, config = self.policy, self.config
        if policy.size.pictures or config.critic_on != "action" or policy.inputs or config.n_step > 1:
            raise ConfigError("srl needs a state without pictures, critics on actions and an --agent.n-step of 1")
        self.model = DynamicsModel(policy.size.observation, policy.size.action, config.model_hidden).to(self.device)
        self.model_optimizer = torch.optim.Adam(self.model.parameters(), config.model_lr, fused=True)
        self.extra |= {"model": self.model, "model_optimizer": self.model_optimizer}
        self.sampling = Sampling(1, config.discount)

    def _build_critic(self, width: int, head: Head) -> Critic:
        return super()._build_critic(self.policy.size.action, head)

    def _lengths(self, rows: int, rng: torch.Generator) -> Tensor | None:
        horizon = self.policy.horizon
        return torch.randint(1, horizon + 1, (rows,), generator=rng) if horizon > 1 else None

    def _update_models(self, batch: Batch) -> dict[str, Tensor]:
        if self.policy.horizon == 1:
            return {}
        model, state = self.model, batch["observation.state"]
        change = batch[NEXT + "observation.state"] - state
        model.states.update(state)
        model.changes.update(change, floor=1e-6)
        loss = (model.change(state, batch["action"]) - model.changes(change)).square().mean()
        gradient_step(loss, self.model_optimizer)
        return {"model/loss": loss.detach()}

    def _entropy_cost(self, log_prob: Tensor) -> Tensor:
        return super()._entropy_cost(log_prob) / self.policy.horizon

    def _critic_input(self, u: Tensor, observation: Observation) -> Tensor:
        return super()._critic_input(u, observation)[:, : self.policy.size.action]

    def _actor_value(self, batch: Batch, seen: Tensor, u: Tensor) -> Tensor:
        """Return the mean value (B,) of the actions in sequences u (B, J * A), at the states predicted by the model."""
        state, total = batch["observation.state"], torch.zeros((), device=self.device)
        steps = u.unflatten(1, (self.policy.horizon, -1)).unbind(1)
        for k, action in enumerate(steps):
            total = total + pooled(self.critic.value(seen, action), self.config.pooling)
            if k + 1 < len(steps):
                with torch.no_grad():
                    state = self.model(state, action)
                    seen = self.policy.features({"observation.state": state})
        return total / len(steps)
