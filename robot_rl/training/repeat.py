"""Action repeat: one decision for several steps of the environment."""

from typing import Any

from torch import Tensor

from robot_rl.interface.environment import EnvWrapper


class ActionRepeat(EnvWrapper):
    """Repeat each action `count` times and sum the rewards. When an episode ends, in any environment, the repetition
    ends for all."""

    def __init__(self, env: Any, count: int):
        super().__init__(env)
        self.count = count

    def step(self, actions: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        observation, reward, terminated, truncated, infos = self.env.step(actions)
        for _ in range(self.count - 1):
            if bool((terminated | truncated).any()):
                break
            observation, more, terminated, truncated, infos = self.env.step(actions)
            reward = reward + more
        return observation, reward, terminated, truncated, infos
