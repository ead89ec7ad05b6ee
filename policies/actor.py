"""Policies of actor-critics: an encoder, an actor and an action transform T.

features = encoder(observation)       also the critic's input
u        = actor(features, base)      in [-1, 1]
action   = T(u; base)                 T: the identity, or a function of a frozen base policy, such as a residual

With a `horizon` above 1, u and action are flattened chunks (B, horizon * A).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from policies.base import Actor, EncodingPolicy, Normalizer, Observation, Policy, Size
from policies.networks.chunks import ChunkPolicy
from policies.networks.encoder import FEATURES, BaseFeatures, Encoder, EncoderConfig
from policies.networks.gaussian import GaussianActor, GaussianConfig, override_gripper
from robot_rl.interface.observation_spec import ObservationSpec
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import PositiveInt


class ActorPolicy(EncodingPolicy):
    """Policy of an actor-critic: an encoder, an actor and an action transform."""

    horizon: int = 1
    execute: int = 1
    inputs: Mapping[str, int] = MappingProxyType({})
    """Sizes of further inputs of the actor and the action transform, by key of the observation dict. `sample_inputs`
    computes these inputs when acting, and the replay stores them. With the input `FEATURES`, the features of a frozen
    visual base policy, the encoder reads neither pictures nor instruction."""
    actor: Actor
    explore: bool
    """Whether to sample the actor's output u instead of taking its mean."""

    @property
    def kept(self) -> ObservationSpec:
        """Return the spec of the observations that a replay stores besides observation.state."""
        return ObservationSpec(()) if FEATURES in self.inputs else self.size.extra_inputs

    @property
    def latent(self) -> int:
        """Return the size of the actor's output u."""
        return self.actor.actions

    @property
    def grasps(self) -> bool:
        """Return whether a gripper critic opens and closes the gripper."""
        return isinstance(self.actor, GaussianActor) and self.actor.values is not None

    def actor_features(self, observation: Observation) -> Tensor:
        """Return the actor's input: the encoder's features (B, F) followed by the further `inputs`."""
        more = (observation[name] for name in self.inputs if name != FEATURES)
        return torch.cat([self.features(observation), *more], -1)

    def transform(self, u: Tensor, observation: Observation) -> Tensor:
        """Return environment actions in [-1, 1] for actor outputs u (B, latent) in [-1, 1]; by default, return u."""
        return u

    def invert(self, action: Tensor, observation: Observation) -> Tensor | None:
        """Return the actor outputs u (B, latent) that `transform` maps nearest to `action`; None if u has no effect or
        is not unique."""
        return action

    def sample_inputs(self, observation: Observation, rng: torch.Generator) -> Observation:
        """Return the `inputs` of every environment's next step, and advance the policy's state."""
        return {}

    def peek_inputs(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> Observation:
        """Return the result of `sample_inputs` for the environments `rows` (n,) bool, and 0 for other environments,
        without advancing the policy's state."""
        return {}

    def inputs_of_episode(self, observation: Observation, rng: torch.Generator) -> Observation:
        """Return the `inputs` of every step of a recorded episode; each row of `observation` is a step."""
        return {}

    @torch.no_grad()
    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        return self._action(observation | self.sample_inputs(observation, rng), rng)

    @torch.no_grad()
    def peek(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> Tensor:
        inputs = self.peek_inputs(observation, rows, rng)
        return self._action({k: v[rows] for k, v in (observation | inputs).items()}, rng)

    def _action(self, observation: Observation, rng: torch.Generator) -> Tensor:
        """Return chunks (B, horizon, A) for an observation that contains the `inputs`."""
        features = self.actor_features(observation)
        u = self.actor.sample(features, rng)[0] if self.explore else self.actor.mean(features)
        return self.transform(u, observation).unflatten(1, (self.horizon, -1))

    def memory(self) -> dict[str, Any]:
        """Return the policy's per-environment state for a checkpoint."""
        return {}

    def load_memory(self, memory: dict[str, Any], observation: Observation) -> None:
        """Restore the result of `memory`; `observation` is the current observation."""


class FrozenFeatures:
    """Encoder of a policy on a frozen base policy: the features of a visual base, or a newly trained encoder."""

    ROWS = 256
    """Number of an episode's steps that are encoded at once."""

    def __init__(self, base: Policy, encoder: EncoderConfig, frozen: bool):
        """Build the encoder; `frozen` chooses the base's features if the base reads pictures or instructions."""
        self.base = base if frozen and base.size.extra_inputs and isinstance(base, ChunkPolicy) else None
        self.inputs = {} if self.base is None else {FEATURES: self.base.encoder.size}
        self.encoder = encoder.build(base.size) if self.base is None else BaseFeatures(base.size, self.inputs[FEATURES])

    @torch.no_grad()
    def __call__(self, observation: Observation, rows: Tensor | None = None) -> Observation:
        """Return the base policy's features of the rows in `rows` (n,) bool (None: all), and 0 in others. Return {} if
        the actor has an encoder of its own."""
        if self.base is None:
            return {}
        if rows is None:
            parts = zip(*(v.split(self.ROWS) for v in observation.values()), strict=True)
            return {FEATURES: torch.cat([self.base.condition(dict(zip(observation, p, strict=True))) for p in parts])}
        features = observation["observation.state"].new_zeros(len(rows), self.inputs[FEATURES])
        features[rows] = self.base.condition({k: v[rows] for k, v in observation.items()})
        return {FEATURES: features}


class GaussianPolicy(ActorPolicy):
    """Tanh-Gaussian policy. Its standard deviation is learned (SAC), fixed (TD3) or not used (behaviour cloning)."""

    class_name, config_class = "gaussian", GaussianConfig
    traceable = True
    actor: GaussianActor

    def __init__(self, size: Size, config: GaussianConfig | None = None):
        super().__init__()
        self.size, self.config = size, config or GaussianConfig()
        self.horizon = self.execute = self.config.horizon
        self.normalizer = Normalizer(size.observation, math.inf)  # the identity until it is fitted
        self.encoder = Encoder(size, self.config.encoder)
        features, plain = self.encoder.size, type(self) is GaussianPolicy
        self.actor = GaussianActor(features, self.horizon * size.action, self.config, allow_grasp=plain)
        self.explore = False

    def transform(self, u: Tensor, observation: Observation) -> Tensor:
        return override_gripper(u[:, :-1], u, self.config) if self.config.grasp else u

    def invert(self, action: Tensor, observation: Observation) -> Tensor | None:
        return pad(action, (0, 1)) if self.config.grasp else action

    def loss(self, observation: Observation, chunk: Tensor, rng: torch.Generator) -> Tensor:
        """Return the squared error (B,) of the mean actions for demonstrated chunks (B, horizon, A)."""
        observation = self.encoder.augment(observation, rng)
        return (self.actor.mean(self.actor_features(observation)) - chunk.flatten(1)).square().mean(-1)


def gaussian_from(policy: Policy, initial_std: float, grasp: bool = False) -> GaussianPolicy:
    """Return a Gaussian policy with a learned standard deviation, whose mean is initialized from `policy`. `grasp` adds
    a gripper critic. ConfigError if `policy` is of another class."""
    if type(policy) is not GaussianPolicy:  # subclasses have further networks
        raise ConfigError(f"a {policy.class_name} policy has no Gaussian to go on from; take bc, sac, td3 or rlpd")
    grasp |= policy.config.grasp
    made = GaussianPolicy(policy.size, replace(policy.config, std=None, initial_std=initial_std, grasp=grasp))
    made.load_state_dict(made.state_dict() | policy.state_dict())  # the gripper critic may be new
    head = made.actor.trunk[-1]
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.weight[head.out_features // 2 :].zero_()
        head.bias[head.out_features // 2 :].fill_(math.log(initial_std))
    return made


@dataclass(frozen=True)
class EmbeddedConfig(GaussianConfig):
    """Gaussian actor on a state embedding."""

    embedding: PositiveInt = 128
    """Size of the state embedding and width of the embedding network."""


def embedding(inputs: int, width: int) -> nn.Sequential:
    """Return three linear layers, each followed by LayerNorm and ELU, that map (B, inputs) to (B, width)."""
    layers: list[nn.Module] = []
    for size in (inputs, width, width):
        layers += [nn.Linear(size, width), nn.LayerNorm(width, elementwise_affine=False), nn.ELU()]
    return nn.Sequential(*layers)


class StateEmbedding(Encoder):
    """Encoder of observations as embeddings (B, width)."""

    def __init__(self, reads: Size, config: EncoderConfig, width: int):
        super().__init__(reads, config)
        self.net = embedding(self.size, width)
        self.size = width

    def forward(self, state: Tensor, observation: Mapping[str, Tensor]) -> Tensor:
        return self.net(super().forward(state, observation))


class EmbeddedPolicy(GaussianPolicy):
    """Tanh-Gaussian policy on a learned state embedding (MR.Q: Fujimoto et al. 2025, 2501.16142)."""

    class_name, config_class = "embedded", EmbeddedConfig
    config: EmbeddedConfig
    encoder: StateEmbedding

    def __init__(self, size: Size, config: EmbeddedConfig | None = None):
        config = config or EmbeddedConfig()
        super().__init__(size, config)
        self.encoder = StateEmbedding(size, config.encoder, config.embedding)
        self.actor = GaussianActor(self.encoder.size, self.horizon * size.action, config)
