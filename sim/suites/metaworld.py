"""Meta-World's 50 tasks (Yu et al. 2020, arXiv 1910.10897), demonstrated by the suite's scripted policies.

`metaworld:pick-place-v3` is a single task. Goal and objects are observed and sampled for every episode. An episode ends
at the first success, as the suite counts success, or after 500 steps.

`metaworld:mt10` and `metaworld:mt50` combine 10 or all 50 tasks in one environment. The policy observes a camera image,
the state of the hand and an instruction that names the task.
"""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from metaworld.env_dict import ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE as TASKS
from metaworld.env_dict import MT10_V3
from metaworld.policies import ENV_POLICY_MAP

NOISE = {"CLUMSY": 0.3, "STEADY": 0.0}
"""Standard deviation of the action noise of a scripted policy, in units of the largest action."""
INSTRUCTIONS = {
    "assembly": "put the ring onto the peg", "basketball": "put the ball into the basket",
    "bin-picking": "carry the block into the other bin", "box-close": "put the lid onto the box",
    "button-press": "press the button from the front", "button-press-topdown": "press the button from above",
    "button-press-topdown-wall": "press the button from above behind the wall",
    "button-press-wall": "press the button from the front behind the wall",
    "coffee-button": "press the button of the coffee machine",
    "coffee-pull": "pull the mug away from the coffee machine", "coffee-push": "push the mug under the coffee machine",
    "dial-turn": "turn the dial", "disassemble": "take the ring off the peg",
    "door-close": "close the door", "door-lock": "lock the door",
    "door-open": "open the door", "door-unlock": "unlock the door",
    "drawer-close": "close the drawer", "drawer-open": "open the drawer",
    "faucet-close": "turn the faucet off", "faucet-open": "turn the faucet on",
    "hammer": "drive the nail in with the hammer", "hand-insert": "put the hand into the hole",
    "handle-press": "press the handle down from the front", "handle-press-side": "press the handle down from the side",
    "handle-pull": "pull the handle up from the front", "handle-pull-side": "pull the handle up from the side",
    "lever-pull": "pull the lever", "peg-insert-side": "put the peg into the hole from the side",
    "peg-unplug-side": "pull the peg out of the hole to the side", "pick-out-of-hole": "lift the puck out of the hole",
    "pick-place": "carry the puck to the blue dot", "pick-place-wall": "carry the puck over the wall to the dot",
    "plate-slide": "slide the plate into the cabinet", "plate-slide-back": "slide the plate out of the cabinet",
    "plate-slide-back-side": "slide the plate out of the cabinet sideways",
    "plate-slide-side": "slide the plate into the cabinet sideways", "push": "push the puck to the green dot",
    "push-back": "push the puck back to the green dot", "push-wall": "push the puck around the wall to the dot",
    "reach": "move the hand to the red dot", "reach-wall": "move the hand over the wall to the red dot",
    "shelf-place": "put the puck onto the shelf", "soccer": "kick the ball into the goal",
    "stick-pull": "pull the thermos with the stick", "stick-push": "push the thermos with the stick",
    "sweep": "sweep the puck off the table", "sweep-into": "sweep the puck into the hole",
    "window-close": "close the window", "window-open": "open the window",
}  # fmt: skip
"""Instruction of each task."""
SETS = {"mt10": tuple(MT10_V3), "mt50": tuple(f"{name}-v3" for name in INSTRUCTIONS)}
STEPS = 500
"""Maximum number of steps of an episode; the suite itself truncates an episode at this length."""
SIDE = 96
"""Height and width of an image, pixels."""
CAMERA_POSITION, CAMERA_TARGET, FOVY = (0.75, 0.075, 0.7), (0.0, 0.68, 0.12), 45.0
"""Position of the camera and of the point in the picture's centre, m, and field of view, degrees. LeRobot evaluates
policies on this suite from the same position, also with upright pictures, but with 60 degrees and 480 pixels."""
ARM = ("right_", "head", "pedestal", "torso", "controller", "screen")
"""Prefixes of the names of the arm's bodies, without the fingers."""


def make(name: str, **options: Any) -> gym.Env[Any, Any]:
    """Make the environment of one task or set of tasks; options such as `render_mode` go to the suite."""
    if name in SETS:
        return MultiTaskEnv(SETS[name])
    if f"{name}-goal-observable" not in TASKS:
        known = ", ".join([*SETS, *sorted(key.removesuffix("-goal-observable") for key in TASKS)])
        raise gym.error.NameNotFound(f"Meta-World has no task {name!r}; it has {known}")
    return ScriptedMetaWorld(name, **options)


class ScriptedMetaWorld(gym.Wrapper):
    """Environment of a single task; an episode depends on the seed of its reset and ends at success."""

    success_terminates, max_episode_steps = True, STEPS
    skills = tuple(NOISE)

    def __init__(self, name: str, **options: Any):
        self.suite: Any = TASKS[f"{name}-goal-observable"](**options)
        if options:
            self.suite.mujoco_renderer.camera_id = self.suite.model.camera("corner").id
        self.suite._freeze_rand_vec = False  # otherwise all episodes have the goal of the first one
        self.suite.seeded_rand_vec = True
        super().__init__(self.suite)
        self.name = name

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode with `seed`, which the suite's own `reset` ignores."""
        if seed is not None:
            self.suite.seed(seed)
        return self.env.reset()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Act; success ends the episode."""
        observation, reward, _, truncated, info = self.env.step(action)
        return observation, reward, bool(info["success"]), truncated, info

    def render(self) -> Any:
        """Render an image (480, 480, 3) uint8, rotated by 180 degrees, since the suite's camera is upside down."""
        return np.asarray(self.env.render())[::-1, ::-1]

    def demonstrator(self, skill: str) -> MetaWorldScript:
        """Return the task's scripted policy."""
        return MetaWorldScript({self.name: ENV_POLICY_MAP[self.name]()}, NOISE[skill])


