"""Our tasks as ordinary Gymnasium environments, for any other library.

>>> import sim.gym                                        # registers; imports nothing heavy
>>> env = gymnasium.make("robot_rl/PandaLift-v0")         # or in one: gymnasium.make("sim.gym:robot_rl/PandaLift-v0")
>>> envs = gymnasium.make_vec("robot_rl/PandaLift-v0", num_envs=64)      # natively batched, tensors in and out
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from robot_rl.util.seeds import LEARNING
from sim.tasks import tasks

if TYPE_CHECKING:  # imports nothing heavy
    from torch import Tensor

IDS = {f"robot_rl/{''.join(word.capitalize() for word in name.split('-'))}-v0": name for name in tasks}
"""The task of each id: panda-lift is robot_rl/PandaLift-v0."""


def register() -> None:
    """Register every task, once."""
    for name, task in IDS.items():
        if name not in gym.registry:
            gym.register(
                name, entry_point="sim.gym:GymTask", vector_entry_point="sim.gym:vector", kwargs={"task": task}
            )


def vector(num_envs: int, task: str, **kwargs: Any) -> Any:
    """The natively batched environment; tensors in and out.

    Without a `seed`, here or at a reset, it draws one, as Gymnasium's contract has it; a TaskEnv begins with seed 0.
    """
    from sim.env import TaskEnv

    env = TaskEnv(task, num_envs, **kwargs)
    if "seed" not in kwargs:
        env.seed = int(env.np_random.integers(LEARNING))
    return env


class GymTask(gym.Env[dict[str, np.ndarray], np.ndarray]):
    """One copy of a task with numpy arrays and Gymnasium's scalar API."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, task: str, render_mode: str | None = None, **kwargs: Any):
        self.render_mode = render_mode
        self.vector = vector(1, task, threads=1, **kwargs)
        self.metadata = self.metadata | {"render_fps": round(self.vector.rate)}
        self.action_space = self.vector.single_action_space
        self.observation_space = self.vector.single_observation_space
        self._next: dict[str, np.ndarray] | None = None
        """First observation of the episode that began when the last one ended, until `reset` or another step."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Start an episode; without a seed, the next one of the last seed, at first of one that nobody else has."""
        super().reset(seed=seed)
        first, self._next = self._next, None
        # When an episode ends, the vector environment begins the next: another reset would skip it.
        if first is None or seed is not None:
            first = _numpy(self.vector.reset(seed=seed)[0])
        return first, {}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Act for one control period."""
        observation, reward, terminated, truncated, infos = self.vector.step(np.asarray(action)[None])
        # The vector environment has started the next episode already: what ended is in final_obs.
        last = infos.get("final_obs")
        self._next = None if last is None else _numpy(observation)
        info = {"success": bool(infos["success"][0])}
        return (
            _numpy(observation if last is None else last),
            float(reward[0]),
            bool(terminated[0]),
            bool(truncated[0]),
            info,
        )

    def render(self) -> Any:
        """A picture (480, 640, 3) in rgb_array mode."""
        return self.vector.render()[0] if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self.vector.close()


def _numpy(observation: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """The observation of the only environment."""
    return {name: values[0].numpy() for name, values in observation.items()}


register()
