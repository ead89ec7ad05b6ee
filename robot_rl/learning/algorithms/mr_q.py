"""Model-based representations for Q-learning: Fujimoto et al. 2025, "Towards General-Purpose Model-Free Reinforcement
Learning" (MR.Q, 2501.16142).

    z_s = f(s), z_sa = g(z_s, a);  (z_s', r, done) = linear(z_sa), unrolled over several steps of an episode
    model: |z_s' - f_now(s')|^2 + 0.1 cross-entropy(r) + 0.1 (done - d)^2,   d: whether the step terminated
    value: Huber(Q(z_sa) - y / scale), y over n steps, with f, g, Q and actor of the last synchronization
    actor: -Q(g(z_s, u)) + 1e-5 |u before tanh|^2

Values read an embedding that is constant between synchronizations, and their loss has no gradient into f and g. The
paper makes the same number of updates of f and g, but all at synchronizations, and samples the replay by priority. Here
sampling is uniform.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from policies.actor import EmbeddedPolicy, embedding
from policies.base import Observation
from robot_rl.data.replay import NEXT, Batch, Sampling
from robot_rl.learning.agent import LearningPhase
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig, Limits
from robot_rl.learning.parts.critics import EmbeddedCritic
from robot_rl.learning.parts.heads import Head
from robot_rl.learning.parts.objectives import gradient_step
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeFloat, PositiveFloat, PositiveInt


@dataclass(frozen=True)
class MRQConfig(ActorCriticConfig):
    unroll: PositiveInt = 5
    """Number of steps over which the model is unrolled."""
    model_lr: PositiveFloat = 1e-4
    """Learning rate of the embedding and the model (AdamW)."""
    reward_weight: NonNegativeFloat = 0.1
    """Weight of the reward's prediction in the model's loss."""
    done_weight: NonNegativeFloat = 0.1
    """Weight of the termination's prediction in the model's loss."""
    synchronize: PositiveInt = 250
    """Number of updates between synchronizations, which copy the learned embedding to actor and critics."""
    preactivation: NonNegativeFloat = 1e-5
    """Penalty on the actor's squared output before tanh."""


