"""A task as a vector environment: torch tensors, same-step autoreset, per-episode randomization."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from robot_rl.errors import Misfit, UnknownName, nearest
from robot_rl.interface import Pipeline
from robot_rl.observations import Observer
from robot_rl.robots import robots
from robot_rl.shield import ramp
from robot_rl.state import RobotState
from sim.commands import PURPOSE as COMMAND
from sim.divergence import Recorder, quiet
from sim.engines import engines
from sim.engines.base import DEVICES, Engine
from sim.feet import FootTracker
from sim.nursery import Nursery, Start
from sim.randomization import episode_rng, quantiles
from sim.randomization.checks import check_randomization
from sim.randomization.noise import episode_keys, normals, uniforms
from sim.rewards import Moment, total
from sim.scenes import time_grid
from sim.sensors import PARAMETERS as SENSOR_PARAMETERS
from sim.sensors import SensorModel, can_randomize
from sim.tasks import tasks
from sim.tasks.base import PLACE, Task

_ALL = slice(None)
_NOISE, _COMMAND, _PUSH = 0, COMMAND, 2
"""What an episode draws while it runs, each with a key of its own."""


@contextmanager
def _one_thread() -> Iterator[None]:
    """Tensors of a thousand rows are too short to share between threads.

    Whoever waits for a second thread waits long where other processes want the cores: steps took ten times as long
    beside one.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def nominal(task: Task, engine: str) -> list[str]:
    """The task's optional parameters that an engine keeps at their nominal values, because it cannot change them."""
    kind: type[Engine] = engines.get(engine)
    optional = {r.parameter for r in task.randomization if r.optional}
    robot = robots.get(task.interface.robot)
    able, every = (of.can_randomize(robot, task.scene) for of in (kind, Engine))
    return sorted(optional & every - able)


