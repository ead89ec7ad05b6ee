"""Proximal policy optimization: Schulman et al. 2017 (arXiv 1707.06347).

    r     = pi(a|s) / pi_old(a|s)
    actor:  -mean min(r A, clip(r, 1 - clip, 1 + clip) A) - entropy_coef H(pi)      equation 7, without the shared loss
    critic:  mean (V(s) - target)^2 / variance of the targets

If the reward has several terms, each term has its own value. A is then the weighted sum of the terms' advantages, each
divided by its standard deviation (SLIM).

Actor and critic share no weights. Each has its own gradient clip and learning rate. The actor's rate adapts to the
divergence from the old policy (Rudin et al. 2022, arXiv 2109.11978). Normalizers change only after an update, so the
ratio is 1 before the first step.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from policies.base import Observation
from policies.feedforward import FeedforwardPolicy
from policies.networks.encoder import WORDS, hashed_words
from policies.networks.gaussian import divergence, divergences, entropy, log_density
from robot_rl.interface.observation_spec import LANGUAGE
from robot_rl.interface.symmetry import Mirror, joined
from robot_rl.learning.agent import restore, states_of
from robot_rl.learning.parts.critics import StateValue, advantages
from robot_rl.learning.parts.fixup import fix_up
from robot_rl.learning.parts.objectives import compute_gradients
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt
from robot_rl.util.ranks import averaged, count, extremes, own


@dataclass(frozen=True)
class PPOConfig:
    hidden: tuple[PositiveInt, ...] = (256, 128, 64)
    """Widths of the critic's hidden layers."""
    discount: Fraction = 0.99
    """Discount per environment step."""
    gae_lambda: Fraction = 0.95
    """Lambda of generalized advantage estimation: 0 is one-step TD, 1 the whole return."""
    clip: PositiveFloat = 0.2
    """Clip range of the probability ratio r about 1."""
    value_clip: PositiveFloat | None = None
    """Clip range of a value about its old value, in units of the return; None: no clip."""
    entropy_coef: NonNegativeFloat = 0.005
    """Weight of the policy's entropy (nats) in the objective."""
    epochs: PositiveInt = 5
    """Number of passes over a rollout."""
    minibatches: PositiveInt = 4
    """Number of gradient steps per pass over a rollout."""
    actor_lr: PositiveFloat = 1e-3
    """Initial learning rate of the actor."""
    critic_lr: PositiveFloat = 1e-3
    """Learning rate of the critic."""
    target_kl: PositiveFloat | None = 0.01
    """Divergence from the old policy, nats, to which the actor's learning rate adapts; None: constant rate."""
    max_kl: PositiveFloat | None = None
    """Largest divergence from the old policy in any state of a rollout after an update, nats (FixPO, Zentner et al.
    2023); for Gaussian policies of a state. None: no bound."""
    grad_clip: PositiveFloat = 1.0
    """Largest gradient norm, separately for actor and critic."""
    weights: tuple[NonNegativeFloat, ...] = ()
    """Weight of each reward term's advantage, for reward `terms`; empty: all weights are 1."""

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.minibatches < 1:
            raise ValueError(f"epochs is {self.epochs} and minibatches {self.minibatches}; both must be at least 1")


