"""Residual policy: a frozen chunked policy plus a learned correction at every step (Ankile et al. 2025, ResFiT)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from policies.actor import ActorPolicy, FrozenFeatures
from policies.base import Normalizer, Observation, Policy, build_policy, from_json
from policies.execution import ChunkExecutor, Execution
from policies.networks.gaussian import GaussianActor, GaussianConfig, override_gripper
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeFloat

BASE = "base"
"""Observation key of the base policy's actions in [-1, 1]."""


@dataclass(frozen=True)
class ResidualConfig:
    """Residual correction of a base policy."""

    scale: NonNegativeFloat = 0.5
    """Largest correction, in units of the action range [-1, 1]; 0: exactly the base policy."""
    actor: GaussianConfig = field(default_factory=lambda: GaussianConfig(std=0.1, zero_init=True))
    frozen_features: bool = True
    """Read the features of a visual base policy; False: train an encoder, as published."""


class ResidualPolicy(ActorPolicy):
    """Action = clip(base + scale * actor(observation, base), -1, 1), where base is the base policy's action.

    The base samples chunks, but the actor acts at every step, so the policy's horizon is 1.
    """

    class_name, config_class = "residual", ResidualConfig

    def __init__(self, base: Policy, config: ResidualConfig | None = None):
        super().__init__()
        self.config = config or ResidualConfig()
        if self.config.actor.horizon != 1:
            raise ConfigError(f"a residual acts every step; actor.horizon {self.config.actor.horizon} must be 1")
        self.base = base.requires_grad_(False).eval()
        self.size = base.size
        self.normalizer = Normalizer(base.size.observation)
        if isinstance(statistics := getattr(base, "normalizer", None), Normalizer):
            self.normalizer.load_state_dict({k: v for k, v in statistics.state_dict().items() if k != "count"})
        self.base_features = FrozenFeatures(base, self.config.actor.encoder, self.config.frozen_features)
        self.encoder, self.inputs = self.base_features.encoder, {BASE: base.size.action} | self.base_features.inputs
        actions = base.size.action
        self.actor = GaussianActor(self.encoder.size + actions, actions, self.config.actor, allow_grasp=True)
        self.explore = False
        self.runner: ChunkExecutor | None = None
        self._execution: tuple[Execution | None, Callable[[], Tensor] | None] = (None, None)

    def describe(self) -> dict[str, Any]:
        return {"class": self.class_name, "config": asdict(self.config), "base": self.base.describe()}

    @classmethod
    def build(cls, description: dict[str, Any]) -> ResidualPolicy:
        return cls(build_policy(description["base"]), from_json(ResidualConfig, description["config"]))

    def transform(self, u: Tensor, observation: Observation) -> Tensor:
        actor = self.config.actor
        action = (observation[BASE] + self.config.scale * (u[:, :-1] if actor.grasp else u)).clamp(-1, 1)
        return override_gripper(action, u, actor) if actor.grasp else action

    def invert(self, action: Tensor, observation: Observation) -> Tensor | None:
        if not self.config.scale:
            return None
        u = ((action - observation[BASE]) / self.config.scale).clamp(-1, 1)
        return pad(u, (0, 1)) if self.config.actor.grasp else u

    def reset(self, ids: Tensor | None = None) -> None:
        if self.runner is not None:
            self.runner.reset(ids)

    def set_base_execution(self, execution: Execution, hold_action: Callable[[], Tensor] | None) -> None:
        """Set the execution of the base's chunks, see `ChunkExecutor`; the residual actor still acts every period."""
        ChunkExecutor(self.base, 1, execution, hold_action)  # raises if policy and execution do not match
        self.runner, self._execution = None, (execution, hold_action)

    def _runner(self, observation: Observation) -> ChunkExecutor:
        count = len(observation["observation.state"])
        if self.runner is None or len(self.runner.used) != count:
            self.runner = ChunkExecutor(self.base, count, *self._execution)
        return self.runner

    def sample_inputs(self, observation: Observation, rng: torch.Generator) -> Observation:
        base_features = self.base_features(observation)
        return {BASE: self._runner(observation).act(observation | base_features, rng)} | base_features

    def peek_inputs(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> Observation:
        assert self.runner is not None
        base_features = self.base_features(observation, rows)
        return {BASE: self.runner.peek(observation | base_features, rows, rng)} | base_features

    @torch.no_grad()
    def inputs_of_episode(self, observation: Observation, rng: torch.Generator) -> Observation:
        """Return the base's actions along an episode, sampling a chunk at every `execute`-th step."""
        base_features = self.base_features(observation)
        every = {k: v[:: self.base.execute] for k, v in (observation | base_features).items()}
        chunks = self.base.act(every, rng)[:, : self.base.execute].flatten(0, 1)
        return {BASE: chunks[: len(observation["observation.state"])]} | base_features

    def memory(self) -> dict[str, Any]:
        return self.runner.state_dict() if self.runner else {}

    def load_memory(self, memory: dict[str, Any], observation: Observation) -> None:
        if memory:
            chunks = memory["chunks"]
            chunks = None if chunks is None else chunks.to(observation["observation.state"].device)
            self._runner(observation).load_state_dict(memory | {"chunks": chunks})


def residual_from(policy: Policy, grasp: bool = False) -> ResidualPolicy:
    """Return a residual policy with a learned standard deviation; `grasp` adds a gripper critic. A residual `policy`
    provides the actor; on a chunked policy the correction starts at zero. Others raise ConfigError."""
    if isinstance(policy, ResidualPolicy):
        grasp |= policy.config.actor.grasp
        actor = replace(policy.config.actor, std=None, zero_init=False, grasp=grasp)
        made = ResidualPolicy(policy.base, replace(policy.config, actor=actor))
        made.actor.load_state_dict(made.actor.state_dict() | policy.actor.state_dict())  # gripper critic may be new
        return made
    if policy.horizon == 1:
        raise ConfigError(f"a {policy.class_name} policy cannot be corrected; take a chunked one, or a residual on one")
    actor = replace(ResidualConfig().actor, std=None, grasp=grasp)
    return ResidualPolicy(policy, replace(ResidualConfig(), actor=actor))