class TaskEnv(VectorEnv):
    """n copies of a task.

    Actions are (n, A) in [-1, 1]; observations a dict with "observation.state" (n, D) and the privileged
    "observation.environment_state" (n, P). Rewards are the task's, or 1 on success and 0 otherwise; success and failure
    terminate, the horizon truncates. A finished environment is reset in the same step: its last observation is in
    infos["final_obs"] at the rows of infos["_final_obs"].

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
        diverged: Path | None = None,
    ):
        """`without` names parameters that are not randomized; the others are drawn as if they were. `diverged` is the
        folder in which episodes whose physics diverge are kept for `sim.divergence.replay`; None keeps none.
        """
        self.task: Task = tasks.get(task) if isinstance(task, str) else task
        interface = self.task.interface
        self.pipeline = Pipeline(interface)
        self.robot = self.pipeline.robot
        self.num_envs = num_envs
        declared = {r.parameter: k for k, r in enumerate(self.task.randomization)}
        for name in without:
            if name not in declared:
                raise UnknownName(f"parameter of task {self.task.name!r} to go without:", name, declared)
        kind: type[Engine] = engines.get(engine)
        if device not in DEVICES:  # before an engine refuses it for what it cannot do
            raise UnknownName("device", device, DEVICES)
        without = list(dict.fromkeys([*without, *(nominal(self.task, engine) if randomize else ())]))
        self._columns = [k for name, k in declared.items() if randomize and name not in without]
        """Which of an episode's uniform numbers draw the parameters of `randomization`."""
        self.randomization = tuple(self.task.randomization[k] for k in self._columns)
        self.rate = interface.controller.rate
        self.tick, self.ticks = time_grid(self.task.scene.timestep, self.robot.command_rate, self.rate)
        self._refuse_unsupported(engine, kind.can_randomize(self.robot, self.task.scene))
        check_randomization(self.task.randomization, self.randomization, 1 / self.rate, kind.longest_delay)
        quiet()
        self.engine = kind(self.robot, self.task.scene, num_envs, threads, mjcf, device)  # type: ignore[call-arg]
        self.simulation = {"engine": engine, "device": self.engine.device.type, "without": without}
        """What differs between two simulations of the task; belongs beside every figure measured in one."""
        self.mjcf = str(Path(mjcf).resolve()) if mjcf else ""
        boxes = [box.name for box in self.task.scene.boxes]
        self.sensors = SensorModel(self.robot, boxes, num_envs, 1 / self.rate)
        names = [r.parameter for r in self.randomization]
        self._of_engine = [k for k, n in enumerate(names) if n in self.engine.parameters]
        self._of_sensors = [k for k, n in enumerate(names) if n in SENSOR_PARAMETERS]
        self.feet: FootTracker | None = None
        if base := self.robot.base:
            self.feet = FootTracker(num_envs, len(base.feet), base.foot_radius, 1 / self.rate)
        actions, size = self.pipeline.actions.size, self.pipeline.observer.spec.size
        self.privileged = Observer(self.task.privileged, self.robot, self.pipeline.actions, self.pipeline.command)
        self.privileged_size = 7 * len(boxes) + self.privileged.spec.size + len(self.randomization)
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
        self.episode = np.zeros(num_envs, np.int64)
        """Number of the episode that each environment begins next."""
        self.keys = np.zeros((num_envs, 3), np.uint64)
        """Of what the running episodes draw: noise, commands, pushes."""
        self.drawn = np.zeros((num_envs, len(self.randomization)))
        """Randomized values of the running episodes, in the order of `randomization`."""
        joints = len(self.robot.joints)
        self.goal, self.command, self.velocity = (torch.zeros(num_envs, joints) for _ in range(3))
        self.gripper, self.last_action = torch.zeros(num_envs, 1), torch.zeros(num_envs, actions)
        self.steps, self.held = torch.zeros(num_envs, dtype=torch.long), torch.zeros(num_envs, dtype=torch.long)
        self.push_speed, self.push_every = torch.zeros(num_envs), torch.zeros(num_envs, dtype=torch.long)
        """m/s, and control periods between two pushes."""
        self.shield_events = {"nonfinite": 0, "position": 0, "workspace": 0}
        self.divergences = 0
        """Episodes that ended because their physics blew up."""
        self.recorder = Recorder(self, diverged, mjcf, randomize) if diverged else None

    def _refuse_unsupported(self, engine: str, parameters: set[str]) -> None:
        boxes = [b.name for b in self.task.scene.boxes]
        own = {f"{b}.{c}" for b in boxes for c in PLACE} | {"robot.home_offset"}
        own |= {"push.speed", "push.interval"} if self.robot.base else set()
        known = parameters | can_randomize(self.robot, len(boxes)) | own
        unknown = [r.parameter for r in self.randomization if r.parameter not in known]
        if unknown:
            typos = sorted(set(unknown) - Engine.can_randomize(self.robot, self.task.scene))
            remedy = f"to keep them at their nominal values, add --without {' '.join(unknown)}"
            raise Misfit(
                f"engine {engine!r} cannot randomize {', '.join(unknown)}; it can: {', '.join(sorted(known))}; "
                + (nearest(typos[0], known) if typos else remedy)
            )

    # ---- gymnasium ---------------------------------------------------------------------------------------------
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Start new episodes everywhere; with a seed, episode 0 of environment i is that of seed + i.

        With options {"stagger": True} these begin at different times of their clock, so that they will not all be cut
        off in the same step. With {"episode": e} and a seed, episode e is the first.
        """
        if seed is not None:
            self.seed = seed
            self.episode[:] = (options or {}).get("episode", 0)
        everyone = torch.arange(self.num_envs)
        self._set_up(everyone.numpy())
        if self.recorder:
            self.recorder.begin(everyone.numpy())
        if options and options.get("stagger"):
            share = uniforms(self.keys[:, _PUSH], np.full(self.num_envs, -1), 1)[:, 0]
            self.steps = (share * self.task.interface.horizon).long()
        self.true = self._true_state()
        self.sensors.reset(everyone, self.true, self._directions)
        self.state = self.sensors.measure(self.true, self._noise())
        self.goal = self.command = self.state.joint_position
        self.velocity = torch.zeros_like(self.goal)
        return self._observe(self.true, self.state), {}

    def step(self, actions: Tensor | np.ndarray) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Act for one control period; see the class for what comes back."""
        with _one_thread():
            return self._step(actions)

    def _step(self, actions: Tensor | np.ndarray) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        actions = torch.as_tensor(actions, dtype=torch.float32)
        self._push()
        self.last_action = self._move(actions)
        self.steps += 1
        before, self.true = self.true, self._true_state()
        broken = torch.from_numpy(self.engine.diverged())
        if self.recorder:
            self.recorder.step(actions, broken)
        if broken.any():  # no learner is to see what physics that blew up has left: the last sound state stands in
            ids = broken.nonzero().squeeze(-1)
            self.true = self.true.put(ids, before.select(ids))
        reward, success, terminated, truncated, infos = self._judge(before, broken)
        self.divergences += int(broken.sum())
        self.state = self.sensors.measure(self.true, self._noise())
        observation = self._observe(self.true, self.state)
        done = terminated | truncated
        infos |= {"success": success, "diverged": broken, "episode_steps": self.steps.clone()}
        if done.any():
            infos["final_obs"], infos["_final_obs"] = observation, done
            observation = self._restart(done.nonzero().squeeze(-1), observation)
        return observation, reward, terminated, truncated, infos

    def render(self) -> tuple[np.ndarray, ...]:
        """One 480x640 picture of each environment, from the task's first camera."""
        camera = self.task.scene.cameras[0].name
        return tuple(self.engine.render(i, camera, 480, 640, "high") for i in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Let go of the engine; gymnasium calls this once, from `close`."""
        self.engine.close()

    # ---- one control period ------------------------------------------------------------------------------------
    def _push(self) -> None:
        due = (self.push_every > 0) & (self.steps > 0) & (self.steps % self.push_every.clamp_min(1) == 0)
        ids = due.nonzero().squeeze(-1).numpy()
        if len(ids):
            angle = 2 * np.pi * uniforms(self.keys[ids, _PUSH], self.steps[ids].numpy(), 1).double().numpy()
            way = np.concatenate([np.cos(angle), np.sin(angle), np.zeros_like(angle)], 1)
            self.engine.push(ids, self.push_speed[ids].double().numpy()[:, None] * way)

    def _move(self, actions: Tensor) -> Tensor:
        """Move as far as the shield lets; return what was executed, (n, A) in [-1, 1]."""
        pipeline = self.pipeline
        target = pipeline.target(self.state, actions)
        goal, events = pipeline.shield.admit(target.position, self.goal)
        gripper, executed = target.gripper, actions.clamp(-1, 1)
        if (refused := events["nonfinite"][:, None]).any():  # the goal before stays in force
            gripper = torch.where(refused, self.gripper, gripper)
            executed = torch.where(refused, pipeline.controller.still(self.last_action, gripper), executed)
        for reason, mask in events.items():
            self.shield_events[reason] += int(mask.sum())
        # Robots along the fastest axis: each tick looks for the joint that limits its robot.
        start, end, command, velocity = (x.T.contiguous().T for x in (self.goal, goal, self.command, self.velocity))
        way, step = ramp(start, end, self.ticks)
        commands = torch.empty(self.num_envs, self.ticks, goal.shape[1])
        for k in range(self.ticks):
            at, speed = (end, step) if self.robot.compliant else (way[k], step / self.tick)
            command, velocity = pipeline.shield.follow(command, velocity, at, speed, self.tick)
            commands[:, k] = command
        self.command, self.velocity = command, velocity
        commands -= self.sensors.encoder_offset[:, None]
        self.engine.step(commands, gripper[:, None].expand(-1, self.ticks, -1))
        self.goal, self.gripper = goal, gripper
        return executed

    def _judge(self, before: RobotState, broken: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Reward, success, terminated and truncated (n,) of the control period that began at `before`."""
        pipeline, infos = self.pipeline, {}
        late = self.steps >= self.task.interface.horizon
        failed = pipeline.failure(self.true) & ~broken if pipeline.failure else torch.zeros_like(broken)
        if pipeline.success:
            self.held = torch.where(pipeline.success(self.true) & ~broken, self.held + 1, 0)
            success = (self.held >= self.task.interface.success_hold) & ~failed
            terminated = success | failed
        else:
            success, terminated = late & ~failed & ~broken, failed
        reward = success.float()
        if self.task.rewards or self.task.measures:
            if self.feet is not None:
                self.feet.update(self.true)
            moment = Moment(self.robot, before, self.true, self.feet, 1 / self.rate)
            if self.task.rewards:
                reward, parts = total(self.task.rewards, moment)
                reward = torch.where(broken, 0.0, reward)
                infos["rewards"] = parts
            if self.task.measures:
                infos["metrics"] = self.task.measures(moment)
        return reward, success, terminated, (late | broken) & ~terminated, infos

    def _noise(self, ids: np.ndarray | slice = _ALL) -> Tensor:
        return normals(self.keys[ids, _NOISE], self.steps.numpy()[ids], self.sensors.noises)

    def _true_state(self, ids: np.ndarray | slice = _ALL) -> RobotState:
        steps = self.steps[ids]
        views = {name: view[ids] for name, view in self.engine.views().items()}
        if self.pipeline.kinematics is not None:
            views["tool_position"] = self.pipeline.kinematics.forward(views["joint_position"])[0]
        if self.task.commands is not None:
            views["command"] = self.task.commands(self.pipeline.command, self.keys[ids, _COMMAND], steps, self.rate)
        if self.task.interface.gait:
            views["phase"] = self.pipeline.phase(steps)
        objects = {box.name: self.engine.object_pose(box.name)[ids] for box in self.task.scene.boxes}
        return RobotState(**views, last_action=self.last_action[ids], objects=objects)

    def _observe(self, true: RobotState, seen: RobotState, ids: np.ndarray | slice = _ALL) -> dict[str, Tensor]:
        """Observations of environments `ids`, whose states these are."""
        privileged = [*true.objects.values(), torch.from_numpy(self.drawn[ids]).float()]
        if self.task.privileged:
            privileged.insert(0, self.privileged(true))
        return {
            "observation.state": self.pipeline.observer(seen),
            "observation.environment_state": torch.cat(privileged, -1),
        }

    # ---- episodes ----------------------------------------------------------------------------------------------
    def _set_up(self, ids: np.ndarray) -> None:
        """Draw and place the next episodes of environments `ids`."""
        count, joints = len(self.task.randomization), len(self.robot.joints)
        episodes = [(self.seed + int(i), int(self.episode[i])) for i in ids]
        u = np.stack([episode_rng(*e).random(count + joints + self.sensors.biases) for e in episodes])
        for purpose in (_NOISE, _COMMAND, _PUSH):
            self.keys[ids, purpose] = episode_keys([seed for seed, _ in episodes], self.episode[ids], purpose)
        self.episode[ids] += 1
        self.drawn[ids] = drawn = quantiles(self.randomization, u[:, self._columns])
        for k in self._of_engine:
            self.engine.parameters[self.randomization[k].parameter](ids, drawn[:, k])
        self.sensors.set([self.randomization[k].parameter for k in self._of_sensors], ids, drawn[:, self._of_sensors])
        values = {r.parameter: drawn[:, k] for k, r in enumerate(self.randomization)}
        zero = np.zeros(len(ids))
        offset = values.get("robot.home_offset", zero)[:, None] * (2 * u[:, count : count + joints] - 1)
        self._directions = torch.from_numpy(2 * u[:, count + joints :] - 1).float()
        self.push_speed[ids] = torch.from_numpy(values.get("push.speed", zero)).float()
        self.push_every[ids] = torch.from_numpy(values.get("push.interval", zero) * self.rate).long()
        objects = {}
        for box in self.task.scene.boxes:
            pose = np.zeros((len(ids), 7))
            pose[:, 0] = values.get(f"{box.name}.x", zero + 0.5)
            pose[:, 1] = values.get(f"{box.name}.y", zero)
            resting = values.get(f"{box.name}.size", zero + box.size)
            pose[:, 2] = values.get(f"{box.name}.z", resting)
            yaw = values.get(f"{box.name}.yaw", zero)
            pose[:, 3], pose[:, 6] = np.cos(yaw / 2), np.sin(yaw / 2)
            objects[box.name] = pose
        self.engine.reset(ids, np.asarray(self.robot.home) + offset, objects)
        self.steps[ids], self.held[ids], self.last_action[ids] = 0, 0, 0.0
        self.gripper[ids] = self.robot.gripper.width if self.robot.gripper else 0.0
        if self.feet is not None:
            self.feet.reset(torch.from_numpy(ids))

    def begin(self, ids: Tensor) -> Start:
        """Begin the next episodes of environments `ids` (k,)."""
        rows = ids.numpy()
        self._set_up(rows)
        true = self._true_state(rows)
        self.sensors.reset(ids, true, self._directions)
        state = self.sensors.measure(true, self._noise(rows), ids)
        self.goal[ids] = self.command[ids] = state.joint_position
        self.velocity[ids] = 0.0
        return Start(true, state, self._observe(true, state, rows))

    def _restart(self, ids: Tensor, observation: dict[str, Tensor]) -> dict[str, Tensor]:
        """Begin new episodes in environments `ids` (k,); return a copy of the observation with theirs."""
        self.last_action = self.last_action.clone()
        new = self._nursery.take(self, ids) if self._nursery else self.begin(ids)
        if self.recorder:
            self.recorder.begin(ids.numpy())
        now = Start(self.true, self.state, observation).put(ids, new)
        self.true, self.state = now.true, now.state
        return now.observation

    @cached_property
    def _nursery(self) -> Nursery | None:
        engine = self.engine.sibling()
        return Nursery(self, engine) if engine else None

    def memory(self) -> list[np.ndarray | Tensor]:
        """All that an environment remembers, a row for each, but its physics and its last states."""
        feet = [getattr(self.feet, name) for name in FootTracker.NAMES] if self.feet else []
        sensors = [getattr(self.sensors, name) for name in SensorModel.MEMORY]
        return [*(getattr(self, name) for name in self.ROWS), *sensors, *feet]

    # ---- resume ------------------------------------------------------------------------------------------------
    _TENSORS = ("goal", "command", "velocity", "gripper", "last_action", "steps", "held", "push_speed", "push_every")
    ROWS = ("episode", "keys", "drawn", *_TENSORS)

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs to go on with the same floats; a copy."""
        live = {
            "seed": self.seed,
            "episode": self.episode.copy(),
            "keys": self.keys.T.copy().view(np.int64),
            "drawn": self.drawn.copy(),
            "engine": self.engine.state_dict(),
            "state": self.state.views,
            "true": self.true.views,
            "sensors": {n: getattr(self.sensors, n) for n in SensorModel.MEMORY},
            "feet": {n: getattr(self.feet, n) for n in FootTracker.NAMES} if self.feet else {},
            "tensors": {name: getattr(self, name) for name in self._TENSORS},
            "shield_events": dict(self.shield_events),
            "divergences": self.divergences,
        }
        return copy.deepcopy(live)

    def load_state_dict(self, state: dict[str, Any]) -> dict[str, Tensor]:
        """Restore `state_dict` and return the observation that belongs to it."""
        state = copy.deepcopy(state)
        self.seed, self.divergences = state["seed"], state["divergences"]
        self.episode[:], self.drawn[:] = state["episode"], state["drawn"]
        self.keys[:] = state["keys"].view(np.uint64).T
        self.engine.load_state_dict(state["engine"])
        objects = [box.name for box in self.task.scene.boxes]
        self.state, self.true = (RobotState.from_views(state[name], objects) for name in ("state", "true"))
        for owner, values in ((self.sensors, state["sensors"]), (self.feet, state["feet"]), (self, state["tensors"])):
            for name, value in values.items():
                setattr(owner, name, value)
        self.shield_events.update(state["shield_events"])
        if self.recorder:
            self.recorder.forget()
        return self._observe(self.true, self.state)

    def episode_number(self, index: int) -> int:
        """Number of the running episode of one environment."""
        return int(self.episode[index]) - 1

    def episode_record(self, index: int) -> dict[str, float]:
        """What randomization drew for the running episode of one environment."""
        return {
            f"randomization/{r.parameter}": float(v) for r, v in zip(self.randomization, self.drawn[index], strict=True)
        }
