"""Action repeat: one decision for several steps of the environment."""

from typing import Any

from torch import Tensor

from robot_rl.interface.environment import EnvWrapper
from robot_rl.util.errors import ConfigError


class HeldAction(EnvWrapper):
    """Repeat each action `count` times in one environment, or until its episode ends; rewards are summed."""

    def __init__(self, env: Any, count: int):
        if env.num_envs > 1:
            raise ConfigError(
                f"--training.action-repeat takes one environment, since episodes end at different steps, not "
                f"{env.num_envs}: set --training.num-envs 1"
            )
        super().__init__(env)
        self.count = count

    def step(self, actions: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        observation, reward, terminated, truncated, infos = self.env.step(actions)
        for _ in range(self.count - 1):
            if bool((terminated | truncated).any()):
                break
            before = infos
            observation, more, terminated, truncated, infos = self.env.step(actions)
            reward = reward + more
            if "success" in infos:
                infos["success"] = infos["success"] | before["success"]
        return observation, reward, terminated, truncated, infos
