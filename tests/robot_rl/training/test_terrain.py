"""Terrain-level curriculum: levels rise and fall with the distance walked of that commanded."""

from typing import Any

import pytest
import torch

from robot_rl.training.terrain import TerrainCurriculum, read_levels, with_curriculum
from robot_rl.util.errors import ConfigError

LEVELS = 4


class Walks:
    """Environments on uneven ground whose robots walk a given share of a command of 1 m/s."""

    def __init__(self, shares: list[float], falls_at: list[int], horizon: int = 100):
        self.num_envs, self.device = len(shares), torch.device("cpu")
        self.terrain = type("Terrain", (), {"levels": LEVELS})
        self.info = type("Info", (), {"horizon": horizon, "rate": 10.0, "task": "walks"})
        self.shares, self.falls_at = torch.tensor(shares), torch.tensor(falls_at)
        self.levels = torch.zeros(self.num_envs, dtype=torch.long)
        self.reset()

    def set_levels(self, levels: torch.Tensor) -> None:
        self.levels = levels.clone()

    def _begin(self) -> torch.Tensor:
        """Levels of new episodes; a drawn level is 1."""
        return torch.where(self.levels < 0, 1, self.levels)

    def reset(self, **options: Any) -> None:
        self.steps, self.played = torch.zeros(self.num_envs, dtype=torch.long), self._begin()

    def step(self, actions: torch.Tensor) -> Any:
        self.steps += 1
        fallen, late = self.steps == self.falls_at, self.steps >= self.info.horizon
        speed = torch.ones(self.num_envs)
        infos = {
            "metrics": {"command_speed": speed, "speed_along_command": self.shares},
            "tiles": torch.stack([torch.zeros_like(self.played), self.played], 1), "episode_steps": self.steps.clone(),
        }  # fmt: skip
        done = fallen | late
        self.played = torch.where(done, self._begin(), self.played)
        self.steps[done] = 0
        return {}, speed, fallen, late & ~fallen, infos

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"steps": self.steps.clone(), "played": self.played.clone(), "levels": self.levels.clone()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        for name, value in state.items():
            setattr(self, name, value.clone())


def play(env: Any, episodes: int) -> list[list[int]]:
    """Return the level of every environment in each episode."""
    levels = []
    for _ in range(episodes):
        levels.append(env.env.played.tolist())
        for _ in range(100):
            env.step(torch.zeros(env.num_envs, 1))
    return levels


def test_levels_move_by_the_share_of_the_commanded_distance() -> None:
    env: Any = TerrainCurriculum(Walks([0.9, 0.4, 0.2, 0.9, 0.0], [0] * 5))
    env.reset()
    assert env.levels.tolist() == [0, 1, 0, 1, 0]
    levels = torch.tensor(play(env, 9)).T.tolist()
    assert levels[0] == [0, 0, 1, 1, 2, 2, 3, 3, 1], "up by one in every second episode, then drawn"
    assert levels[1] == [1] * 9 and levels[2] == [0] * 9 and levels[4] == [0] * 9
    assert levels[3][:6] == [1, 1, 2, 2, 3, 3]


def test_the_rest_after_a_fall_counts_as_commanded() -> None:
    """A robot that walks well and falls after 24 % of the time walked less than a quarter."""
    env: Any = TerrainCurriculum(Walks([1.0, 1.0, 1.0], [24, 40, 55]))
    env.set_levels(torch.tensor([2, 2, 2]))
    env.reset()
    for steps, levels in ((24, [1, 0, 0]), (16, [1, 2, 0]), (15, [1, 2, 3])):
        for _ in range(steps):
            env.step(torch.zeros(3, 1))
        moved = [k for k, level in enumerate(levels) if level != 0]
        assert env.levels[moved].tolist() == [levels[k] for k in moved]


def test_short_commands_do_not_move_levels() -> None:
    env: Any = TerrainCurriculum(Walks([0.0, 1.0], [0, 0], horizon=9))
    env.reset()
    before = env.levels.clone()
    for _ in range(50):
        env.step(torch.zeros(2, 1))
    assert torch.equal(env.levels, before)


def test_a_resumed_curriculum_moves_the_same_levels() -> None:
    env, other = (TerrainCurriculum(Walks([0.9, 0.4, 0.8], [0, 30, 70])) for _ in range(2))
    for each in (env, other):
        each.reset()
    for _ in range(130):
        env.step(torch.zeros(3, 1))
    other.load_state_dict(env.state_dict())
    for _ in range(400):
        for each in (env, other):
            each.step(torch.zeros(3, 1))
        assert torch.equal(env.levels, other.levels) and torch.equal(env.env.played, other.env.played)


def test_level_ground_has_no_curriculum() -> None:
    flat = object()
    assert with_curriculum(flat) is flat


def test_tasks_without_the_metrics_are_refused() -> None:
    env = TerrainCurriculum(Walks([1.0], [0]))
    inner = env.env.step
    env.env.step = lambda actions: (*inner(actions)[:4], {"metrics": {}})
    with pytest.raises(ConfigError, match="needs the metrics command_speed, speed_along_command of task 'walks'"):
        env.step(torch.zeros(1, 1))


def test_levels_are_written_as_a_number_or_a_range() -> None:
    assert [read_levels(text) for text in ("", "3", "2..5")] == [None, (3, 3), (2, 5)]
    for text in ("a", "2-5", "..3", "1..", "-1"):
        with pytest.raises(ConfigError, match="must be a level like 3, or a range like 2..5"):
            read_levels(text)