class Model(nn.Module):
    """Embeddings f and g, and a linear layer that predicts the next embedding, the reward and the termination."""

    BINS = 65
    bins: Tensor

    def __init__(self, state: nn.Module, width: int, actions: int):
        super().__init__()
        self.state, self.width = copy.deepcopy(state), width
        self.pair = embedding(width + actions, width)
        self.predict = nn.Linear(width, width + self.BINS + 1)
        line = torch.linspace(-10, 10, self.BINS)
        self.register_buffer("bins", line.sign() * line.abs().expm1())  # symexp: dense near 0

    def forward(self, z: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the predicted next embedding (B, width), logits of the reward (B, bins), and termination (B,)."""
        out = self.predict(self.pair(torch.cat([z, action], -1)))
        following, reward, done = out.split([self.width, self.BINS, 1], -1)
        return following, reward, done.squeeze(-1)


def two_hot(value: Tensor, bins: Tensor) -> Tensor:
    """Return the two-hot code (B, bins) of values (B,): weights of the two nearest `bins`, whose weighted mean is the
    value."""
    value = value.clamp(float(bins[0]), float(bins[-1]))
    above = torch.searchsorted(bins, value.contiguous()).clamp(1, len(bins) - 1)
    share = (value - bins[above - 1]) / (bins[above] - bins[above - 1])
    weights = value.new_zeros(len(value), len(bins)).scatter_(1, above[:, None], share[:, None])
    return weights.scatter_(1, above[:, None] - 1, 1 - share[:, None])


def transitions(batch: Batch, steps: int, discount: float) -> Batch:
    """Return, for each sequence (B, unroll, ...), a transition over its first `steps` steps, like a sample of
    `Sampling(steps)`."""
    valid, terminated = batch["valid"][:, :steps], batch["terminated"][:, :steps]
    person = batch["intervention"][:, :steps]
    valid = valid & (person == person[:, :1]).cumprod(1).bool()
    row, last = torch.arange(len(valid), device=valid.device), valid.sum(1)
    factor = discount ** torch.arange(steps, device=valid.device)
    out = {k: v[:, 0] for k, v in batch.items() if k not in ("valid", "terminated", "discount")}
    observed = {k for k, v in batch.items() if v.dim() > 1 and v.shape[1] == batch["valid"].shape[1] + 1}
    out |= {NEXT + k: batch[k][row, last] for k in observed}
    out["reward"] = (batch["reward"][:, :steps] * valid * factor).sum(1)
    return out | {"discount": discount**last * ~(valid & terminated).any(1)}


class MRQ(ActorCritic):
    """Actor-critic on a learned embedding that predicts the next step."""

    config: MRQConfig
    policy: EmbeddedPolicy
    critic: EmbeddedCritic

    def _extend(self, value_limits: Limits) -> None:
        policy, config = self.policy, self.config
        if policy.size.pictures or policy.horizon > 1 or config.head != "scalar" or config.critic_on != "action":
            raise ConfigError("mr-q needs a state without pictures, single actions and critics with a scalar head")
        if config.n_step > config.unroll:
            raise ConfigError(f"--agent.n-step {config.n_step} is beyond --agent.unroll {config.unroll}; raise that")
        model = Model(policy.encoder, policy.encoder.size, policy.size.action)
        self.model = model.to(self.device)
        self.model_optimizer = torch.optim.AdamW(self.model.parameters(), config.model_lr, weight_decay=1e-4)
        self.before = copy.deepcopy(policy.encoder).requires_grad_(False)
        self.actor_before = copy.deepcopy(policy.actor).requires_grad_(False)
        self.scale = nn.ParameterDict({k: torch.ones((), device=self.device) for k in ("now", "before", "seen")})
        self.scale.requires_grad_(False)
        """Mean magnitude of the reward. `now` divides the values and `before` the targets' values; `seen` is the
        running mean."""
        self.extra |= {"model": self.model, "model_optimizer": self.model_optimizer, "before": self.before}
        self.extra |= {"actor_before": self.actor_before, "scale": self.scale}
        self.sampling = Sampling(1, config.discount, max(2, config.unroll), sequence=True)

    def _build_critic(self, width: int, head: Head) -> EmbeddedCritic:
        c = self.config
        return EmbeddedCritic(self.policy.encoder.size, width, c.critics, c.hidden, head, c.layer_norm)

    def update(self, batch: Batch, phase: LearningPhase = LearningPhase.LEARN) -> dict[str, Tensor]:
        """Update the model, then critics and actor; `batch` holds sequences (B, unroll, ...) of steps."""
        metrics = self._update_model(batch)
        if self.updates.critic % self.config.synchronize == 0:
            self._synchronize()
        return metrics | super().update(transitions(batch, self.config.n_step, self.config.discount), phase)

    def _update_model(self, batch: Batch) -> dict[str, Tensor]:
        c, model, valid = self.config, self.model, batch["valid"]
        state = self.policy.normalizer(batch["observation.state"])
        with torch.no_grad():
            target = self.policy.encoder(state[:, 1:], {})
            size = (batch["reward"].abs() * valid).sum() / valid.sum()
            self.scale["seen"].lerp_(size, 1 / min(1 + self.updates.critic, 10 * c.synchronize))
        z, loss = model.state(state[:, 0], {}), torch.zeros((), device=self.device)
        for t in range(c.unroll):
            z, reward, done = model(z, batch["action"][:, t])
            error = (z - target[:, t]).square().mean(-1)
            code = two_hot(batch["reward"][:, t], model.bins)
            error = error - c.reward_weight * (code * reward.log_softmax(-1)).sum(-1)
            error = error + c.done_weight * (done - batch["terminated"][:, t].float()).square()
            loss = loss + (error * valid[:, t]).mean()
        gradient_step(loss, self.model_optimizer)
        return {"model/loss": loss.detach() / c.unroll}

    @torch.no_grad()
    def _synchronize(self) -> None:
        """Copy encoder, actor and critics to those that compute targets; then copy the model's embeddings to encoder
        and critics."""
        self.before.load_state_dict(self.policy.encoder.state_dict())
        self.actor_before.load_state_dict(self.policy.actor.state_dict())
        self.target.load_state_dict(self.critic.state_dict())
        self.scale["before"].copy_(self.scale["now"])
        self.policy.encoder.load_state_dict(self.model.state.state_dict())
        self.critic.pair.load_state_dict(self.model.pair.state_dict())
        self.scale["now"].copy_(self.scale["seen"].clamp_min(1e-3))

    def _backup(self, batch: Batch, following: Observation) -> Tensor:
        now = self.policy.encoder, self.average
        self.policy.encoder, self.average = self.before, self.actor_before
        try:
            return super()._backup(batch, following)
        finally:
            self.policy.encoder, self.average = now

    def _bootstrap(self, batch: Batch, out: Tensor, log_prob: Tensor) -> Tensor:
        now = self.scale["now"]  # the parent computes in units of the reward
        return super()._bootstrap(batch, out * self.scale["before"], log_prob * now) / now

    def _entropy_cost(self, log_prob: Tensor) -> Tensor:
        return super()._entropy_cost(log_prob) / self.scale["now"]

    def _outputs(self, batch: Batch, following: Observation) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            features, target = self.policy.features(batch), self._backup(batch, following)
        return self.critic(features, batch["action"]), target

    def _critic_loss(self, batch: Batch, out: Tensor, target: Tensor) -> Tensor:
        values = self.critic.head.mean(out)
        return nn.functional.smooth_l1_loss(values, target.expand_as(values), reduction="none").mean(1).sum()

    def _actor_loss(self, batch: Batch, features: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        loss, log_prob, metrics = super()._actor_loss(batch, features, seen)
        raw = self.policy.actor(features)[0]
        return loss + self.config.preactivation * raw.square().mean(), log_prob, metrics
