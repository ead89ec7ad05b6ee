"""Gymnasium-Robotics' tasks of a Fetch arm (Plappert et al. 2018, arXiv 1802.09464), with scripted demonstrators.

`fetch:reach`, `fetch:push`, `fetch:slide` and `fetch:pick-and-place` observe `achieved_goal`, `desired_goal` and
`observation`. A step costs 1 until the goal is within 5 cm. An episode ends at its first success, or after 50 steps at
25 Hz; the suite itself goes on after a success.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import gymnasium_robotics
import numpy as np

gym.register_envs(gymnasium_robotics)
TASKS = {"reach": "Reach", "push": "Push", "slide": "Slide", "pick-and-place": "PickAndPlace"}
NOISE = {"CLUMSY": 0.3, "STEADY": 0.0}
"""Standard deviation of a script's action noise, in units of the largest action."""
GAIN = 10.0
"""Action per meter of distance; the largest action moves the hand by up to 5 cm."""
ABOVE, BEHIND = 0.06, 0.075
"""Distance of the hand above and behind the object before it comes down, m."""
NEAR = 0.015
"""Distance at which a script goes on to its next phase, m."""


def make(name: str, **options: Any) -> gym.Env[Any, Any]:
    """Make the environment of a task; options such as `render_mode` go to the suite."""
    if name not in TASKS:
        raise gym.error.NameNotFound(f"Fetch has no task {name!r}; it has {', '.join(TASKS)}")
    return ScriptedFetch(name, **options)


class ScriptedFetch(gym.Wrapper):
    """Environment of a task whose episode ends at success."""

    success_terminates = True

    def __init__(self, name: str, **options: Any):
        super().__init__(gym.make(f"Fetch{TASKS[name]}-v4", **options))
        self.name = name
        self.skills = () if name == "slide" else tuple(NOISE)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Act; success ends the episode."""
        observation, reward, _, truncated, info = self.env.step(action)
        return observation, reward, bool(info["is_success"]), truncated, info

    def demonstrator(self, skill: str) -> FetchScript:
        """Return the task's script."""
        return {"reach": FetchScript, "push": Push, "pick-and-place": PickAndPlace}[self.name](NOISE[skill])


class FetchScript:
    """Move the hand to the goal; an action is a displacement of the hand and the opening of the fingers."""

    def __init__(self, noise: float):
        self.noise, self.phase, self.wait = noise, 0, 0

    def begin(self, observation: Any, info: dict[str, Any]) -> None:
        """Start an episode."""
        self.phase = self.wait = 0

    def act(self, observation: Any, info: dict[str, Any]) -> np.ndarray:
        """Return the action (4,) in [-1, 1]."""
        hand, thing = observation["observation"][:3], observation["observation"][3:6]
        target, fingers = self.plan(hand, thing, observation["desired_goal"])
        move = GAIN * (target - hand) + self.noise * np.random.standard_normal(3)
        return np.append(np.clip(move, -1, 1), fingers)

    def plan(self, hand: Any, thing: Any, goal: Any) -> tuple[Any, float]:
        """Return where the hand should go, m, and the action of the fingers, -1 (close) to 1 (open)."""
        return goal, 0.0


class Push(FetchScript):
    """Go over the object, behind it, down, and push it to the goal."""

    def plan(self, hand: Any, thing: Any, goal: Any) -> tuple[Any, float]:
        way = (goal - thing) * (1, 1, 0)
        away = way / max(float(np.linalg.norm(way)), 1e-6)
        behind = thing - BEHIND * away
        if self.phase == 0 and np.linalg.norm((hand - behind)[:2]) < NEAR:
            self.phase = 1
        if self.phase == 1 and hand[2] < thing[2] + NEAR:
            self.phase = 2
        # Off the line through object and goal, a push would turn the object away: go back behind it.
        beside = (hand - thing) - np.dot(hand - thing, away) * away
        if self.phase == 2 and np.linalg.norm(beside[:2]) > 2 * NEAR:
            self.phase = 0
        over = behind + (0, 0, ABOVE + 0.04)
        return (over, behind, thing + 0.5 * way)[self.phase], -1.0


class PickAndPlace(FetchScript):
    """Go over the object, down, close the fingers, and carry it to the goal."""

    def plan(self, hand: Any, thing: Any, goal: Any) -> tuple[Any, float]:
        if self.phase > 0 and np.linalg.norm(hand - thing) > 2 * ABOVE:
            self.phase = 0  # lost
        if self.phase == 0 and np.linalg.norm((hand - thing)[:2]) < NEAR:
            self.phase = 1
        if self.phase == 1 and np.linalg.norm(hand - thing) < NEAR:
            self.phase, self.wait = 2, 4
        if self.phase == 2:
            self.wait -= 1
            if self.wait < 0:
                self.phase = 3
        over = thing + (0, 0, ABOVE)
        return (over, thing, thing, goal)[self.phase], 1.0 if self.phase < 2 else -1.0
