"""Off-policy actor-critic through an action transform: TD3, SAC, RLPD, ResFiT and HIL-SERL by configuration.

    y = r + discount * min_{i in subset} Qbar_i(s', a'),   a' = T(u'; s'),  u' ~ actor(s')
    critic: mean_i (Q_i(s, a) - y)^2, or the loss of another head
    actor:  see objectives.py

Lillicrap et al. 2016 (DDPG), Fujimoto et al. 2018 (TD3), Haarnoja et al. 2018 (SAC), Ball et al. 2023 (RLPD). Pictures
are augmented and encoded as by Yarats et al. 2022 (DrQ-v2).
"""

import copy
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from policies.actor import ActorPolicy
from policies.base import Observation, normal
from robot_rl.data.replay import NEXT, Batch, Column, Sampling
from robot_rl.learning.agent import LearningPhase, restore, states_of
from robot_rl.learning.parts.chunking import ActionQueue, flatten_chunks
from robot_rl.learning.parts.critics import Critic
from robot_rl.learning.parts.explore import ExplorationConfig, Noise, explored
from robot_rl.learning.parts.heads import Head, HeadName, build_head, pessimistic
from robot_rl.learning.parts.objectives import (
    Pooling,
    annealed,
    average_,
    expectile_error,
    gradient_step,
    imitation_loss,
    next_observation,
    pooled,
)  # fmt: skip
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt

Limits = tuple[float, float]
"""Least and greatest possible discounted return."""
UNLIMITED: Limits = (-math.inf, math.inf)


@dataclass(frozen=True)
class ActorCriticConfig:
    critics: PositiveInt = 2
    """Number of critics in the ensemble."""
    subset: PositiveInt = 2
    """Number of critics, drawn at random for each update, whose minimum value the target uses."""
    hidden: tuple[PositiveInt, ...] = (256, 256)
    """Widths of the critics' hidden layers."""
    layer_norm: bool = True
    """Use LayerNorm before each activation of the critics."""
    critic_on: Literal["action", "latent"] = "action"
    """Critic input: the environment's action T(u), or the actor's output u before the action transform."""
    head: HeadName = "scalar"
    """Form of a critic's output: scalar, hl-gauss, c51 or gaussian."""
    bins: PositiveInt = 101
    """Number of bins of the heads hl-gauss and c51."""
    optimism: Fraction = 0.5
    """Initial expectile of the targets that a scalar critic regresses; 0.5 is the mean (Omura et al. 2025, AQ-L)."""
    anneal_updates: PositiveInt = 100_000
    """Number of critic updates over which the expectile falls linearly from `optimism` to 0.5."""
    critic_lr: PositiveFloat = 3e-4
    """Learning rate of the critics (Adam)."""
    actor_lr: PositiveFloat = 3e-4
    """Learning rate of the actor (Adam)."""
    tau: Fraction = 0.01
    """Polyak rate of the target critics, per update."""
    discount: Fraction = 0.98
    """Discount per environment step."""
    n_step: PositiveInt = 3
    """Number of rewards summed in a target before it bootstraps from the critic; for chunks, their length instead."""
    entropy: bool = False
    """Learn a temperature and add the policy's entropy, times the temperature, to the actor's objective."""
    entropy_backup: bool = False
    """Add the policy's entropy to the critics' target too, as SAC does; RLPD and HIL-SERL do not."""
    initial_temperature: PositiveFloat = 0.01
    """Initial value of the learned temperature, the weight of entropy."""
    entropy_per_action: float = -0.5
    """Policy's entropy to which the temperature is tuned, nats per action dimension (SAC: -1)."""
    target_entropy: float | None = None
    """Policy's entropy to which the temperature is tuned, nats per action; None: computed from `entropy_per_action`."""
    pooling: Pooling = "mean"
    """Value that the actor maximizes: mean or minimum of the critic ensemble, or its first member's value."""
    l2: NonNegativeFloat = 0.01
    """Weight of the squared distance of the actor's output from the initial actor's output; the latter is 0 for a
    residual."""
    imitation: NonNegativeFloat = 0.0
    """Weight of cloning a person's corrections: squared distance of the actor's output from the executed action."""
    imitation_filter: bool = False
    """Clone only corrections that the critics value above the actor's own action (Nair et al. 2018, "Overcoming
    Exploration in Reinforcement Learning with Demonstrations", arXiv 1709.10089, eq. 5)."""
    actor_delay: PositiveInt = 2
    """Number of critic updates per actor update."""
    target_noise: NonNegativeFloat = 0.1
    """Standard deviation of the smoothing noise on target actions of an actor with fixed std (TD3)."""
    target_noise_clip: NonNegativeFloat = 0.2
    """Largest magnitude of the smoothing noise on target actions."""
    target_actor: bool = False
    """Take target actions from the averaged actor, as in TD3, instead of the latest actor, as in SAC."""
    value_low: float | None = None
    """Lower limit of target values; None: the reward's least return, but no limit if `entropy_backup` is true."""
    value_high: float | None = None
    """Upper limit of target values; None: the reward's greatest return, but no limit if `entropy_backup` is true."""
    grad_clip: PositiveFloat | None = 10.0
    """Largest gradient norm of the critics, and of the actor; None: no limit."""
    ema_decay: Fraction = 0.9995
    """Decay per actor update of the averaged actor, which is deployed (Polyak and Juditsky 1992)."""
    exploration: ExplorationConfig = ExplorationConfig()


