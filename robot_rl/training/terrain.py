"""Terrain-level curriculum: robots that walk as commanded get harder ground, robots that do not get easier ground.

Rudin et al. 2022, "Learning to Walk in Minutes Using Massively Parallel Deep Reinforcement Learning" (arXiv
2109.11978), and legged_gym. Deviation: progress is measured along the commanded direction, which changes during an
episode here, and not as the distance from the start; like there, a robot that fell after half of the way may go on to
harder ground. A level moves by the result of the episode before the last:

    episode        e         e + 1       e + 2
    level          3         4           3 + 1 if episode e went well, 3 - 1 if badly
"""

import re
from typing import Any

import torch
from torch import Tensor

from robot_rl.interface.environment import EnvWrapper
from robot_rl.util.errors import ConfigError

CURRICULUM = "curriculum"
"""Value of the setting `levels` with which a run uses the curriculum."""
UP, DOWN = 0.5, 0.25
"""Shares of the commanded distance above which an environment's level rises, and below which it falls."""
SHORT = 1.0
"""An episode in which less distance is commanded does not move the level, m."""
METRICS = ("command_speed", "speed_along_command")
"""Metrics of the task that measure progress, m/s."""


def read_levels(text: str) -> tuple[int, int] | None:
    """Return the lowest and highest level in text like "2..5" or "3"; None for "", which stands for all levels."""
    if not text:
        return None
    found = re.fullmatch(r"(\d{1,4})(?:\.\.(\d{1,4}))?", text)
    if not found:
        raise ConfigError(f"--levels is {text!r}; it must be a level like 3, or a range like 2..5")
    return int(found[1]), int(found[2] or found[1])


def with_curriculum(env: Any) -> Any:
    """Return an environment on uneven ground with the curriculum, any other environment unchanged."""
    return TerrainCurriculum(env) if getattr(env, "terrain", None) else env


class TerrainCurriculum(EnvWrapper):
    """An environment on uneven ground whose episodes begin on levels that fit the policy.

    Environments begin on the levels 0 to half of all, in turn. An environment that passes the highest level draws its
    next level at random.

    >>> env = TerrainCurriculum(TaskEnv("go2-rough", 512))
    """

    def __init__(self, env: Any):
        super().__init__(env)
        n, self.top = env.num_envs, env.terrain.levels - 1
        zeros = torch.zeros(n, device=env.device)
        self.commanded, self.walked, self.seen = zeros, zeros.clone(), zeros.clone()
        """Summed commanded speeds (n,) and speeds along the command, m/s, and control periods of running episodes."""
        self.levels = torch.arange(n, device=env.device) % (self.top // 2 + 1)
        """(n,) Level of each environment's next episode; -1: drawn at random."""
        env.set_levels(self.levels)

    def reset(self, **kwargs: Any) -> Any:
        for total in (self.commanded, self.walked, self.seen):
            total.zero_()
        return self.env.reset(**kwargs)

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        """Step the environment, and move the levels of environments whose episode ended."""
        result: tuple[Any, ...] = self.env.step(actions)
        _, _, terminated, truncated, infos = result
        if missing := [name for name in METRICS if name not in infos["metrics"]]:
            raise ConfigError(f"the curriculum needs the metrics {', '.join(missing)} of task {self.env.info.task!r}")
        for total, name in ((self.commanded, METRICS[0]), (self.walked, METRICS[1])):
            total += infos["metrics"][name]
        self.seen += 1
        done = terminated | truncated
        if done.any():
            self._move(done, terminated, infos)
        return result

    def _move(self, done: Tensor, terminated: Tensor, infos: dict[str, Any]) -> None:
        """Move the levels of environments `done` (n,). The rest of an episode after a fall counts as commanded."""
        rest = (self.env.info.horizon - infos["episode_steps"]).clamp_min(0) * terminated
        commanded = self.commanded * (1 + rest / self.seen.clamp_min(1))
        far = commanded / self.env.info.rate >= SHORT
        share = self.walked / commanded.clamp_min(1e-6)
        level = infos["tiles"][:, 1] + far * ((share > UP).long() - (share < DOWN).long())
        level = torch.where(level > self.top, -1, level.clamp_min(0))
        self.levels = torch.where(done, level, self.levels)
        self.env.set_levels(self.levels)
        for total in (self.commanded, self.walked, self.seen):
            total.masked_fill_(done, 0.0)

    def wrapper_state(self) -> dict[str, Any]:
        """Return the progress of the running episodes and the levels."""
        return {name: getattr(self, name).clone() for name in ("commanded", "walked", "seen", "levels")}

    def load_wrapper_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `wrapper_state`; the environment has its levels in its own state."""
        for name, value in state.items():
            setattr(self, name, value.to(self.env.device, copy=True))
