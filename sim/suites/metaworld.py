"""Meta-World's 50 tasks (Yu et al. 2020, arXiv 1910.10897), demonstrated by its scripted policies.

A task is named `metaworld:pick-place-v3`. Goal and objects are drawn anew in every episode and observed. An episode
ends at its first success, which is how the suite counts success, or after 500 steps.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from metaworld.env_dict import ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE as TASKS
from metaworld.policies import ENV_POLICY_MAP

NOISE = {"CLUMSY": 0.3, "STEADY": 0.0}
"""Standard deviation of the noise on a script's actions, in units of the largest action."""


def make(name: str) -> gym.Env[Any, Any]:
    """Make the environment of one task."""
    cls = TASKS.get(f"{name}-goal-observable")
    if cls is None:
        known = ", ".join(sorted(key.removesuffix("-goal-observable") for key in TASKS))
        raise gym.error.NameNotFound(f"Meta-World has no task {name!r}; it has {known}")
    return Demonstrated(cls(), name)


class Demonstrated(gym.Wrapper):
    """A task whose episodes differ by the seed of their reset, and end when they succeed."""

    success_terminates = True
    skills = tuple(NOISE)

    def __init__(self, env: Any, name: str):
        super().__init__(env)
        self.suite, self.name = env, name
        env._freeze_rand_vec, env.seeded_rand_vec = False, True  # or every episode has the first one's goal

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; the suite's own `reset` ignores the seed."""
        if seed is not None:
            self.suite.seed(seed)
        return self.env.reset()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Act; success ends the episode."""
        observation, reward, _, truncated, info = self.env.step(action)
        return observation, reward, bool(info["success"]), truncated, info

    def demonstrator(self, skill: str) -> Script:
        """Return the task's scripted policy."""
        return Script(ENV_POLICY_MAP[self.name](), NOISE[skill])


class Script:
    """A scripted policy with noise."""

    def __init__(self, policy: Any, noise: float):
        self.policy, self.noise = policy, noise

    def begin(self, observation: np.ndarray, info: dict[str, Any]) -> None:
        """Do nothing: the scripts have no memory."""

    def act(self, observation: np.ndarray, info: dict[str, Any]) -> np.ndarray:
        """Return an action (4,) in [-1, 1]: hand x, y, z, and the gripper."""
        action = np.clip(self.policy.get_action(observation), -1, 1)
        return np.clip(action + self.noise * np.random.randn(len(action)), -1, 1)
