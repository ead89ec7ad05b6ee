"""Off-policy actor-critic on an action transform: TD3, SAC, RLPD, ResFiT and HIL-SERL by configuration.

    y = r + discount * min_{i in subset} Qbar_i(s', a'),   a' = T(u'; b(s')),  u' ~ actor(s', b(s'))
    critic: mean_i (Q_i(s, a) - y)^2
    actor:  alpha log pi(u) - mean_i Q_i(s, T(u; b(s))) + l2 |u - u_start|^2 + imitation [corrected] |u - u_person|^2

Lillicrap et al. 2016, Fujimoto et al. 2018 (TD3), Haarnoja et al. 2018 (SAC), Ball et al. 2023 (RLPD).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from policies.residual import ResidualPolicy
from robot_rl.learning.critics import Critic
from robot_rl.util.limits import Count, NonNegative, Positive, Share


@dataclass(frozen=True)
class ActorCriticConfig:
    """Numbers of the update."""

    critics: Count = 2
    """Ensemble size."""
    subset: Count = 2
    """Members whose minimum is the target."""
    hidden: tuple[Count, ...] = (256, 256)
    """Hidden widths of the critics."""
    critic_lr: Positive = 3e-4
    """Learning rate of the critics (Adam)."""
    actor_lr: Positive = 3e-4
    """Learning rate of the actor (Adam)."""
    tau: Share = 0.01
    """Share of the new weights that moves into the target critics per update."""
    discount: Share = 0.98
    """Per environment step."""
    entropy: bool = False
    """Learn a temperature and reward entropy in the actor's loss (never in the backup)."""
    initial_temperature: Positive = 0.01
    """Weight of entropy that a learned temperature starts from."""
    target_entropy: float | None = None
    """Nats; None is minus half the action size."""
    l2: NonNegative = 0.01
    """Penalty on the actor's squared distance from the actor that learning starts with; a residual starts at 0."""
    imitation: NonNegative = 0.0
    """Weight of cloning a person's corrections: squared distance of the actor's output from what was executed."""
    actor_delay: Count = 2
    """Critic updates per actor update."""
    target_noise: NonNegative = 0.1
    """Smoothing noise on a fixed-std actor's target actions."""
    value_low: float = 0.0
    """Returns are known to be at least this; targets are clipped."""
    value_high: float = 1.0
    """Returns are known to be at most this."""
    grad_clip: Positive = 10.0
    """Largest gradient norm."""
    averaging: Share = 0.9995
    """Weight of the past, per actor update, in the averaged actor that is deployed (Polyak and Juditsky 1992)."""


@dataclass
class Updates:
    """How many updates were made."""

    critic: int = 0
    actor: int = 0


