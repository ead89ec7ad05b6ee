"""Demonstrators for recording: a task's scripted expert, or a policy."""

from typing import Any

import torch
from torch import Tensor

from policies.bundle import Bundle
from policies.execution import ChunkExecutor
from robot_rl.interface.environment import Demonstrator
from robot_rl.interface.pipeline import Pipeline
from robot_rl.util.errors import ConfigError, UnknownName


class PrivilegedExpert:
    """A scripted expert with its own observation terms, different from those of the environment's policy."""

    def __init__(self, env: Any, skill: str, seed: int):
        pipeline = Pipeline(env.task.expert_interface, env.robot, env.device)
        self.env, self.observer = env, pipeline.observer
        self.expert = env.task.make_expert(pipeline, env.num_envs, skill, seed)
        self.reset = self.expert.reset

    def act(self, _: dict[str, Any]) -> Any:
        """Return actions (n, A) for the environment's current state."""
        return self.expert.act({"observation.state": self.observer(self.env.state).cpu()})


class PolicyDemonstrator:
    """A bundle's policy with its own random number generator."""

    def __init__(self, env: Any, bundle: Bundle, seed: int):
        self.executor = ChunkExecutor(bundle.policy, env.num_envs)
        self.rng = torch.Generator().manual_seed(seed)
        self.executor.reset()

    def act(self, observation: dict[str, Tensor]) -> Tensor:
        return self.executor.act(observation, self.rng)

    def reset(self, ids: Tensor) -> None:
        self.executor.reset(ids)


def make_expert(env: Any, skill: str, seed: int) -> Any:
    """Return the expert of a `TaskEnv`'s task; `skill` names a constant of the expert's module, such as "CLUMSY"."""
    if env.task.expert_observations:
        return PrivilegedExpert(env, skill, seed)
    return env.task.make_expert(env.pipeline, env.num_envs, skill, seed)


def demonstrator(env: Any, skill: str, seed: int, policy: Bundle | None = None) -> Demonstrator:
    """Return the environment's scripted demonstrator, or `policy` as a demonstrator."""
    if policy is not None:
        if policy.task != env.info.task:
            raise ConfigError(f"{policy.label} is for task {policy.task!r}, not {env.info.task!r}")
        return PolicyDemonstrator(env, policy, seed)
    if not env.info.demonstrator:
        raise ConfigError(
            f"task {env.info.task!r} has no scripted demonstrator; collect with --policy BUNDLE, or "
            "learn it with train --recipe ppo or sac"
        )
    if skill not in env.skills:
        raise UnknownName("skill", skill, env.skills)
    made: Demonstrator = env.make_demonstrator(seed, skill)
    return made
