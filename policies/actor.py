"""Policies that act every step through a tanh-Gaussian actor and an action transform, for actor-critics.

features = encoder(observation)       the critic's input
u        = actor(features, base)      in [-1, 1]
action   = T(u; base)                 identity, or a residual on a frozen base policy

Where `horizon` is above 1, u and action are chunks, flat: (B, horizon * A).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from policies.base import Actor, Normalizer, Observation, Policy, Size
from policies.networks.chunks import ChunkPolicy
from policies.networks.encoder import FEATURES, BaseFeatures, Encoder, EncoderConfig
from policies.networks.gaussian import GaussianActor, GaussianConfig, grasped
from robot_rl.interface.observation_spec import ObservationSpec
from robot_rl.util.errors import ConfigError


class ActorPolicy(Policy):
    """An actor behind an action transform.

    `inputs` are the sizes of further inputs of actor and transform by name. `sample_inputs` computes them when acting,
    the replay keeps them, and the observation dict contains them. One of them may be `FEATURES`, those of a frozen base
    that sees, which the encoder then reads in place of pictures and words.
    """

    horizon: int = 1
    execute: int = 1
    inputs: Mapping[str, int] = MappingProxyType({})
    actor: Actor
    normalizer: Normalizer
    encoder: Encoder | BaseFeatures
    explore: bool
    """Sample u instead of taking its mean."""

    @property
    def kept(self) -> ObservationSpec:
        """Return what a replay keeps of an observation besides observation.state."""
        return ObservationSpec(()) if FEATURES in self.inputs else self.size.extra_inputs

    @property
    def latent(self) -> int:
        """Return the size of u."""
        return self.actor.actions

    @property
    def grasps(self) -> bool:
        """Return whether it opens and shuts its gripper by values."""
        return isinstance(self.actor, GaussianActor) and self.actor.values is not None

    def features(self, observation: Observation) -> Tensor:
        """Return a critic's features (B, F)."""
        return self.encoder(self.normalizer(observation["observation.state"]), observation)

    def actor_features(self, observation: Observation) -> Tensor:
        """Return the actor's input (B, F + inputs)."""
        more = (observation[name] for name in self.inputs if name != FEATURES)
        return torch.cat([self.features(observation), *more], -1)

    def fit(self, columns: dict[str, Tensor]) -> None:
        """Take the normalizer's statistics from demonstrated rows (N, ...)."""
        self.normalizer.fit(columns["observation.state"])

    def transform(self, u: Tensor, observation: Observation) -> Tensor:
        """Return the environment's actions for actor outputs u (B, latent), both in [-1, 1]; here the identity."""
        return u

    def invert(self, action: Tensor, observation: Observation) -> Tensor | None:
        """Return the u (B, latent) whose action is nearest to `action`; None if u has no effect or is not unique."""
        return action

    def sample_inputs(self, observation: Observation, rng: torch.Generator) -> Observation:
        """Return the `inputs` of every environment's next step; advances the policy's memory."""
        return {}

    def peek_inputs(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> Observation:
        """Return the `inputs` that `sample_inputs` would return for rows (n,) bool, without advancing; others are 0."""
        return {}

    def inputs_of_episode(self, observation: Observation, rng: torch.Generator) -> Observation:
        """Return the `inputs` along one recorded episode, whose observations are the rows of `observation`."""
        return {}

    @torch.no_grad()
    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        return self._action(observation | self.sample_inputs(observation, rng), rng)

    @torch.no_grad()
    def peek(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> Tensor:
        inputs = self.peek_inputs(observation, rows, rng)
        return self._action({k: v[rows] for k, v in (observation | inputs).items()}, rng)

    def _action(self, observation: Observation, rng: torch.Generator) -> Tensor:
        """Return chunks (B, horizon, A)."""
        features = self.actor_features(observation)
        u = self.actor.sample(features, rng)[0] if self.explore else self.actor.mean(features)
        return self.transform(u, observation).unflatten(1, (self.horizon, -1))

    def memory(self) -> dict[str, Any]:
        """Return the policy's state per environment, for a checkpoint."""
        return {}

    def load_memory(self, memory: dict[str, Any], observation: Observation) -> None:
        """Restore what `memory` returned; `observation` is the current one."""


class FeaturesOf:
    """The features of a frozen base that sees, as an input of the policy on it."""

    ROWS = 256
    """Observations of an episode that are encoded at once."""

    def __init__(self, base: Policy, encoder: EncoderConfig, frozen: bool):
        """`frozen`: read the base's features; else pictures and words by an encoder of its own."""
        self.base = base if frozen and base.size.extra_inputs and isinstance(base, ChunkPolicy) else None
        self.inputs = {} if self.base is None else {FEATURES: self.base.encoder.size}
        self.encoder = encoder.build(base.size) if self.base is None else BaseFeatures(base.size, self.inputs[FEATURES])

    @torch.no_grad()
    def __call__(self, observation: Observation, rows: Tensor | None = None) -> Observation:
        """Return the features of rows (n,) bool, or of all; others are 0."""
        if self.base is None:
            return {}
        if rows is None:
            parts = zip(*(v.split(self.ROWS) for v in observation.values()), strict=True)
            return {FEATURES: torch.cat([self.base.condition(dict(zip(observation, p, strict=True))) for p in parts])}
        found = observation["observation.state"].new_zeros(len(rows), self.inputs[FEATURES])
        found[rows] = self.base.condition({k: v[rows] for k, v in observation.items()})
        return {FEATURES: found}


class GaussianPolicy(ActorPolicy):
    """A tanh-Gaussian of the observation (SAC: learned standard deviation; TD3: fixed; behaviour cloning: its mean)."""

    class_name, config_class = "gaussian", GaussianConfig
    traceable = True
    actor: GaussianActor

    def __init__(self, size: Size, config: GaussianConfig | None = None):
        super().__init__()
        self.size, self.config = size, config or GaussianConfig()
        self.horizon = self.execute = self.config.horizon
        self.normalizer = Normalizer(size.observation, math.inf)  # without demonstrations it is the identity
        self.encoder = Encoder(size, self.config.encoder)
        features, kind = self.encoder.size, type(self) is GaussianPolicy
        self.actor = GaussianActor(features, self.horizon * size.action, self.config, may_grasp=kind)
        self.explore = False

    def transform(self, u: Tensor, observation: Observation) -> Tensor:
        return grasped(u[:, :-1], u, self.config) if self.config.grasp else u

    def invert(self, action: Tensor, observation: Observation) -> Tensor | None:
        return pad(action, (0, 1)) if self.config.grasp else action

    def loss(self, observation: Observation, chunk: Tensor, rng: torch.Generator) -> Tensor:
        """Return the squared error (B,) of the mean for demonstrated chunks (B, horizon, A)."""
        observation = self.encoder.augment(observation, rng)
        return (self.actor.mean(self.actor_features(observation)) - chunk.flatten(1)).square().mean(-1)


def gaussian_from(policy: Policy, initial_std: float, grasp: bool = False) -> GaussianPolicy:
    """Return a Gaussian that goes on from a Gaussian policy's mean with a learned standard deviation; with `grasp` it
    decides on the gripper. ConfigError for other policies."""
    if type(policy) is not GaussianPolicy:  # one on an embedding has more than an actor
        raise ConfigError(
            f"a {policy.class_name} policy has no Gaussian to go on from; take one of bc, sac, td3 or rlpd"
        )
    grasp |= policy.config.grasp
    made = GaussianPolicy(policy.size, replace(policy.config, std=None, initial_std=initial_std, grasp=grasp))
    made.load_state_dict(made.state_dict() | policy.state_dict())  # values of the gripper may be new
    head = made.actor.trunk[-1]
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.weight[head.out_features // 2 :].zero_()
        head.bias[head.out_features // 2 :].fill_(math.log(initial_std))
    return made