class ActorCritic:
    """Updates a policy's actor against an ensemble of critics. The base of a residual policy stays frozen."""

    def __init__(self, policy: ResidualPolicy, config: ActorCriticConfig, seed: int = 0):
        self.policy, self.config = policy, config
        self.critic = Critic(policy.size.observation, policy.size.action, config.critics, config.hidden)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.average = copy.deepcopy(policy.actor).requires_grad_(False)
        """The actor averaged over updates: steadier than the latest one."""
        head = policy.actor.trunk[-1]
        assert isinstance(head, nn.Linear)
        starts_at_zero = not bool(head.weight[: policy.size.action].any())
        self.start = None if starts_at_zero else copy.deepcopy(policy.actor).requires_grad_(False)
        self.log_alpha = torch.tensor(config.initial_temperature).log().requires_grad_(config.entropy)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), config.critic_lr, fused=True)
        self.actor_optimizer = torch.optim.Adam(policy.actor.parameters(), config.actor_lr, fused=True)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], config.actor_lr) if config.entropy else None
        self.rng = torch.Generator().manual_seed(seed)
        self.updates = Updates()

    def update(self, batch: dict[str, Tensor], learn_actor: bool = True) -> dict[str, Tensor]:
        """One critic step, and every `actor_delay`-th an actor step.

        `batch` holds state, base, action, reward, discount, next_state and next_base with B rows; reward and discount
        already cover n steps, and discount is 0 where the episode terminated.
        """
        metrics = self._update_critic(batch)
        self.updates.critic += 1
        if learn_actor and self.updates.critic % self.config.actor_delay == 0:
            metrics |= self._update_actor(batch)
            self.updates.actor += 1
        return metrics

    def _update_critic(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        c, policy = self.config, self.policy
        with torch.no_grad():
            features = policy.features(batch["next_state"], batch["next_base"])
            if policy.config.actor.std is None:
                correction, _ = policy.actor.sample(features, self.rng)
            else:
                mean = policy.actor.mean(features)
                noise = c.target_noise * torch.randn(mean.shape, generator=self.rng)
                correction = (mean + noise.clamp(-2 * c.target_noise, 2 * c.target_noise)).clamp(-1, 1)
            values = self.target(policy.normalizer(batch["next_state"]), policy.combine(batch["next_base"], correction))
            if c.subset < c.critics:
                values = values[torch.randperm(c.critics, generator=self.rng)[: c.subset]]
            target = (batch["reward"] + batch["discount"] * values.amin(0)).clamp(c.value_low, c.value_high)
        q = self.critic(policy.normalizer(batch["state"]), batch["action"])
        loss = (q - target).square().mean(1).sum()
        self.critic_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.critic.parameters(), c.grad_clip)
        self.critic_optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.parameters()), list(self.critic.parameters()), c.tau)
        return {"critic/loss": loss.detach(), "critic/q": q.detach().mean(), "critic/grad_norm": norm}

    def _update_actor(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        c, policy = self.config, self.policy
        self.critic.requires_grad_(False)  # no gradients that nobody uses
        features = policy.features(batch["state"], batch["base"])
        if policy.config.actor.std is None:
            correction, log_prob = policy.actor.sample(features, self.rng)
        else:
            correction = policy.actor.mean(features)
            log_prob = correction.new_zeros(len(correction))
        q = self.critic(policy.normalizer(batch["state"]), policy.combine(batch["base"], correction)).mean(0)
        moved = correction if self.start is None else correction - self.start.mean(features)
        loss = (c.l2 * moved.square().sum(-1) - q).mean()
        if c.imitation and policy.config.scale:  # at scale 0 nothing is within reach
            # The correction that would have led to the executed action, as far as it is within reach.
            executed = ((batch["action"] - batch["base"]) / policy.config.scale).clamp(-1, 1)
            distance = (policy.actor.mean(features) - executed).square().sum(-1)
            loss = loss + c.imitation * (batch["intervention"] * distance).mean()
        if c.entropy:
            loss = loss + (self.log_alpha.exp().detach() * log_prob).mean()
        self.actor_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(policy.actor.parameters(), c.grad_clip)
        self.actor_optimizer.step()
        weight = 1 - min(c.averaging, (1 + self.updates.actor) / (10 + self.updates.actor))
        torch._foreach_lerp_(list(self.average.parameters()), list(policy.actor.parameters()), weight)
        self.critic.requires_grad_(True)
        metrics = {"actor/q": q.detach().mean(), "actor/correction": correction.detach().abs().mean()}
        if self.alpha_optimizer is not None:
            aim = c.target_entropy if c.target_entropy is not None else -0.5 * policy.size.action
            alpha_loss = -(self.log_alpha.exp() * (log_prob.detach() + aim)).mean()
            self.alpha_optimizer.zero_grad(set_to_none=True)
            alpha_loss.backward()
            self.alpha_optimizer.step()
            metrics |= {"actor/entropy": -log_prob.detach().mean(), "actor/temperature": self.log_alpha.detach().exp()}
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy.state_dict(),
            "critic": self.critic.state_dict(),
            "target": self.target.state_dict(),
            "average": self.average.state_dict(),
            "log_alpha": self.log_alpha.detach(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
            "actor_optimizer": self.actor_optimizer.state_dict(),
            "alpha_optimizer": self.alpha_optimizer.state_dict() if self.alpha_optimizer else {},
            "rng": self.rng.get_state(),
            "updates": [self.updates.critic, self.updates.actor],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.critic.load_state_dict(state["critic"])
        self.target.load_state_dict(state["target"])
        self.average.load_state_dict(state["average"])
        with torch.no_grad():
            self.log_alpha.copy_(state["log_alpha"])
        self.critic_optimizer.load_state_dict(state["critic_optimizer"])
        self.actor_optimizer.load_state_dict(state["actor_optimizer"])
        if self.alpha_optimizer:
            self.alpha_optimizer.load_state_dict(state["alpha_optimizer"])
        self.rng.set_state(state["rng"])
        self.updates = Updates(*state["updates"])