def limits_of(config: ActorCriticConfig, returns: Limits) -> Limits:
    """Return the limits of target values for the limits of returns. Values that include entropy are unlimited."""
    low, high = UNLIMITED if config.entropy_backup else returns
    low = low if config.value_low is None else config.value_low
    high = high if config.value_high is None else config.value_high
    return low, high


@dataclass
class Updates:
    """Numbers of updates of the critics and of the actor so far."""

    critic: int = 0
    actor: int = 0


class ActorCritic:
    """Actor-critic agent with an ensemble of critics, on the policy's device."""

    learns_gripper: ClassVar[bool] = False
    """Whether the class learns the values by which a policy with `grasp` opens and closes its gripper."""

    def __init__(self, policy: ActorPolicy, config: ActorCriticConfig, seed: int = 0, value_limits: Limits = UNLIMITED):
        if not isinstance(policy, ActorPolicy):
            raise ConfigError(
                f"{type(policy).__name__} has no actor, which an actor-critic trains: derive it from ActorPolicy in "
                "policies/actor.py"
            )
        self.policy, self.config = policy, config
        size, self.device = policy.size, next(policy.actor.parameters()).device
        head = build_head(config.head, *limits_of(config, value_limits), config.bins)
        if config.optimism != 0.5 and config.head != "scalar":
            raise ConfigError(f"expectiles need --agent.head scalar, not {config.head}; or --agent.optimism 0.5")
        self.critic_on = config.critic_on
        """Name of the replay column that is the critics' action input."""
        width = policy.horizon * size.action if self.critic_on == "action" else policy.latent
        self.critic = self._build_critic(width, head).to(self.device)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.average = copy.deepcopy(policy.actor).requires_grad_(False)
        """Actor averaged over updates, which varies less than the latest actor."""
        self.start = None if policy.actor.starts_at_zero else copy.deepcopy(policy.actor).requires_grad_(False)
        self.log_alpha = torch.tensor(config.initial_temperature, device=self.device).log()
        self.log_alpha.requires_grad_(config.entropy)
        self.critic_parameters = [*self.critic.parameters(), *policy.encoder.parameters()]
        """Parameters that the critics' loss trains. It alone trains the picture encoder; actor and targets use the
        encoder without gradients (DrQ-v2)."""
        self.critic_optimizer = torch.optim.Adam(self.critic_parameters, config.critic_lr, fused=True)
        self.actor_optimizer = torch.optim.Adam(policy.actor.parameters(), config.actor_lr, fused=True)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], config.actor_lr) if config.entropy else None
        self.extra: dict[str, Any] = {}
        """Further networks and optimizers of a subclass by name, for the checkpoint."""
        if policy.grasps and not self.learns_gripper:
            raise ConfigError("this recipe learns no gripper values: leave out grasp, or take rlpd or hil-serl")
        self.rng = torch.Generator().manual_seed(seed)
        self.updates = Updates()
        self.noise = Noise(config.exploration.noise_memory, self.device)
        self.queue = ActionQueue(policy.horizon)
        observed = {"observation.state": Column((size.observation,), observed=True)}
        observed |= {key: Column(field.shape, torch.uint8, observed=True) for key, field in policy.kept.items()}
        observed |= {name: Column((width,), observed=True) for name, width in policy.inputs.items()}
        self.columns = observed | {"action": Column((size.action,)), "intervention": Column(dtype=torch.bool)}
        self.columns |= {} if self.critic_on == "action" else {self.critic_on: Column((width,))}
        chunk = policy.horizon
        self.sampling = Sampling(config.n_step if chunk == 1 else chunk, config.discount, chunk)
        self._extend(value_limits)

    def _extend(self, value_limits: Limits) -> None:
        """Build a subclass's own networks; raise ConfigError for settings that the subclass cannot work with."""

    def _build_critic(self, width: int, head: Head) -> Critic:
        """Return critics of encoded observations and an action input of `width` numbers."""
        c = self.config
        return Critic(self.policy.encoder.size, width, c.critics, c.hidden, head, c.layer_norm)

    # ---- acting ------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def act(self, observation: Observation, rng: torch.Generator, phase: LearningPhase) -> tuple[Tensor, Observation]:
        policy, rows = self.policy, len(observation["observation.state"])
        noise = self.noise.step(rows, policy.latent, rng)
        inputs = policy.sample_inputs(observation, rng)
        seen = observation | inputs
        u = explored(self.config.exploration, phase, lambda: self._explore(seen, noise, rng), noise, rng)
        kept = inputs | ({"latent": u, "decides": self.queue.due(rows)} if self.critic_on == "latent" else {})
        chunks = policy.transform(u, seen).unflatten(1, (policy.horizon, -1))
        return self.queue.step(chunks, self._lengths(rows, rng)), kept

    def _lengths(self, rows: int, rng: torch.Generator) -> Tensor | None:
        """Return how many actions (n,) of a chunk each environment executes if it begins a chunk now; None: all."""
        return None

    def _explore(self, seen: Observation, noise: Tensor, rng: torch.Generator) -> Tensor:
        """Return the actor's exploring outputs u (n, latent). An actor with a fixed standard deviation adds `noise`
        (n, latent) times this deviation to its mean."""
        actor, features = self.policy.actor, self.policy.actor_features(seen)
        return actor.sample(features, rng)[0] if actor.std is None else actor.mean(features) + actor.std * noise

    def peek(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> Observation:
        return self.policy.peek_inputs(observation, rows, rng)

    def annotate(self, observation: Observation, action: Tensor, reward: Tensor, rng: torch.Generator) -> Observation:
        inputs = self.policy.inputs_of_episode(observation, rng)
        if self.critic_on == "action":
            return inputs
        steps = {k: v[: len(action)] for k, v in (observation | inputs).items()}
        latent = self.policy.invert(action, steps) if self.policy.horizon == 1 else None
        if latent is None:
            raise ConfigError("recorded actions have no place in this policy's latent space: --training.demo-share 0")
        return inputs | {"latent": latent}

    def reset(self, ids: Tensor | None = None) -> None:
        self.queue.reset(ids)
        self.policy.reset(ids)

    # ---- learning ----------------------------------------------------------------------------------------------
    def update(self, batch: Batch, phase: LearningPhase = LearningPhase.LEARN) -> dict[str, Tensor]:
        """Take a critic step, then at every `actor_delay`-th update an actor step, except during warm-up.

        `batch` holds B rows of `columns`; the reward and discount over n steps, where the discount is 0 after a
        termination; and `next.*`, the observed columns after the n steps. For an actor of chunks, `action` is
        (B, horizon, A), and `valid` (B, horizon) marks the actions within the episode.
        """
        encoder = self.policy.encoder
        if batch["action"].ndim == 3:
            batch = flatten_chunks(batch, self.rng)
        batch = encoder.augment(encoder.augment(batch, self.rng), self.rng, NEXT)
        metrics = self._update_models(batch) | self._update_critic(batch)
        self.updates.critic += 1
        if phase == LearningPhase.LEARN and self.updates.critic % self.config.actor_delay == 0:
            metrics |= self._update_actor(batch)
            self.updates.actor += 1
        return metrics

    def _update_models(self, batch: Batch) -> dict[str, Tensor]:
        """Update a subclass's own networks; return metrics."""
        return {}

    def _next_action(self, following: Observation) -> tuple[Tensor, Tensor]:
        """Return the target action u (B, latent) at the next observation, and its log-probability (B,)."""
        c, actor = self.config, self.average if self.config.target_actor else self.policy.actor
        features = self.policy.actor_features(following)
        if actor.std is None:
            return actor.sample(features, self.rng)
        mean = actor.mean(features)
        noise = c.target_noise * normal(mean.shape, self.rng, self.device)
        return (mean + noise.clamp(-c.target_noise_clip, c.target_noise_clip)).clamp(-1, 1), mean.new_zeros(len(mean))

    def _critic_input(self, u: Tensor, observation: Observation) -> Tensor:
        """Return the critics' action input for the actor's output u (B, latent)."""
        return u if self.critic_on == "latent" else self.policy.transform(u, observation)

    def _backup(self, batch: Batch, following: Observation) -> Tensor:
        """Return the critics' targets for the B rows of `batch`, from the policy's action at the observation
        `following`."""
        u, log_prob = self._next_action(following)
        out = self.target(self.policy.features(following), self._critic_input(u, following))
        return self._bootstrap(batch, out, log_prob)

    def _bootstrap(self, batch: Batch, out: Tensor, log_prob: Tensor) -> Tensor:
        """Return the critics' targets from an ensemble's outputs (E, B, outputs) at the next observation and action,
        whose log-probability is `log_prob` (B,)."""
        c, head = self.config, self.critic.head
        reward = batch["reward"]
        if c.entropy_backup:
            reward = reward - batch["discount"] * self._entropy_cost(log_prob)
        return head.target(reward, batch["discount"], pessimistic(head, out, c.subset, self.rng))

    def _entropy_cost(self, log_prob: Tensor) -> Tensor:
        """Return alpha log pi (B,), the temperature times the log-probability, in units of the value."""
        return self.log_alpha.exp().detach() * log_prob

    def _outputs(self, batch: Batch, following: Observation) -> tuple[Tensor, Tensor]:
        """Return the critics' outputs (E, B, outputs) for the batch, and their targets."""
        with torch.no_grad():
            target = self._backup(batch, following)
        return self.critic(self.policy.features(batch), batch[self.critic_on]), target

    def _critic_loss(self, batch: Batch, out: Tensor, target: Tensor) -> Tensor:
        """Return the loss, one number, of the critics' outputs (E, B, outputs) against their targets."""
        head, c = self.critic.head, self.config
        tau = annealed(c.optimism, self.updates.critic, c.anneal_updates)
        if tau == 0.5:
            return head.loss(out, target).mean(1).sum()
        return 2 * expectile_error(target - head.mean(out), tau).mean(1).sum()  # 2: the squared error at tau 0.5

    def _update_critic(self, batch: Batch) -> dict[str, Tensor]:
        c, head = self.config, self.critic.head
        out, target = self._outputs(batch, next_observation(batch))
        loss = self._critic_loss(batch, out, target)
        norm = gradient_step(loss, self.critic_optimizer, self.critic_parameters, c.grad_clip)
        average_(self.target, self.critic, c.tau)
        with torch.no_grad():
            return {"critic/loss": loss.detach(), "critic/q": head.mean(out).mean(), "critic/grad_norm": norm}

    def _actor_value(self, batch: Batch, seen: Tensor, u: Tensor) -> Tensor:
        """Return the values (B,), which the actor maximizes, of its outputs u (B, latent). `seen`: critics' inputs."""
        return pooled(self.critic.value(seen, self._critic_input(u, batch)), self.config.pooling)

    def _actor_loss(self, batch: Batch, features: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the actor's loss, the log-probability (B,) of its actions, and metrics. `features` are the inputs of
        the actor, and `seen` the encoded observations for the critics."""
        c, policy = self.config, self.policy
        if policy.actor.std is None:
            u, log_prob = policy.actor.sample(features, self.rng)
        else:
            u = policy.actor.mean(features)
            log_prob = u.new_zeros(len(u))
        q = self._actor_value(batch, seen, u)
        loss = -q
        if c.l2:
            moved = u if self.start is None else u - self.start.mean(features)
            loss = c.l2 * moved.square().sum(-1) - q
        loss = loss.mean()
        mean = policy.actor.mean(features) if c.imitation else u
        if c.imitation and (distance := imitation_loss(policy, mean, batch)) is not None:
            kept = self._corrects(batch, seen, mean) if c.imitation_filter else 1.0
            loss = loss + c.imitation * (kept * distance).mean()
        if c.entropy:
            loss = loss + self._entropy_cost(log_prob).mean()
        return loss, log_prob, {"actor/q": q.detach().mean(), "actor/u": u.detach().abs().mean()}

    @torch.no_grad()
    def _corrects(self, batch: Batch, seen: Tensor, mean: Tensor) -> Tensor:
        """Return whether (B,) the critics value the executed action above the actor's output `mean`."""
        executed = self.policy.invert(batch["action"], batch)
        assert executed is not None, "imitation_loss is None then"
        return self._actor_value(batch, seen, executed) > self._actor_value(batch, seen, mean)

    def _update_actor(self, batch: Batch) -> dict[str, Tensor]:
        c, policy = self.config, self.policy
        self.critic.requires_grad_(False)  # no optimizer would use these gradients
        with torch.no_grad():
            features, seen = policy.actor_features(batch), policy.features(batch)
        loss, log_prob, metrics = self._actor_loss(batch, features, seen)
        gradient_step(loss, self.actor_optimizer, policy.actor.parameters(), c.grad_clip)
        weight = 1 - min(c.ema_decay, (1 + self.updates.actor) / (10 + self.updates.actor))
        average_(self.average, policy.actor, weight)
        self.critic.requires_grad_(True)
        if self.alpha_optimizer is not None:
            per_action = c.entropy_per_action * policy.latent
            entropy = per_action if c.target_entropy is None else c.target_entropy
            alpha_loss = -(self.log_alpha.exp() * (log_prob.detach() + entropy)).mean()  # Haarnoja et al. 2018b
            gradient_step(alpha_loss, self.alpha_optimizer)
            metrics |= {"actor/entropy": -log_prob.detach().mean(), "actor/temperature": self.log_alpha.detach().exp()}
        return metrics

    def finish(self) -> None:
        self.policy.actor.load_state_dict(self.average.state_dict())

    # ---- checkpoints -------------------------------------------------------------------------------------------
    def value_state(self) -> dict[str, Tensor]:
        return self.critic.state_dict()

    def memory(self) -> dict[str, Any]:
        return {"noise": self.noise.value, "queue": self.queue.state_dict(), "policy": self.policy.memory()}

    def load_memory(self, memory: dict[str, Any], observation: Observation) -> None:
        self.noise.value = None if memory["noise"] is None else memory["noise"].to(self.device)
        self.queue.load_state_dict(memory["queue"], self.device)
        self.policy.load_memory(memory["policy"], observation)

    def _parts(self) -> dict[str, Any]:
        alpha = {"alpha_optimizer": self.alpha_optimizer} if self.alpha_optimizer else {}
        return {
            "policy": self.policy, "critic": self.critic, "target": self.target, "average": self.average,
            "critic_optimizer": self.critic_optimizer, "actor_optimizer": self.actor_optimizer, **alpha, **self.extra,
        }  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        counts = [self.updates.critic, self.updates.actor]
        other = {"log_alpha": self.log_alpha.detach(), "rng": self.rng.get_state(), "updates": counts}
        return {"alpha_optimizer": {}} | other | states_of(self._parts())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restore(self._parts(), state)
        with torch.no_grad():
            self.log_alpha.copy_(state["log_alpha"])
        self.rng.set_state(state["rng"])
        self.updates = Updates(*state["updates"])
