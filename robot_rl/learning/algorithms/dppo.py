"""PPO on denoising steps: Ren et al. 2024, "Diffusion Policy Policy Optimization" (DPPO, arXiv 2409.00588).

Each of the last K denoising steps of a chunk is an action of PPO, a Gaussian transition of `Chain`. A step's advantage
is the chunk's, discounted once for each denoising step that remains.

    r_k  = exp(mean over executed components of log N(x_k+1; mean_new) - log N(x_k+1; mean_old))
    A_k  = denoising_discount^(K - 1 - k) A        clip_k grows from clip_first to clip, exponentially in k
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from policies.base import Observation, Policy
from policies.diffusion import Chain, DiffusionPolicy
from robot_rl.learning.algorithms.chunk_ppo import ChunkPPO, ChunkPPOConfig, estimated_divergence
from robot_rl.learning.parts.mixed import MixedMoments
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt


@dataclass(frozen=True)
class DPPOConfig(ChunkPPOConfig):
    """Hyperparameters of the update. `entropy_coef` has no effect, since the noise is fixed."""

    denoising_steps: PositiveInt = 10
    """Number K of last denoising steps that are learned; a frozen copy of the base computes the earlier steps."""
    eta: NonNegativeFloat = 1.0
    """Share of DDPM's noise that exploring denoising steps add; the deployed policy adds no noise."""
    min_std: PositiveFloat = 0.1
    """Least standard deviation of an exploring denoising step's noise, in units of the action range [-1, 1]."""
    denoising_discount: Fraction = 0.99
    """Discount of the chunk's advantage per remaining denoising step."""
    clip_first: PositiveFloat = 0.001
    """Clip range of the ratio at the first learned denoising step; the range grows to `clip` at the last step."""
    mixing: Fraction | None = None
    """Place of the policy's optimizer between RMSProp (0) and Adam (1), for ADPO; None: Adam, as in PPO."""


class DPPO(ChunkPPO):
    """PPO for a diffusion policy."""

    policy: DiffusionPolicy
    config: DPPOConfig
    kept: ClassVar[tuple[str, ...]] = ("state", "chain")
    LOG_PROB = (-5.0, 2.0)
    """Limits of a component's log-probability, beyond which it has no gradient."""
    GROWTH = 3.0
    """Exponent of the clip's growth over the denoising steps."""
    BETAS = (0.9, 0.99)
    """Decay rates of the gradient's first and second moments, used with `mixing`."""

    def __init__(
        self, policy: DiffusionPolicy, privileged: int, config: DPPOConfig, seed: int = 0, terms: int | None = None
    ):
        super().__init__(policy, privileged, config, seed, terms=terms)
        self.chain = Chain(policy, config.eta, config.min_std)
        steps = len(self.chain.std)
        share = torch.linspace(0, 1, steps, device=self.device) if steps > 1 else torch.ones(1, device=self.device)
        grown = (self.GROWTH * share).expm1() / math.expm1(self.GROWTH)
        self.clip = config.clip_first + (config.clip - config.clip_first) * grown
        self.step_weight = config.denoising_discount ** torch.arange(steps - 1, -1, -1, device=self.device)
        if config.mixing is not None:
            actor, critic = self.optimizer.param_groups
            groups = [{"params": actor["params"], "lr": config.actor_lr, "mixing": config.mixing},
                      {"params": critic["params"], "lr": config.critic_lr}]  # fmt: skip
            self.optimizer = MixedMoments(groups, betas=self.BETAS)

    def _trained(self) -> list[nn.Parameter]:
        return list(self.policy.denoiser.parameters())

    def _decide(self, observation: Observation, rng: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        noise = self.policy.noise(len(observation["observation.state"]), rng)
        chain = self.chain.sample(observation, noise, rng)
        return chain[:, -1, : self.policy.execute].clamp(-1, 1), {"chain": chain.flatten(1)}

    def _log_std(self) -> Tensor:
        return self.chain.std.log()

    def _widths(self) -> dict[str, int]:
        return {"chain": (len(self.chain.std) + 1) * self.policy.horizon * self.policy.size.action}

    @torch.no_grad()
    def _prepare(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the losses' inputs: the policy's (B, K, ...) over K denoising steps, and the critic's (B, 1, ...)."""
        policy = self.policy
        seen = {"observation.state": batch["state"][:, : policy.size.observation]}
        data = {
            "chain": batch["chain"].unflatten(1, (-1, policy.horizon, policy.size.action)),
            "condition": policy.condition(seen),
            **self._critic_inputs(batch),
        }
        return data | {"advantage": data["advantage"] * self.step_weight, "log_prob": self._log_prob(data)}

    def _log_prob(self, part: dict[str, Tensor]) -> Tensor:
        """Return the log-probabilities (B, K) of denoising steps, averaged over the executed actions' components."""
        chain, std = part["chain"], self.chain.std[:, None, None]
        rows, steps = len(chain), len(std)
        step = torch.arange(self.chain.first, self.chain.first + steps, device=self.device).repeat(rows)
        condition = part["condition"].repeat_interleave(steps, 0)
        mean = self.chain.mean(chain[:, :-1].flatten(0, 1), step, condition).view_as(chain[:, 1:])
        density = -0.5 * ((chain[:, 1:] - mean) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)
        return density[:, :, : self.policy.execute].clamp(*self.LOG_PROB).mean((2, 3))

    def _compare(self, part: dict[str, Tensor], old: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        change = self._log_prob(part) - part["log_prob"]
        return change, old.new_zeros(()), estimated_divergence(change)


def denoiser_from(base: Policy, steps: int) -> DiffusionPolicy:
    """Return a copy of a diffusion policy whose last `steps` denoising steps are trainable; ConfigError if `base` is no
    such policy, sees pictures, or does not fit `steps`."""
    if not isinstance(base, DiffusionPolicy):
        raise ConfigError(f"a {base.class_name} policy is not a diffusion policy; take one of diffusion-bc")
    if base.size.pictures:
        raise ConfigError("dppo learns from state vectors, and this base sees pictures; take a base without them")
    count = base.config.sample_steps
    if steps > count:
        raise ConfigError(f"agent.denoising_steps {steps} is more than the base's sample_steps {count}; lower it")
    if base.frozen is not None and base.config.frozen_steps != count - steps:
        raise ConfigError(
            f"agent.denoising_steps is {steps}, and the base learned its last {count - base.config.frozen_steps}; "
            "take the same number"
        )
    made = DiffusionPolicy(base.size, replace(base.config, frozen_steps=count - steps))
    made.load_state_dict(base.state_dict(), strict=False)
    if base.frozen is None:
        made.freeze_first()
    return made