class MetaWorldScript:
    """Demonstrator from the scripted policies of one or several tasks, with action noise."""

    def __init__(self, policies: dict[str, Any], noise: float):
        self.policies, self.noise = policies, noise

    def begin(self, observation: np.ndarray, info: dict[str, Any]) -> None:
        """Do nothing: the scripts have no state."""

    def act(self, observation: np.ndarray, info: dict[str, Any]) -> np.ndarray:
        """Return an action (4,) in [-1, 1]: hand x, y, z, and the gripper."""
        name, true = info.get("true", (next(iter(self.policies)), observation))
        action = np.clip(self.policies[name].get_action(true), -1, 1)
        return np.clip(action + self.noise * np.random.randn(len(action)), -1, 1)


class MultiTaskEnv(gym.Env[Any, Any]):
    """Several tasks in one environment, selected by instruction.

    An observation is the hand's position, m, the hand's opening, 0 to 1, and a camera image on request. `info["true"]`
    is the current task's name and full observation, for the task's scripted policy.
    """

    success_terminates, max_episode_steps = True, STEPS
    skills = tuple(NOISE)
    pictures = {"corner": (SIDE, SIDE)}  # noqa: RUF012
    metadata = {"render_fps": 80}  # noqa: RUF012
    idle: dict[str, list[RenderedTask]] = {}  # noqa: RUF012
    """Unused environments by task name, shared by all copies: making an environment takes 1 s and 100 MB."""

    def __init__(self, names: tuple[str, ...]):
        self.names = names
        self.instructions = tuple(INSTRUCTIONS[name.removesuffix("-v3")] for name in names)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (4,))
        self.action_space = gym.spaces.Box(-1.0, 1.0, (4,))
        self.running: RenderedTask | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of the task at index `options["instruction"]`, by default 0."""
        super().reset(seed=seed)
        if self.running is not None:
            self.idle.setdefault(self.running.task.name, []).append(self.running)
        name = self.names[(options or {}).get("instruction", 0)]
        waiting = self.idle.get(name)
        self.running = waiting.pop() if waiting else RenderedTask(ScriptedMetaWorld(name))
        return self._own(self.running.task.reset(seed=int(self.np_random.integers(2**31)))[0], {})

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Act; success ends the episode."""
        assert self.running is not None
        true, reward, terminated, truncated, info = self.running.task.step(action)
        return *self._own(true, info)[:1], reward, terminated, truncated, info

    def _own(self, true: np.ndarray, info: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
        """Return the policy's part (4,) of a full observation, and infos with the full observation for the script."""
        assert self.running is not None
        info["true"] = self.running.task.name, true
        return true[:4].astype(np.float32), info

    def picture(self, name: str) -> np.ndarray:
        """Render an image (SIDE, SIDE, 3) uint8."""
        assert self.running is not None
        return self.running.draw()

    def render(self) -> np.ndarray:
        """Render the policy's camera image."""
        return self.picture("corner")

    def demonstrator(self, skill: str) -> MetaWorldScript:
        """Return the scripted policies of all tasks."""
        return MetaWorldScript({name: ENV_POLICY_MAP[name]() for name in self.names}, NOISE[skill])


class RenderedTask:
    """Task with a camera that draws the arm by its collision geoms, ten times as fast as by its meshes."""

    def __init__(self, task: ScriptedMetaWorld):
        self.task, model = task, task.suite.model
        model.vis.quality.offsamples = model.vis.quality.shadowsize = 0
        model.vis.global_.offheight = model.vis.global_.offwidth = SIDE
        for geom in range(model.ngeom):
            if model.body(model.geom_bodyid[geom]).name.startswith(ARM):
                if model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_MESH:
                    model.geom_group[geom] = 5  # not drawn
                else:
                    model.geom_rgba[geom], model.geom_matid[geom] = (0.5, 0.1, 0.1, 1), -1
        self.camera = model.camera("corner2").id
        model.cam_pos[self.camera], model.cam_fovy[self.camera] = CAMERA_POSITION, FOVY
        back = np.subtract(CAMERA_POSITION, CAMERA_TARGET) / np.linalg.norm(np.subtract(CAMERA_POSITION, CAMERA_TARGET))
        right = np.cross((0, 0, 1), back) / np.linalg.norm(np.cross((0, 0, 1), back))
        axes = np.stack([right, np.cross(back, right), back], 1)
        mujoco.mju_mat2Quat(model.cam_quat[self.camera], axes.ravel())
        self.renderer: mujoco.Renderer | None = None

    def draw(self) -> np.ndarray:
        """Render an image (SIDE, SIDE, 3) uint8."""
        if self.renderer is None:
            try:
                self.renderer = mujoco.Renderer(self.task.suite.model, SIDE, SIDE)
            except Exception as error:  # the GL stack may raise anything
                backend = os.environ.get("MUJOCO_GL", "glfw")
                raise RuntimeError(
                    f"cannot draw pictures with MUJOCO_GL={backend} ({error}); install EGL (Debian: apt-get install "
                    "libegl1 libgl1 libopengl0 libgl1-mesa-dri)"
                ) from None
            for flag in ("SHADOW", "REFLECTION", "SKYBOX"):
                self.renderer.scene.flags[getattr(mujoco.mjtRndFlag, f"mjRND_{flag}")] = False
        self.renderer.update_scene(self.task.suite.data, camera=self.camera)
        return self.renderer.render()
