"""A task as a vector environment: torch tensors, same-step autoreset, per-episode randomization."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from robot_rl.interface.observations import Observer
from robot_rl.interface.pipeline import Pipeline
from robot_rl.interface.shield import ramp
from robot_rl.interface.state import ABSENT, RobotState, leaves
from robot_rl.robots import robots
from robot_rl.util.errors import Misfit, UnknownName
from sim.commands import PURPOSE as COMMAND
from sim.divergence import Recorder, quiet
from sim.engines import engines
from sim.engines.base import DEVICES, Engine
from sim.feet import FootTracker
from sim.fused import Graph, check_compiler, fused, plainly
from sim.nursery import Nursery, Start
from sim.randomization import episode_rng, quantiles
from sim.randomization.checks import check_randomization, check_supported
from sim.randomization.noise import episode_keys, normals, uniforms
from sim.rewards import Moment, total
from sim.scenes import time_grid
from sim.sensors import PARAMETERS as SENSOR_PARAMETERS
from sim.sensors import SensorModel
from sim.tasks import tasks
from sim.tasks.base import Task

_ALL = slice(None)
_NOISE, _COMMAND, _PUSH = 0, COMMAND, 2
"""What an episode draws while it runs, each with a key of its own."""


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
        compiled: bool = False,
    ):
        """`without` names parameters that are not randomized; the others are drawn as if they were. `diverged` is the
        folder in which episodes whose physics diverge are kept for `sim.divergence.replay`; None keeps none. `compiled`
        makes all but the physics faster, after half a minute for the first step, or seconds where PyTorch finds what it
        made before; floats may differ in their last digit.
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
        check_supported(self.randomization, self.robot, self.task.scene, engine)
        check_randomization(self.task.randomization, self.randomization, 1 / self.rate, kind.longest_delay)
        self.graphs: dict[str, Graph] | None = None
        if compiled:
            if not kind.can_be_compiled:
                raise Misfit(f"engine {engine!r} cannot be compiled; leave compiled out, or use engine 'mujoco'")
            check_compiler()
            self.graphs = {}
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
        self._pushes = "push.speed" in names
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
        self.keys = torch.zeros(num_envs, 3, dtype=torch.long)
        """Of what the running episodes draw: noise, commands, pushes."""
        self.drawn = torch.zeros(num_envs, len(self.randomization), dtype=torch.double)
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

    # ---- gymnasium ---------------------------------------------------------------------------------------------
    @plainly()
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
            share = uniforms(self.keys[:, _PUSH], torch.tensor(-1), 1)[:, 0]
            self.steps = (share * self.task.interface.horizon).long()
        self.true = self._true_state()
        self.sensors.reset(everyone, self.true, self._directions)
        self.state = self.sensors.measure(self.true, self._noise())
        self.state.reference = self.pipeline.controller.reference(self.num_envs)
        self.goal = self.command = self.state.joint_position
        self.velocity = torch.zeros_like(self.goal)
        return self._observe(self.true, self.state), {}

    @plainly()
    def step(self, actions: Tensor | np.ndarray) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Act for one control period; see the class for what comes back."""
        actions = torch.as_tensor(actions, dtype=torch.float32)
        if actions.shape != self.action_space.shape:
            shape, given = self.action_space.shape, tuple(actions.shape)
            raise ValueError(f"actions for {self.num_envs} copies of {self.task.name} are {shape}, not {given}")
        commands, shoves, changed = self._decide(actions)
        if shoves:
            self._push(*shoves)
        for reason, count in zip(self.shield_events, changed.tolist(), strict=True):
            self.shield_events[reason] += count
        self.engine.step(commands, self.gripper[:, None].expand(-1, self.ticks, -1))
        observation, reward, terminated, truncated, infos, done, counts = self._perceive()
        ended, diverged = counts.tolist()
        if self.recorder:
            self.recorder.step(actions, infos["diverged"])
        self.divergences += diverged
        if ended:
            infos["final_obs"], infos["_final_obs"] = observation, done
            observation = self._restart(done, observation)
        return observation, reward, terminated, truncated, infos

    def still(self) -> Tensor:
        """Return the actions (n, A) in [-1, 1] that hold position, with the gripper as it is."""
        return self.pipeline.controller.still(self.last_action, self.gripper)

    def render(self) -> tuple[np.ndarray, ...]:
        """One 480x640 picture of each environment, from the task's first camera."""
        camera = self.task.scene.cameras[0].name
        return tuple(self.engine.render(i, camera, 480, 640, "high") for i in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Let go of the engines; gymnasium calls this once, from `close`."""
        self.engine.close()
        if nursery := vars(self).pop("_nursery", None):
            nursery.ahead.engine.close()

    # ---- one control period ------------------------------------------------------------------------------------
    def _push(self, due: Tensor, turn: Tensor) -> None:
        """Shove robots where `due` (n,), each another way: `turn` (n,), in turns."""
        ids = np.flatnonzero(due.numpy())
        if len(ids):
            angle = 2 * np.pi * turn.numpy()[ids].astype(float)
            way = np.stack([np.cos(angle), np.sin(angle), np.zeros_like(angle)], 1)
            self.engine.push(ids, self.push_speed.numpy()[ids].astype(float)[:, None] * way)

    def _shoves(self) -> list[Tensor]:
        """Whether each robot is shoved before this control period (n,), and which way (n,), in turns; empty if none
        ever is."""
        if not self._pushes:
            return []
        due = (self.push_every > 0) & (self.steps > 0) & (self.steps % self.push_every.clamp_min(1) == 0)
        return [due, uniforms(self.keys[:, _PUSH], self.steps, 1)[:, 0]]

    @fused
    def _decide(self, actions: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """Joint commands (n, ticks, J) of one control period, as far as the shield lets; `_shoves`; and in how many
        rows the shield changed something, for each reason of `shield_events`."""
        pipeline = self.pipeline
        target = pipeline.target(self.state, actions)
        goal, events = pipeline.shield.admit(target.position, self.goal)
        gripper, executed = target.gripper, actions.clamp(-1, 1)
        refused = events["nonfinite"][:, None]
        if self.graphs is not None or refused.any():  # the goal before stays in force
            gripper = torch.where(refused, self.gripper, gripper)
            executed = torch.where(refused, pipeline.controller.still(self.last_action, gripper), executed)
        if target.reference is not ABSENT:
            kept = torch.where(refused, self.state.reference, target.reference)
            self.state = replace(self.state, reference=kept)
        # Robots along the fastest axis: each tick looks for the joint that limits its robot.
        start, end, command, velocity = (x.T.contiguous().T for x in (self.goal, goal, self.command, self.velocity))
        way, step = ramp(start, end, self.ticks)
        commands = []
        for k in range(self.ticks):
            at, speed = (end, step) if self.robot.compliant else (way[k], step / self.tick)
            command, velocity = pipeline.shield.follow(command, velocity, at, speed, self.tick)
            commands.append(command)
        self.goal, self.gripper, self.last_action = goal, gripper, executed
        self.command, self.velocity = command, velocity
        train = torch.stack(commands, 1) - self.sensors.encoder_offset[:, None]
        never = torch.zeros(self.num_envs, dtype=torch.bool)
        changed = torch.stack([events.get(reason, never) for reason in self.shield_events]).sum(1)
        return train, self._shoves(), changed

    @fused
    def _perceive(self) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any], Tensor, Tensor]:
        """What `step` returns of the control period that has passed; besides, whose episode ends (n,), and how many do
        and how many diverged (2,)."""
        self.steps = self.steps + 1
        broken = self.engine.diverged()
        before, self.true = self.true, self._true_state()
        if self.graphs is not None or broken.any():  # no learner is to see what is left: the last sound state stands in
            last, rows = before.views, broken[:, None]
            self.true = self.true.map(lambda name, view: torch.where(rows, last[name], view))
        reward, success, terminated, truncated, infos = self._judge(before, broken)
        self.state = replace(self.sensors.measure(self.true, self._noise()), reference=self.state.reference)
        infos |= {"success": success, "diverged": broken, "episode_steps": self.steps.clone()}
        done = terminated | truncated
        counts = torch.stack([done, broken]).sum(1)
        return self._observe(self.true, self.state), reward, terminated, truncated, infos, done, counts

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
                # Copies: what is a view of the state would be overwritten where an episode ends.
                infos["metrics"] = {name: figure.clone() for name, figure in self.task.measures(moment).items()}
        return reward, success, terminated, (late | broken) & ~terminated, infos

    def _noise(self, ids: np.ndarray | slice = _ALL) -> Tensor:
        return normals(self.keys[ids, _NOISE], self.steps[ids], self.sensors.noises)

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
        privileged = [*true.objects.values(), self.drawn[ids].float()]
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
        drawn = quantiles(self.randomization, u[:, self._columns])
        self.drawn[ids] = torch.from_numpy(drawn)
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
        state.reference = self.pipeline.controller.reference(len(ids))
        self.goal[ids] = self.command[ids] = state.joint_position
        self.velocity[ids] = 0.0
        return Start(true, state, self._observe(true, state, rows))

    def _restart(self, done: Tensor, observation: dict[str, Tensor]) -> dict[str, Tensor]:
        """Begin new episodes where `done` (n,); return a copy of the observation with theirs."""
        ids = done.nonzero().squeeze(-1)
        if self._nursery:
            observation = self._exchange(ids, observation, *self._nursery.take(self, ids))
        else:
            self.last_action = self.last_action.clone()
            now = Start(self.true, self.state, observation).put(ids, self.begin(ids))
            self.true, self.state, observation = now.true, now.state, now.observation
        if self.recorder:
            self.recorder.begin(ids.numpy())
        return observation

    def _exchange(
        self, ids: Tensor, observation: dict[str, Tensor], theirs: list[np.ndarray], first: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Go on with the tensors and first observations of another environment in rows `ids` (k,)."""
        rows = ids.numpy()
        # In place: the states are of this very step, and nobody else holds their views yet.
        for mine, new in zip(leaves(attrgetter(*self.own)(self)), theirs, strict=True):
            mine.numpy()[rows] = new[rows]
        return {n: view.index_copy(0, ids, first[n].index_select(0, ids)) for n, view in observation.items()}

    @cached_property
    def _nursery(self) -> Nursery | None:
        engine = self.engine.sibling()
        return Nursery(self, engine) if engine else None

    @cached_property
    def own(self) -> tuple[str, ...]:
        """The attributes, "part.name" for those of a part, whose tensors are of the running episodes, a row of each."""
        parts = {"sensors": SensorModel.MEMORY, "feet": FootTracker.NAMES if self.feet else ()}
        of_parts = (f"{part}.{name}" for part, names in parts.items() for name in names)
        return (*self.ROWS, *of_parts, "true", "state")

    @cached_property
    def remembered(self) -> tuple[str, ...]:
        """See `sim.fused`."""
        return (*self.own, *(f"engine.stored.{name}" for name in vars(self.engine.stored)))

    # ---- resume ------------------------------------------------------------------------------------------------
    _TENSORS = ("goal", "command", "velocity", "gripper", "last_action", "steps", "held", "push_speed", "push_every")
    ROWS = ("keys", "drawn", *_TENSORS)

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs to go on with the same floats; a copy."""
        live = {
            "seed": self.seed,
            "episode": self.episode.copy(),
            "keys": self.keys.T.contiguous().numpy(),
            "drawn": self.drawn.numpy(),
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
        self.episode[:], self.drawn[:] = state["episode"], torch.from_numpy(state["drawn"])
        self.keys[:] = torch.from_numpy(state["keys"]).T
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
