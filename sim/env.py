"""A task as a vector environment: torch tensors, same-step autoreset, per-episode randomization."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from robot_rl.errors import UnknownName, UserError
from robot_rl.interface import Pipeline
from robot_rl.kinematics import matrix_to_quat
from robot_rl.shield import ramp
from robot_rl.state import RobotState
from sim.engines import engines
from sim.engines.base import Engine
from sim.randomization import episode_rng
from sim.sensors import PARAMETERS as SENSOR_PARAMETERS
from sim.sensors import SensorModel
from sim.tasks import tasks
from sim.tasks.base import Task

# Uniform numbers of an episode beyond the task's parameters: home offset of each joint, bias direction.
_EXTRA = 16


class TaskEnv(VectorEnv):
    """n copies of a task.

    Actions are (n, A) in [-1, 1]; observations a dict with "observation.state" (n, D) and the privileged
    "observation.environment_state" (n, P). Rewards are 1 on success and 0 otherwise; success terminates, the horizon
    truncates. A finished environment is reset in the same step: its last observation is in infos["final_obs"] at the
    rows of infos["_final_obs"].

    Episode e of environment i is drawn from (seed + i, e) alone, so results do not depend on num_envs or threads.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self,
        task: Task | str,
        num_envs: int = 1,
        *,
        engine: str = "mujoco",
        seed: int = 0,
        threads: int = 0,
        mjcf: str = "",
        device: str = "auto",
        randomize: bool = True,
        without: Sequence[str] = (),
    ):
        """`without` names parameters that are not randomized; the others are drawn as if they were."""
        self.task: Task = tasks.get(task) if isinstance(task, str) else task
        interface = self.task.interface
        self.pipeline = Pipeline(interface)
        self.robot = self.pipeline.robot
        self.num_envs = num_envs
        declared = {r.parameter: k for k, r in enumerate(self.task.randomization)}
        for name in without:
            if name not in declared:
                raise UnknownName(f"parameter of task {self.task.name!r} to go without:", name, declared)
        self._columns = [k for name, k in declared.items() if randomize and name not in without]
        """Which of an episode's uniform numbers draw the parameters of `randomization`."""
        self.randomization = tuple(self.task.randomization[k] for k in self._columns)
        kind: type[Engine] = engines.get(engine)
        self._refuse_unsupported(engine, kind.can_randomize(self.task.scene))
        self.engine = kind(self.robot, self.task.scene, num_envs, threads, mjcf, device)  # type: ignore[call-arg]
        self.simulation = {"engine": engine, "device": self.engine.device.type, "without": list(without)}
        """What differs between two simulations of the task; belongs beside every figure measured in one."""
        self.sensors = SensorModel(self.robot, num_envs, 1 / interface.controller.rate)
        actions, size = self.pipeline.actions.size, self.pipeline.observer.spec.size
        self.privileged_size = 7 * len(self.task.scene.boxes) + len(self.randomization)
        self.single_action_space = gym.spaces.Box(-1.0, 1.0, (actions,), np.float32)
        self.single_observation_space = gym.spaces.Dict(
            {
                "observation.state": gym.spaces.Box(-np.inf, np.inf, (size,), np.float32),
                "observation.environment_state": gym.spaces.Box(-np.inf, np.inf, (self.privileged_size,), np.float32),
            }
        )
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.seed = seed
        self._episode = np.zeros(num_envs, np.int64)
        width = len(self.robot.joints) + 3 * len(self.task.scene.boxes)
        self.normals = torch.zeros(num_envs, interface.horizon + 1, width)
        """Sensor noise of the running episodes, drawn at their start from (seed + i, e)."""
        self.drawn = np.zeros((num_envs, len(self.randomization)))
        """Randomized values of the running episodes, in the order of `randomization`."""
        joints = len(self.robot.joints)
        self.goal, self.command, self.velocity = (torch.zeros(num_envs, joints) for _ in range(3))
        self.last_action = torch.zeros(num_envs, actions)
        self.steps, self.held = torch.zeros(num_envs, dtype=torch.long), torch.zeros(num_envs, dtype=torch.long)
        self.shield_events = {"nonfinite": 0, "position": 0, "workspace": 0}
        self.divergences = 0

    def _refuse_unsupported(self, engine: str, parameters: set[str]) -> None:
        boxes = [b.name for b in self.task.scene.boxes]
        places = {f"{b}.{c}" for b in boxes for c in ("x", "y", "yaw")} | {"robot.home_offset"}
        known = parameters | set(SENSOR_PARAMETERS) | places
        unknown = [r.parameter for r in self.randomization if r.parameter not in known]
        if unknown:
            raise UserError(
                f"engine {engine!r} cannot randomize {', '.join(unknown)}; it can: {', '.join(sorted(known))}; "
                f"to keep them at their nominal values, add --without {' '.join(unknown)}"
            )

    # ---- gymnasium ---------------------------------------------------------------------------------------------
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Start new episodes everywhere; with a seed, episode 0 of environment i is that of seed + i."""
        if seed is not None:
            self.seed = seed
            self._episode[:] = 0
        self._begin(np.arange(self.num_envs))
        true = self._true_state()
        self.sensors.reset(torch.arange(self.num_envs), true, self._bias_direction)
        self.state = self.sensors.measure(true, self.normals[:, 0])
        self.goal = self.command = self.state.joint_position
        self.velocity = torch.zeros_like(self.goal)
        return self._observe(true), {}

    def step(self, actions: Tensor | np.ndarray) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Act for one control period; see the class for what comes back."""
        actions = torch.as_tensor(actions, dtype=torch.float32)
        valid = actions.isfinite().all(-1, keepdim=True)
        actions = torch.where(valid, actions, self.last_action).clamp(-1, 1)
        self.shield_events["nonfinite"] += int((~valid).sum())
        self._move(actions)
        self.last_action = actions
        self.steps += 1
        true = self._true_state()
        broken = torch.from_numpy(self.engine.diverged())
        self.held = torch.where(self.pipeline.success(true) & ~broken, self.held + 1, 0)
        success = self.held >= self.task.interface.success_hold
        truncated = ((self.steps >= self.task.interface.horizon) & ~success) | broken
        self.divergences += int(broken.sum())
        self.state = self.sensors.measure(true, self._normals_now())
        observation = self._observe(true)
        done = success | truncated
        infos: dict[str, Any] = {"success": success, "episode_steps": self.steps.clone()}
        if done.any():
            infos["final_obs"], infos["_final_obs"] = observation, done
            observation = self._restart(done)
        return observation, success.float(), success, truncated, infos

    def render(self) -> tuple[np.ndarray, ...]:
        """One 480x640 picture of each environment, from the task's first camera."""
        camera = self.task.scene.cameras[0].name
        return tuple(self.engine.render(i, camera, 480, 640, "high") for i in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Let go of the engine; gymnasium calls this once, from `close`."""
        self.engine.close()

    # ---- one control period ------------------------------------------------------------------------------------
    def _move(self, actions: Tensor) -> None:
        pipeline = self.pipeline
        target = pipeline.controller(self.state, pipeline.actions.to_physical(actions))
        goal, events = pipeline.shield.admit(target.position, self.goal)
        for reason, mask in events.items():
            self.shield_events[reason] += int(mask.sum())
        way, step = ramp(self.goal, goal, pipeline.ticks)
        commands = torch.empty(self.num_envs, pipeline.ticks, goal.shape[1])
        for k in range(pipeline.ticks):
            self.command, self.velocity = pipeline.shield.follow(
                self.command, self.velocity, way[k], step / pipeline.tick, pipeline.tick
            )
            commands[:, k] = self.command
        self.engine.step(commands, target.gripper[:, None].expand(-1, pipeline.ticks, -1))
        self.goal = goal

    def _normals_now(self) -> Tensor:
        return self.normals[torch.arange(self.num_envs), self.steps]

    def _true_state(self) -> RobotState:
        q, v = self.engine.joint_state()
        position, rotation = self.pipeline.controller.kinematics.forward(q)
        objects = {box.name: self.engine.object_pose(box.name) for box in self.task.scene.boxes}
        return RobotState(
            q, v, position, matrix_to_quat(rotation), self.engine.gripper_width(), self.last_action, objects
        )

    def _observe(self, true: RobotState) -> dict[str, Tensor]:
        privileged = [*true.objects.values(), torch.from_numpy(self.drawn).float()]
        return {
            "observation.state": self.pipeline.observer(self.state),
            "observation.environment_state": torch.cat(privileged, -1),
        }

    # ---- episodes ----------------------------------------------------------------------------------------------
    def _begin(self, ids: np.ndarray) -> None:
        """Draw and place the next episodes of environments `ids`."""
        count = len(self.task.randomization)
        rngs = [episode_rng(self.seed + int(i), int(self._episode[i])) for i in ids]
        u = np.stack([rng.random(count + _EXTRA) for rng in rngs])
        noise = np.stack([rng.standard_normal(self.normals.shape[1:], np.float32) for rng in rngs])
        self.normals[ids] = torch.from_numpy(noise)
        self._episode[ids] += 1
        values = {}
        for k, (column, r) in enumerate(zip(self._columns, self.randomization, strict=True)):
            values[r.parameter] = self.drawn[ids, k] = r.quantile(u[:, column])
        zero = np.zeros(len(ids))
        for name, value in values.items():
            if name in self.engine.parameters:
                self.engine.parameters[name](ids, value)
            elif name in SENSOR_PARAMETERS:
                self.sensors.set(name, ids, value)
        joints = len(self.robot.joints)
        offset = values.get("robot.home_offset", zero)[:, None] * (2 * u[:, count : count + joints] - 1)
        self._bias_direction = torch.from_numpy(2 * u[:, -3:] - 1).float()
        objects = {}
        for box in self.task.scene.boxes:
            pose = np.zeros((len(ids), 7))
            pose[:, 0] = values.get(f"{box.name}.x", zero + 0.5)
            pose[:, 1] = values.get(f"{box.name}.y", zero)
            pose[:, 2] = values.get(f"{box.name}.size", zero + box.size)
            yaw = values.get(f"{box.name}.yaw", zero)
            pose[:, 3], pose[:, 6] = np.cos(yaw / 2), np.sin(yaw / 2)
            objects[box.name] = pose
        self.engine.reset(ids, np.asarray(self.robot.home) + offset, objects)
        self.steps[ids], self.held[ids], self.last_action[ids] = 0, 0, 0.0

    def _restart(self, done: Tensor) -> dict[str, Tensor]:
        ids = done.nonzero().squeeze(-1)
        before = self.state
        self.last_action = self.last_action.clone()
        self._begin(ids.numpy())
        true = self._true_state()
        self.sensors.reset(ids, true, self._bias_direction)
        keep = dict(self.sensors.previous)
        fresh = self.sensors.measure(true, self._normals_now())
        for name, pose in keep.items():  # measuring again must not advance the delay lines of running episodes
            self.sensors.previous[name] = pose
        merged = {
            k: torch.where(done[:, None], getattr(fresh, k), getattr(before, k))
            for k in ("joint_position", "joint_velocity", "tool_position", "tool_quat", "gripper_width", "last_action")
        }
        objects = {k: torch.where(done[:, None], fresh.objects[k], v) for k, v in before.objects.items()}
        self.state = RobotState(**merged, objects=objects)
        start = self.state.joint_position
        self.goal = torch.where(done[:, None], start, self.goal)
        self.command = torch.where(done[:, None], start, self.command)
        self.velocity = torch.where(done[:, None], 0.0, self.velocity)
        return self._observe(true)

    # ---- resume ------------------------------------------------------------------------------------------------
    _TENSORS = ("goal", "command", "velocity", "last_action", "steps", "held")

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs to go on with the same floats; a copy."""
        views = vars(self.state) | {"objects": dict(self.state.objects)}
        live = {
            "seed": self.seed,
            "episode": self._episode.copy(),
            "drawn": self.drawn.copy(),
            "normals": self.normals,
            "engine": self.engine.state_dict(),
            "state": views,
            "sensors": {"values": self.sensors.values, "bias": self.sensors.bias, "previous": self.sensors.previous},
            "tensors": {name: getattr(self, name) for name in self._TENSORS},
            "shield_events": dict(self.shield_events),
            "divergences": self.divergences,
        }
        return copy.deepcopy(live)

    def load_state_dict(self, state: dict[str, Any]) -> dict[str, Tensor]:
        """Restore `state_dict` and return the observation that belongs to it."""
        state = copy.deepcopy(state)
        self.seed, self.divergences = state["seed"], state["divergences"]
        self._episode[:], self.drawn[:] = state["episode"], state["drawn"]
        self.normals = state["normals"]
        self.engine.load_state_dict(state["engine"])
        self.state = RobotState(**state["state"])
        self.sensors.values, self.sensors.bias = state["sensors"]["values"], state["sensors"]["bias"]
        self.sensors.previous = state["sensors"]["previous"]
        for name in self._TENSORS:
            setattr(self, name, state["tensors"][name])
        self.shield_events.update(state["shield_events"])
        return self._observe(self._true_state())

    def episode_record(self, index: int) -> dict[str, float]:
        """What randomization drew for the running episode of one environment."""
        return {
            f"randomization/{r.parameter}": float(v) for r, v in zip(self.randomization, self.drawn[index], strict=True)
        }
