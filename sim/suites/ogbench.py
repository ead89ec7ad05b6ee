"""OGBench's manipulation tasks (Park et al. 2024, arXiv 2410.20092), demonstrated by the suite's plan oracles.

An oracle moves one part of the scene (cube, button, drawer or window) to a target. The expert chooses the next part: a
part that the task still needs, or with skill PLAY a random part, as in the suite's own datasets.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import ogbench.manipspace  # noqa: F401 - registers
from ogbench.manipspace.envs.manipspace_env import ManipSpaceEnv
from ogbench.manipspace.oracles.plan.button_plan import ButtonPlanOracle
from ogbench.manipspace.oracles.plan.cube_plan import CubePlanOracle
from ogbench.manipspace.oracles.plan.drawer_plan import DrawerPlanOracle
from ogbench.manipspace.oracles.plan.window_plan import WindowPlanOracle

Info = dict[str, Any]
SIZE: dict[str, Any] = {"height": 480, "width": 480}
"""Size of rendered frames, pixels."""
NOISE = {"CLUMSY": 0.1, "STEADY": 0.0, "PLAY": 0.1}
"""Noise of an oracle's plan, as a fraction of the action range; 0.1 is the suite's default."""
ORACLES = {"cube": CubePlanOracle, "button": ButtonPlanOracle, "drawer": DrawerPlanOracle, "window": WindowPlanOracle}
REACHED = 0.035
"""Distance from the target at which a part counts as moved, m; the suite's own test of success has 0.04 m."""
SLIDES = {"drawer": (0.0, -0.16), "window": (0.0, 0.2)}
"""Closed and open positions of sliding parts, m. Button 0 locks the drawer, button 1 the window."""


class ScriptedOGBench(gym.Wrapper):
    """Single-task environment with a demonstrator; an episode ends when the goal is reached."""

    success_terminates = True
    skills = tuple(NOISE)
    metadata = {"render_fps": 20}  # noqa: RUF012 - missing in the suite

    def demonstrator(self, skill: str) -> Expert:
        """Return an expert of this skill for this environment."""
        return Expert(self.env.unwrapped, NOISE[skill], skill == "PLAY")


def make(name: str, **options: Any) -> gym.Env[Any, Any]:
    """Make an environment, with a demonstrator if it is a single manipulation task. `options` are ignored."""
    env = gym.make(name, **SIZE)
    single = isinstance(env.unwrapped, ManipSpaceEnv) and env.unwrapped._reward_task_id is not None
    return ScriptedOGBench(env) if single else env


