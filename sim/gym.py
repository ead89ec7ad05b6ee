"""The tasks as Gymnasium environments, for other libraries.

>>> import sim.gym                                        # registers the tasks without importing a simulator
>>> env = gymnasium.make("robot_rl/PandaLift-v0")         # or at once: gymnasium.make("sim.gym:robot_rl/PandaLift-v0")
>>> envs = gymnasium.make_vec("robot_rl/PandaLift-v0", num_envs=64)      # natively batched, tensors in and out

An observation is the vector `observation.state` of the robot. With `privileged=True`, and in tasks with pictures, an
observation is a dict with LeRobot's keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorWrapper

from robot_rl.interface.observation_spec import PRIVILEGED, STATE
from robot_rl.util.seeds import LEARNING
from sim.tasks import tasks

if TYPE_CHECKING:  # slow to import
    from sim.env import TaskEnv
    from sim.tasks.base import Task

IDS = {f"robot_rl/{''.join(word.capitalize() for word in name.split('-'))}-v0": name for name in tasks}
"""Task name by Gymnasium id: panda-lift is robot_rl/PandaLift-v0."""


def register() -> None:
    """Register every task with Gymnasium, unless its id is already registered."""
    for name, task in IDS.items():
        if name not in gym.registry:
            gym.register(
                name, entry_point="sim.gym:GymTask", vector_entry_point="sim.gym:VectorTask", kwargs={"task": task}
            )


def _unseeded(task: Task | str, num_envs: int, **kwargs: Any) -> TaskEnv:
    """Return the environment of a task. Without a `seed` argument, its seed is random, as Gymnasium requires."""
    from sim.env import TaskEnv

    env = TaskEnv(task, num_envs, **kwargs)
    if "seed" not in kwargs:
        env.seed = int(env.np_random.integers(LEARNING))
    return env


class _View:
    """Select the part of an observation that Gymnasium environments return."""

    def __init__(self, env: TaskEnv, privileged: bool):
        spec = env.observation_spec
        self.spec = spec.only([key for key in spec if privileged or key != PRIVILEGED])
        self.plain = list(self.spec) == [STATE]

    def space(self, n: int | None = None) -> gym.Space[Any]:
        """Return the observation space of one environment, or of a batch of `n` environments."""
        space = self.spec.gymnasium_space(n)
        return space[STATE] if self.plain else space

    def __call__(self, observation: dict[str, Any]) -> Any:
        return observation[STATE] if self.plain else {key: observation[key] for key in self.spec}


class VectorTask(VectorWrapper):
    """n copies of a task, natively batched, with tensors on the device of the physics; `kwargs` go to `TaskEnv`."""

    env: TaskEnv

    def __init__(self, num_envs: int, task: Task | str, privileged: bool = False, **kwargs: Any):
        env = _unseeded(task, num_envs, **kwargs)
        super().__init__(env)
        self.view = _View(env, privileged)
        self.single_observation_space, self.observation_space = self.view.space(), self.view.space(num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, infos = self.env.reset(seed=seed, options=options)
        return self.view(observation), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, infos = self.env.step(actions)
        if "final_obs" in infos:
            infos["final_obs"] = self.view(infos["final_obs"])
        return self.view(observation), reward, terminated, truncated, infos


class GymTask(gym.Env[Any, np.ndarray]):
    """One copy of a task with numpy arrays and Gymnasium's single-environment API."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, task: Task | str, render_mode: str | None = None, privileged: bool = False, **kwargs: Any):
        self.render_mode = render_mode
        self.vector = _unseeded(task, 1, threads=1, **kwargs)
        self.view = _View(self.vector, privileged)
        self.metadata = self.metadata | {"render_fps": round(self.vector.rate)}
        self.action_space = self.vector.single_action_space
        self.observation_space = self.view.space()
        self._next: Any = None
        """First observation of the next episode, kept from the end of an episode to `reset` or another step."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start episode 0 of `seed`. Without a seed, start the next episode of the last seed; the first is random."""
        super().reset(seed=seed)
        first, self._next = self._next, None
        # The vector environment began the next episode when the last one ended: another reset would skip it.
        if first is None or seed is not None:
            first = self._numpy(self.vector.reset(seed=seed)[0])
        return first, {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Simulate one control period."""
        observation, reward, terminated, truncated, infos = self.vector.step(np.asarray(action)[None])
        # At the end of an episode, `observation` is the first of the next episode.
        last = infos.get("final_obs")
        self._next = None if last is None else self._numpy(observation)
        own, info = self._numpy(observation if last is None else last), {"success": bool(infos["success"][0])}
        return own, float(reward[0]), bool(terminated[0]), bool(truncated[0]), info

    def render(self) -> Any:
        """Return a frame (480, 640, 3) in render mode "rgb_array"; None in other modes."""
        return self.vector.render()[0] if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self.vector.close()

    def _numpy(self, observation: dict[str, Any]) -> Any:
        """Return the observation of the environment as numpy arrays."""
        return self.view({name: values[0].cpu().numpy() for name, values in observation.items()})


register()