class PPO:
    """Proximal policy optimization from rollouts; if a `mirror` is given, also from the mirror image of each row."""

    LR_RANGE = (1e-5, 1e-2)
    """Limits of the actor's adaptive learning rate, extended to include its initial value."""
    kept: ClassVar[tuple[str, ...]] = ("frames", "state", "action", "mean")
    """Names of the rollout's columns that the update uses."""
    clip: Any
    """Clip range of the ratio: a number, or a tensor that broadcasts to ratios (B, K)."""
    policy: FeedforwardPolicy
    reads_next: Tensor | None = None
    """(n,) bool: which environments decide on new actions at the next observation; None: all."""
    reads_last: bool = False
    """Whether `assess` reads the pictures of the observation after a rollout."""

    def __init__(
        self, policy: FeedforwardPolicy, privileged: int, config: PPOConfig, seed: int = 0,
        mirror: Mirror | None = None, terms: int | None = None,
    ):  # fmt: skip
        """`terms`: number of reward terms, each with its own value; None: a single reward."""
        self.policy, self.privileged, self.config, self.mirror = policy, privileged, config, mirror
        size, self.clip = policy.size, config.clip
        self.device = next(policy.parameters()).device
        self.unit: float | Tensor = 1.0
        """Divisor of the critic's squared error, one number or one per reward term: the variance of the targets."""
        self.reads = size.observation + privileged + WORDS * (LANGUAGE in size.extra_inputs)
        """Size of the critic's input."""
        self.critic = StateValue(self.reads, config.hidden, terms).to(self.device)
        if config.weights and len(config.weights) != (terms or 1):
            raise ConfigError(f"{len(config.weights)} weights are given, and the reward has {terms or 1} terms")
        if config.max_kl is not None and type(self)._compare is not PPO._compare:
            raise ConfigError(f"a {policy.class_name} policy has no divergence per state; leave out --agent.max-kl")
        self.actor_parameters = self._trained()
        actor = {"params": self.actor_parameters, "lr": config.actor_lr}
        critic = {"params": list(self.critic.parameters()), "lr": config.critic_lr}
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam([actor, critic], fused=True)
        # Exploration uses the seed itself. A CPU generator reads only the low 32 bits.
        self.rng = torch.Generator(self.device).manual_seed(seed ^ 0x5EED_BA7C)
        if mirror is not None:
            parts = {"observation": size.observation, "privileged": privileged, "action": policy.outputs}
            for name, wanted in parts.items():
                if len(getattr(mirror, name)) != wanted:
                    raise ConfigError(
                        f"the mirror's {name} has {len(getattr(mirror, name))} numbers, not {wanted}; fix the task's "
                        "`mirror`, or leave it out"
                    )
            self.reflect = {
                "frames": mirror.observation.repeated(policy.config.history),
                "state": joined(mirror.observation, mirror.privileged),
                "action": mirror.action,
            }

    def _trained(self) -> list[nn.Parameter]:
        """Return the policy's trainable parameters."""
        return [*self.policy.actor.parameters(), self.policy.log_std]

    def state(self, observation: Observation) -> Tensor:
        """Return the critic's input (n, self.reads): observation, privileged state, features of the instruction."""
        parts = [observation["observation.state"]]
        if self.privileged:
            parts.append(observation["observation.environment_state"])
        if LANGUAGE in self.policy.size.extra_inputs:
            parts.append(hashed_words(observation[LANGUAGE]))
        state = torch.cat(parts, -1)
        if state.shape[-1] != self.reads:
            raise ValueError(f"the critic reads {self.reads} values, the observation has {state.shape[-1]}")
        return state

    @torch.no_grad()
    def act(self, observation: Observation, rng: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """Return exploring actions (n, A) in [-1, 1], and this step's columns (n, ...) for the update."""
        frames = self.policy.remember(observation)
        mean = self.policy.mean(frames)
        u = self.policy.sample(mean, rng)
        row = {"frames": frames, "state": self.state(observation), "action": u, "mean": mean}
        return self.policy.transform(u, observation), row

    def reset(self, ids: Tensor | None = None) -> None:
        """Clear the observation history of environments `ids`, or if None of all: their next step starts an episode."""
        self.policy.reset(ids)

    @torch.no_grad()
    def assess(self, rollout: dict[str, Tensor], last: Observation, finals: list[Tensor]) -> dict[str, Tensor]:
        """Return the rows (T * N, ...) to learn from, with value, advantage and target.

        `rollout` (T, N, ...) holds the outputs of `act`, reward, terminated and done; `last` is the observation after
        the rollout. `finals` are the results of `state` at the ends of episodes, in the order of the done steps. Their
        values are clamped to the range of values in the rollout: the critic never learns final states, so it
        extrapolates there, and bootstrapping from such values diverges. If the simulation diverged, a final state has
        the value of the state before it.
        """
        value = self.critic(rollout["state"])
        terminated, done = rollout["terminated"], rollout["done"]
        if value.ndim > done.ndim:
            terminated, done = (x[..., None].expand_as(value) for x in (terminated, done))
        following = torch.cat([value[1:], self.critic(self.state(last))[None]])
        low, high = extremes(value.flatten(0, 1))
        if finals:
            last_step = rollout["done"]
            ended = self.critic(torch.cat(finals))
            following[last_step] = torch.where(ended.isfinite(), ended.clamp(low, high), value[last_step])
        advantage, target = advantages(
            rollout["reward"], value, following, terminated, done, self.config.discount, self._weight(rollout)
        )
        batch = {name: rollout[name] for name in self.kept}
        batch |= {"value": value, "advantage": advantage, "target": target}
        return {name: x.flatten(0, 1) for name, x in batch.items()}

    def _weight(self, rollout: dict[str, Tensor]) -> float | Tensor:
        """Return lambda, the weight of later steps in each step's advantage: one number, or (T, N) numbers."""
        return self.config.gae_lambda

    def update(self, batch: dict[str, Tensor]) -> dict[str, float]:
        """Learn from B rows of a rollout, then update the normalizers with these rows; return metrics.

        `batch` holds frames (B, history * D) and state (B, C), not normalized; action and mean (B, U), outputs of the
        actor, not clipped; and value, advantage and target (B,). Raises FloatingPointError before a non-finite number
        reaches the weights. Ranks that learn together all get the same batch, and share each minibatch.
        """
        self._check(batch)
        self.unit = batch["target"].var(0).clamp_min(1e-12)
        data, old = self._prepare(batch), self._log_std().detach().clone()
        rows = len(batch["state"])
        each = -(-rows // (self.config.minibatches * count()))
        before = [each.detach().clone() for each in self.actor_parameters] if self.config.max_kl is not None else []
        steps: list[dict[str, Tensor]] = []
        for _ in range(self.config.epochs):
            for pick in torch.randperm(rows, generator=self.rng, device=self.device).split(each * count()):
                part = {name: x.index_select(0, own(pick)) for name, x in data.items()}
                # Before the first step the divergence is 0 for any rate.
                steps.append(self._step(part, old, adapt=bool(steps)))
        fixed = {}
        if self.config.max_kl is not None:
            rate, rows_of = self.optimizer.param_groups[0]["lr"], lambda: self._divergences(data, old)
            fixed = fix_up(rows_of, self.actor_parameters, before, self.config.max_kl, rate)
        explained = (1 - (batch["target"] - batch["value"]).var(0) / self.unit).mean()
        self._normalize(batch)
        means = {name: float(torch.stack([step[name] for step in steps]).mean()) for name in steps[0]}
        return means | fixed | {
            "ppo/std": float(self._log_std().detach().exp().mean()),
            "ppo/lr": self.optimizer.param_groups[0]["lr"],
            "ppo/explained_variance": float(explained),
        }

    def _log_std(self) -> Tensor:
        """Return the log standard deviations of the exploration noise."""
        return self.policy.log_std

    def _widths(self) -> dict[str, int]:
        """Return the widths, by name, of the update's columns that hold inputs and outputs of the policy."""
        frames, outputs = self.policy.config.history * self.policy.size.observation, self.policy.outputs
        return {"frames": frames, "action": outputs, "mean": outputs}

    def _check(self, batch: dict[str, Tensor]) -> None:
        rows = len(batch["state"])
        widths = {"state": self.reads} | self._widths()
        shapes: dict[str, tuple[int, ...]] = {name: (rows, width) for name, width in widths.items()}
        values = (rows,) if self.critic.terms is None else (rows, self.critic.terms)
        for name, shape in (shapes | dict.fromkeys(("value", "advantage", "target"), values)).items():
            if batch[name].shape != shape:
                raise ValueError(f"{name} has shape {tuple(batch[name].shape)}, not {shape}")
            if not batch[name].isfinite().all():
                raise FloatingPointError(f"{name} of the rollout became NaN or infinite")

    @torch.no_grad()
    def _prepare(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the losses' inputs (B, K, ...): each row and, if there is a mirror, its mirror image. The image gets
        the row's old log-probability, as for a symmetric policy."""
        raw = {name: batch[name][:, None] for name in ("frames", "state", "action")}
        if self.mirror is not None:
            raw = {name: torch.cat([x, self.reflect[name](x)], 1) for name, x in raw.items()}
        return {
            "features": self.policy.features(raw["frames"]),
            "state": self.critic.normalizer(raw["state"]),
            "action": raw["action"],
            "mean": batch["mean"],
            "log_prob": log_density(batch["action"], batch["mean"], self.policy.log_std)[:, None],
            "advantage": self._scaled(batch["advantage"])[:, None],
            "value": batch["value"][:, None],
            "target": batch["target"][:, None],
        }

    def _scaled(self, advantage: Tensor) -> Tensor:
        """Return standardized advantages (B,). Standardized advantages of several reward terms (B, terms) are summed
        with the terms' weights."""
        scaled = (advantage - advantage.mean(0)) / (advantage.std(0) + 1e-8)
        if self.critic.terms is None:
            return scaled
        weights = scaled.new_tensor(self.config.weights or [1.0] * self.critic.terms)
        return (scaled * weights).sum(1)

    def _normalize(self, batch: dict[str, Tensor]) -> None:
        """Update the normalizers with the rows of the rollout and their mirror images."""
        newest, state = batch["frames"][:, -self.policy.size.observation :], batch["state"]
        if self.mirror is not None:  # symmetric statistics keep the policy symmetric
            newest = torch.cat([newest, self.mirror.observation(newest)])
            state = torch.cat([state, self.reflect["state"](state)])
        self.policy.normalizer.update(newest)
        self.critic.normalizer.update(state)

    def _step(self, part: dict[str, Tensor], old: Tensor, adapt: bool) -> dict[str, Tensor]:
        """Take a gradient step on the rows `part`; return metrics. `old` (U,) are the old policy's log standard
        deviations; `adapt`: change the actor's learning rate first."""
        c = self.config
        loss, metrics = self._loss(part, old)
        compute_gradients(loss, self.optimizer)
        metrics = averaged(metrics)
        if adapt and c.target_kl is not None:
            self._adapt(float(metrics["ppo/kl"]), c.target_kl)
        norm = nn.utils.clip_grad_norm_(self.actor_parameters, c.grad_clip)
        critic_norm = nn.utils.clip_grad_norm_(self.critic.parameters(), c.grad_clip)
        if not bool((loss.detach() + norm + critic_norm).isfinite()):
            raise FloatingPointError("a loss or its gradient became NaN or infinite")
        self.optimizer.step()
        self._bound()
        return metrics | {"ppo/grad_norm": norm}

    @torch.no_grad()
    def _bound(self) -> None:
        """Clamp the policy's parameters to their limits after a gradient step."""
        self.policy.log_std.clamp_(self.policy.MIN_LOG_STD, self.policy.MAX_LOG_STD)

    def _compare(self, part: dict[str, Tensor], old: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the log-ratios (rows, 1), or (rows, 2) with mirror images; the policy's entropy, nats; and its
        divergence from the old policy, nats."""
        log_std = self.policy.log_std
        mean = self.policy.actor(part["features"].flatten(0, 1)).view(*part["action"].shape[:2], -1)
        change = log_density(part["action"], mean, log_std) - part["log_prob"]
        return change, entropy(log_std), divergence(part["mean"], old, mean[:, 0].detach(), log_std.detach())

    def _divergences(self, data: dict[str, Tensor], old: Tensor) -> Tensor:
        """Return the divergence (B,) from the old policy, nats, in each state."""
        mean = self.policy.actor(data["features"][:, 0])
        return divergences(data["mean"], old, mean, self.policy.log_std)

    def _loss(self, part: dict[str, Tensor], old: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        c = self.config
        change, spread, kl = self._compare(part, old)
        ratio = change.clamp(max=20.0).exp()  # e^89 would overflow
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
        gain = torch.minimum(ratio * part["advantage"], clipped * part["advantage"]).mean()
        value = self.critic.net(part["state"].flatten(0, 1))
        value = value.view(*part["state"].shape[:2], *part["target"].shape[2:])
        error = (value - part["target"]).square() / self.unit
        if c.value_clip is not None:
            held = part["value"] + (value - part["value"]).clamp(-c.value_clip, c.value_clip)
            error = torch.maximum(error, (held - part["target"]).square() / self.unit)
        value_loss = error.mean()
        with torch.no_grad():
            metrics = {
                "ppo/surrogate": gain.detach(),
                "ppo/value_loss": value_loss.detach(),
                "ppo/entropy": spread.detach(),
                "ppo/kl": kl,
                "ppo/clipped": ((ratio - 1).abs() > self.clip).float().mean(),
            }
        return value_loss - gain - c.entropy_coef * spread, metrics

    def _adapt(self, kl: float, target: float) -> None:
        """Change the actor's learning rate by a factor of 1.5 if the divergence is outside [target / 2, 2 target]."""
        group, rates = self.optimizer.param_groups[0], (*self.LR_RANGE, self.config.actor_lr)
        if kl > 2 * target:
            group["lr"] = max(min(rates), group["lr"] / 1.5)
        elif kl < target / 2:
            group["lr"] = min(max(rates), group["lr"] * 1.5)

    def finish(self) -> None:
        """Set `policy` to the policy to deploy."""
        self.policy.eval()

    def value_state(self) -> dict[str, Tensor]:
        """Return the weights of the value function, for continued training."""
        return self.critic.state_dict()

    def memory(self) -> dict[str, Any]:
        """Return the state of acting in each environment, for a checkpoint."""
        return self.policy.history.state_dict()

    def load_memory(self, memory: dict[str, Any]) -> None:
        """Restore the result of `memory`."""
        self.policy.history.load_state_dict(memory, self.device)

    def _parts(self) -> dict[str, Any]:
        return {"policy": self.policy, "critic": self.critic, "optimizer": self.optimizer}

    def state_dict(self) -> dict[str, Any]:
        return states_of(self._parts()) | {"rng": self.rng.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restore(self._parts(), state)
        self.rng.set_state(state["rng"])