class Expert:
    """Demonstrator that runs a sequence of oracles; each oracle plans from the final state of the previous oracle."""

    def __init__(self, env: Any, noise: float, play: bool):
        self.env, self.play = env, play
        self.parts = {name: cls(env=env, noise=noise) for name, cls in ORACLES.items() if name != "button"} | {
            "button": ButtonPlanOracle(env=env, noise=noise, gripper_always_closed=hasattr(env, "_num_rows"))
        }
        self.oracle: Any = None

    def begin(self, observation: np.ndarray, info: Info) -> None:
        """Begin an episode."""
        self.oracle = None

    def act(self, observation: np.ndarray, info: Info) -> np.ndarray:
        """Return an action (5,) in [-1, 1]: changes of the hand's x, y, z and yaw, and of the gripper."""
        if self.oracle is None or self.oracle.done:
            part, target = self._next(info)
            self.oracle = self.parts[part]
            self.oracle.reset(observation, info | target)
        action: np.ndarray = self.oracle.select_action(observation, info)
        return np.clip(action, -1, 1)

    def _next(self, info: Info) -> tuple[str, Info]:
        """Return the next part to move, and the infos from which its oracle reads the target."""
        if hasattr(self.env, "_num_rows"):
            return self._puzzle()
        return self._scene(info) if hasattr(self.env, "_drawer_site_id") else self._cubes(info)

    def _puzzle(self) -> tuple[str, Info]:
        env = self.env
        wrong = presses(env._cur_button_states != env._target_button_states, env._num_rows, env._num_cols)
        return self._press(np.arange(env._num_buttons) if self.play else np.flatnonzero(wrong))

    def _press(self, buttons: Any) -> tuple[str, Info]:
        """Press the first of `buttons`, since policies can learn a fixed order. In play, press a random one of them.
        If `buttons` is empty, press a random button of the scene."""
        if self.play or not len(buttons):
            chosen = np.random.choice(buttons if len(buttons) else self.env._num_buttons)
        else:
            chosen = buttons[0]
        return "button", {"privileged/target_button_top_pos": self.env._data.site_xpos[
            self.env._button_site_ids[chosen]].copy()}  # fmt: skip

    def _cubes(self, info: Info) -> tuple[str, Info]:
        """Move the cube with the lowest free goal; if all goals are occupied, move a cube out of the way."""
        at, goals = self._places(info)
        tops = [i for i, p in enumerate(at) if not any(beside(p, q) and q[2] > p[2] for q in at)]
        if self.play:
            chosen, below = np.random.choice(tops), np.random.choice(tops)
            stacks = chosen != below and np.random.uniform() < 0.5
            place = at[below] + [0, 0, 0.04] if stacks else self._spot()
            return self._carry(chosen, place, np.random.uniform(0, 2 * np.pi))
        away = [i for i in tops if np.linalg.norm(at[i] - goals[i]) > REACHED]
        occupied = [any(beside(goals[i], p) and p[2] > goals[i][2] - 0.02 for j, p in enumerate(at) if j != i)
                 for i in range(len(at))]  # fmt: skip
        for i in sorted(away, key=lambda i: goals[i][2]):
            if not occupied[i]:
                return self._carry(i, goals[i])
        chosen = away[0] if away else tops[0]
        around = np.concatenate([at, goals])
        spots = [self._spot() for _ in range(50)]
        return self._carry(chosen, max(spots, key=lambda s: np.linalg.norm(around - s, axis=1).min()))

    def _scene(self, info: Info) -> tuple[str, Info]:
        """Move the parts in an order that the locks allow: the cube while the drawer is open, and the buttons last."""
        env, (at, goals) = self.env, self._places(info)
        state = {part: env._data.joint(f"{part}_slide").qpos[0] for part in SLIDES}
        inside = env._is_in_drawer(at[0])
        if self.play:
            return self._scene_play(state, inside)
        stored = goals[0][1] < -0.2
        placed = inside if stored else np.linalg.norm(at[0] - goals[0]) <= REACHED
        wanted = {"drawer": env._target_drawer_pos if placed or not stored else SLIDES["drawer"][1]}
        if abs(state["drawer"] - wanted["drawer"]) > REACHED:
            return self._slide(info, "drawer", wanted["drawer"])
        if not placed:
            return self._carry(0, env._drawer_center if stored else goals[0])
        if abs(state["window"] - env._target_window_pos) > REACHED:
            return self._slide(info, "window", env._target_window_pos)
        return self._press(np.flatnonzero(env._cur_button_states != env._target_button_states))

    def _scene_play(self, state: dict[str, float], inside: bool) -> tuple[str, Info]:
        """Sample a part and a target with the probabilities of the suite's datasets."""
        env, info = self.env, self.env.compute_ob_info()
        weights = np.array([0.0 if inside else 1.0, 1.0, *(1.0 if s else 0.25 for s in env._cur_button_states)])
        part = np.random.choice(["cube", "button", *SLIDES], p=weights / weights.sum())
        if part == "button":
            return self._press([])
        if part == "cube":
            store = state["drawer"] < -0.12 and np.random.uniform() < 0.3
            place = env._drawer_center if store else self._spot()
            return self._carry(0, place, np.random.uniform(0, 2 * np.pi))
        shut, wide = SLIDES[part]
        return self._handle(info, part, wide if abs(state[part] - shut) < abs(state[part] - wide) else shut)

    def _slide(self, info: Info, part: str, target: float) -> tuple[str, Info]:
        """Slide the drawer or window; if it is locked, press the button of its lock instead."""
        lock = list(SLIDES).index(part)
        return self._handle(info, part, target) if self.env._cur_button_states[lock] else self._press([lock])

    def _handle(self, info: Info, part: str, target: float) -> tuple[str, Info]:
        joint = self.env._model.joint(f"{part}_slide").id
        change = target - self.env._data.joint(f"{part}_slide").qpos[0]
        place = info[f"privileged/{part}_handle_pos"] + change * self.env._data.xaxis[joint]
        return part, {f"privileged/target_{part}_handle_pos": place}

    def _carry(self, cube: int, place: Any, yaw: float = 0.0) -> tuple[str, Info]:
        keys = {"": cube, "_pos": np.array(place), "_yaw": np.array([yaw])}
        return "cube", {f"privileged/target_block{key}": value for key, value in keys.items()}

    def _spot(self) -> np.ndarray:
        """Return a random position (3,) on the table, m."""
        return np.array([*np.random.uniform(*self.env._target_sampling_bounds), 0.02])

    def _places(self, info: Info) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and goals of the cubes, (cubes, 3) each, m."""
        ids = self.env._cube_target_mocap_ids
        at = np.stack([info[f"privileged/block_{i}_pos"] for i in range(len(ids))])
        return at, self.env._data.mocap_pos[ids].copy()


def beside(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two different positions (3,), m, are in the same stack of cubes."""
    return bool(np.any(one != other) and np.linalg.norm((one - other)[:2]) < 0.03)


def presses(wrong: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Solve Lights Out by Gaussian elimination modulo 2: a press toggles a button and its neighbours. Return the
    buttons to press, bool (rows * columns,), to toggle the buttons `wrong`; one of several solutions."""
    n = rows * columns
    x, y = np.divmod(np.arange(n), columns)
    table = np.abs(x[:, None] - x) + np.abs(y[:, None] - y) <= 1
    table = np.concatenate([table, np.asarray(wrong, bool)[:, None]], 1)
    pivots: list[int] = []
    for column in range(n):
        row = len(pivots)
        candidates = row + np.flatnonzero(table[row:, column])
        if len(candidates):
            table[[row, candidates[0]]] = table[[candidates[0], row]]
            others = np.flatnonzero(table[:, column])
            table[others[others != row]] ^= table[row]
            pivots.append(column)
    result = np.zeros(n, bool)
    result[pivots] = table[: len(pivots), n]
    return result
