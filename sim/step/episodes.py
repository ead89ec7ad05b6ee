"""Running episodes of n simulations: the whole state for resets and resumes, rewards and ends, prefetched resets."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.interface.observations import Observer, scan_points
from robot_rl.interface.pipeline import Pipeline
from robot_rl.interface.state import RobotState
from robot_rl.interface.success import SuccessHold
from robot_rl.util.rows import Rows, copy_rows
from sim.engines.base import Engine
from sim.rewards import Transition, total
from sim.step.action_chain import ActionChain
from sim.step.feet import FootTracker
from sim.step.ground import Ground, Levels
from sim.step.pictures import PictureDelay
from sim.step.sampling import EpisodeSampler
from sim.step.sensors import SensorModel
from sim.tasks.base import Task


@dataclass(frozen=True)
class Verdict:
    """Reward (n,) and end (n,) of one control period in n environments."""

    reward: Tensor
    success: Tensor
    terminated: Tensor
    truncated: Tensor
    infos: dict[str, Any]
    """Reward terms and metrics, if the task defines any."""


class TransitionJudge:
    """Compute rewards and ends: success and failure terminate an episode, the horizon and divergence truncate it."""

    def __init__(self, task: Task, pipeline: Pipeline):
        self.task, self.pipeline = task, pipeline
        self.period = 1 / task.interface.controller.rate
        self.home = torch.tensor(pipeline.robot.home, device=pipeline.device)
        self.success_ends = True  # success ends an episode

    def judge(
        self, before: RobotState, now: RobotState, late: Tensor, broken: Tensor, hold: SuccessHold,
        feet: FootTracker | None,
    ) -> Verdict:  # fmt: skip
        """Judge one control period of each episode, from true state `before` to `now`. `late` (n,): the episode's time
        or ground ends. If physics diverged (`broken` (n,)), the reward is 0 and the episode is truncated."""
        interface, pipeline = self.task.interface, self.pipeline
        failed = pipeline.failure(now) & ~broken if pipeline.failure else torch.zeros_like(broken)
        if interface.instructions:  # a new instruction restarts the hold time
            hold.reset((before.instruction != now.instruction)[:, 0])
        if pipeline.success:
            success = hold(pipeline.success(now) & ~broken) & ~failed
            terminated = success | failed if self.success_ends else failed
        else:
            success, terminated = late & ~failed & ~broken, failed
        reward, infos = success.float(), {}
        if self.task.rewards or self.task.metrics:
            if feet is not None:
                feet.update(now)
            transition = Transition(pipeline.robot, self.home, before, now, feet, self.period)  # type: ignore[arg-type]
            if self.task.rewards:
                reward, parts = total(self.task.rewards, transition)
                reward = torch.where(broken, 0.0, reward)
                infos["rewards"] = parts
            if self.task.metrics:
                # Copies: the next episode overwrites views of the state.
                infos["metrics"] = {name: value.clone() for name, value in self.task.metrics(transition).items()}
        return Verdict(reward, success, terminated, (late | broken) & ~terminated, infos)


class Episodes(Rows):
    """Physics, sensors, commands and rewards of n copies of a task, with all tensors on the engine's device."""

    ROWS = ("steps",)

    def __init__(
        self, task: Task, pipeline: Pipeline, engine: Engine, columns: list[int], tick: float, ticks: int, seed: int,
        levels: Levels | None = None,
    ):  # fmt: skip
        """`columns`: see `EpisodeSampler`. A control period has `ticks` commands, `tick` s apart. `levels`: levels of
        uneven ground, see `Ground`."""
        self.task, self.pipeline, self.engine = task, pipeline, engine
        self.num_envs, self.device = engine.num_envs, engine.device
        self.rate = task.interface.controller.rate
        robot, boxes, n = pipeline.robot, task.scene.poses, engine.num_envs
        self.privileged = Observer(task.privileged, robot, pipeline.actions, pipeline.command, pipeline.device)
        scan = scan_points([*pipeline.observer.terms, *self.privileged.terms])
        self.sensors = SensorModel(robot, boxes, n, 1 / self.rate, self.device, len(scan))
        self.sampler = EpisodeSampler(task, robot, columns, self.sensors.biases, n, seed, self.device)
        self.chain = ActionChain(pipeline, n, tick, ticks)
        self.judge = TransitionJudge(task, pipeline)
        self.success = SuccessHold(task.interface.success_hold, n, self.device)
        self.feet: FootTracker | None = None
        if base := robot.base:
            self.feet = FootTracker(n, len(base.feet), base.foot_radius, 1 / self.rate, self.device)
        terrain = task.scene.ground
        self.ground = Ground(terrain, scan, n, self.device, levels) if terrain else None
        self.pictures: PictureDelay | None = None
        if "camera.delay" in self.sampler.names:
            self.pictures = PictureDelay(n, engine.model.nq, 1 / self.rate, self.device)
        self.steps = torch.zeros(n, dtype=torch.long, device=self.device)
        """Number of control periods (n,) so far in each running episode."""
        self.true: RobotState
        self.state: RobotState  # state measured by the sensors
        self._engine_parameters = [name for name in self.sampler.names if name in engine.parameters]
        self._sensor_parameters = [name for name in self.sampler.names if name in self.sensors.names]

    @property
    def parts(self) -> dict[str, Rows]:
        """Return the components with one row per environment, by name."""
        parts: dict[str, Rows] = {"sampler": self.sampler, "chain": self.chain, "sensors": self.sensors}
        parts["success"] = self.success
        optional: dict[str, Rows | None] = {"feet": self.feet, "ground": self.ground, "pictures": self.pictures}
        return parts | {name: part for name, part in optional.items() if part is not None}

    # ---- resets ------------------------------------------------------------------------------------------------
    def begin(self, ids: Tensor, stagger: bool = False) -> dict[str, Tensor]:
        """Begin the next episodes of environments `ids` (k,), which are sorted; return the first observations (k, D) of
        these episodes. With `stagger`, episodes begin at different steps of the horizon."""
        rows = ids.cpu().numpy()
        sample = self.sampler.sample(rows)
        for name in self._engine_parameters:
            self.engine.parameters[name](rows, sample.values[name])
        self.sensors.set(self._sensor_parameters, ids, [sample.values[name] for name in self._sensor_parameters])
        origins = self.ground.begin(ids, self.sampler.tile_numbers(ids)) if self.ground else None
        start = origins if sample.start is None else sample.start
        if origins is not None and sample.start is not None:
            sample.start[:, :3] += origins
        self.engine.reset(rows, sample.joints, sample.objects, start)
        self.steps[ids] = 0
        self.chain.reset(ids)
        self.success.reset(ids)
        if self.feet is not None:
            self.feet.reset(ids)
        if self.pictures is not None:
            self.pictures.reset(ids, self.engine.qpos, self.sensors.picture_lag)
        if stagger:
            self.steps = self.sampler.staggered(self.task.interface.horizon)
        true = self._true_state(ids)
        self.sensors.reset(ids, true, sample.bias_direction)
        state = self.sensors.measure(true, self.sampler.noise(self.steps[ids], self.sensors.noises, ids), ids)
        state = self.chain.refer(state, ids)
        self.chain.hold(ids, state.joint_position)
        if len(ids) == self.num_envs:
            self.true, self.state = true, state
        else:
            self.true, self.state = self.true.put(ids, true), self.state.put(ids, state)
        return self.observe(true, state, self.sampler.sampled[ids])

    def clone(self) -> Episodes | None:
        """Return a second set of simulations, in which no episode has begun; None if the engine cannot be cloned."""
        engine = self.engine.clone()
        if engine is None:
            return None
        other = copy.copy(self)
        other.engine = engine
        for name, part in self.parts.items():
            setattr(other, name, part.fork())
        other.steps = self.steps.clone()
        return other

    def copy_from(self, ids: Tensor, other: Episodes) -> None:
        """Copy the episodes of environments `ids` (k,) from `other`, a clone of this object."""
        rows = ids.cpu().numpy()
        self.sampler.next_episode[rows] = other.sampler.next_episode[rows]
        self.engine.copy_from(rows, other.engine)
        self.take_rows(ids, other)
        theirs = other.parts
        for name, part in self.parts.items():
            part.take_rows(ids, theirs[name])
        # In place: no other object refers to the views of this step's states.
        for mine, new in ((self.true, other.true), (self.state, other.state)):
            views = new.views
            for name, view in mine.views.items():
                copy_rows(view, ids, views[name])

    # ---- one control period ------------------------------------------------------------------------------------
    def act(self, actions: Tensor, outside: Tensor | None = None) -> None:
        """Simulate one control period with actions (n, A) in [-1, 1]. `outside`: horizontal velocities (n, 2) that
        outside forces add to the trunks, m/s."""
        commands = self.chain.decide(self.state, actions)
        if self.sampler.pushes or outside is not None:
            velocity = self.sampler.push_velocity(self.steps)
            if outside is not None:
                velocity[:, :2] += outside
            self.engine.push(velocity)
        # Motors control the encoder reading: joints rest below the command by the encoder offset.
        commands = commands - self.sensors.encoder_offset[:, None]
        self.engine.step(commands, self.chain.gripper[:, None].expand(-1, commands.shape[1], -1))

    def perceive(self) -> Verdict:
        """Measure the state after the last control period; return reward and end of the episodes."""
        self.steps = self.steps + 1
        if self.pictures is not None:
            self.pictures.advance(self.engine.qpos)
        broken, before, now = self.engine.diverged(), self.true, self._true_state()
        # Diverged environments keep their last valid state: no NaN reaches a learner.
        last, rows = before.views, broken[:, None]
        self.true = now.map(lambda name, view: torch.where(rows, last[name], view))
        late = self.steps >= self.task.interface.horizon
        if self.ground:
            late |= self.ground.outside(self.true.base_position)
        verdict = self.judge.judge(before, self.true, late, broken, self.success, self.feet)
        measured = self.sensors.measure(self.true, self.sampler.noise(self.steps, self.sensors.noises))
        self.state = self.chain.refer(measured)
        verdict.infos.update(success=verdict.success, diverged=broken, episode_steps=self.steps.clone())
        return verdict

    def observe(self, true: RobotState, state: RobotState, sampled: Tensor) -> dict[str, Tensor]:
        """Return observations (k, D) from true and measured states and randomized values (k, P)."""
        privileged = [*true.objects.values(), *true.object_joints.values(), sampled.float()]
        if self.task.privileged:
            privileged.insert(0, self.privileged(true))
        return {
            "observation.state": self.pipeline.observer(state),
            "observation.environment_state": torch.cat(privileged, -1),
        } | self.pipeline.language(state)

    def observation(self) -> dict[str, Tensor]:
        """Return the current observations (n, D)."""
        return self.observe(self.true, self.state, self.sampler.sampled)

    def _true_state(self, ids: Tensor | None = None) -> RobotState:
        """Return the true state of environments `ids`; None: of all environments."""

        def rows(view: Tensor) -> Tensor:
            return view if ids is None else view[ids]

        steps, pipeline = rows(self.steps), self.pipeline
        views = {name: rows(view) for name, view in self.engine.views().items()}
        if pipeline.kinematics is not None:
            views["tool_position"] = pipeline.kinematics.forward(views["joint_position"])[0]
        if self.task.commands is not None:
            keys = self.sampler.command_keys(ids)
            views["command"] = self.task.commands(pipeline.command, keys, steps, self.rate)
        if self.task.interface.gait:
            views["phase"] = pipeline.phase(steps)
        if self.task.interface.instructions:
            views["instruction"] = self.sampler.instruction(steps, ids)
        if self.ground:
            views |= self.ground.views(views)
        objects = {name: rows(self.engine.object_pose(name)) for name in self.task.scene.poses}
        joints = {name: rows(moved) for name, moved in self.engine.object_joints().items()}
        return RobotState(**views, last_action=rows(self.chain.last_action), objects=objects, object_joints=joints)

    # ---- resume ------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the whole state of all episodes: a run that resumes from the copy is bit-identical."""
        return {
            "seed": self.sampler.seed,
            "next_episode": self.sampler.next_episode.copy(),
            "distribution": self.sampler.distribution.state_dict(),
            "engine": copy.deepcopy(self.engine.state_dict()),
            "state": {name: view.clone() for name, view in self.state.views.items()},
            "true": {name: view.clone() for name, view in self.true.views.items()},
            "rows": super().state_dict(),
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
            "shield_events": self.chain.events.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.seed = state["seed"]
        self.sampler.next_episode[:] = state["next_episode"]
        self.sampler.distribution.load_state_dict(state["distribution"])
        self.engine.load_state_dict(state["engine"])
        objects = self.task.scene.poses
        for name in ("state", "true"):
            views = {k: view.to(self.device, copy=True) for k, view in state[name].items()}
            setattr(self, name, RobotState.from_views(views, objects))
        super().load_state_dict(state["rows"])
        for name, part in self.parts.items():
            part.load_state_dict(state["parts"][name])
        self.chain.events = state["shield_events"].to(self.device, copy=True)


class PrefetchedResets:
    """A second set of simulations, one episode ahead of the running simulations.

    A reset takes hundreds of small operations, whether for one episode or for a hundred. To copy a prefetched episode
    takes a tenth of the time. Seed, number and distribution determine an episode, so a resume needs no saved state of
    this set.
    """

    def __init__(self, ahead: Episodes):
        self.ahead = ahead
        self.ready = np.full(ahead.num_envs, -1)  # number of the prefetched episode per environment; -1: none
        self.version = -1  # version of the distribution from which these were drawn
        self.observation: dict[str, Tensor] = {}  # first observations (n, D) of the prefetched episodes

    def begin(self, episodes: Episodes, ids: Tensor) -> dict[str, Tensor]:
        """Begin the next episodes of environments `ids` (k,); return their first observations (k, D)."""
        rows = ids.cpu().numpy()
        if self.version != (version := episodes.sampler.distribution.version):
            self.version, self.ready[:] = version, -1
        missing = (self.ready != episodes.sampler.next_episode) | (self.ahead.sampler.seed != episodes.sampler.seed)
        if episodes.ground and self.ahead.ground:
            missing |= episodes.ground.stale(self.ahead.ground)
        if missing[rows].any():
            self._prepare(episodes, missing.nonzero()[0])
        episodes.copy_from(ids, self.ahead)
        return {name: values.index_select(0, ids) for name, values in self.observation.items()}

    def _prepare(self, episodes: Episodes, rows: np.ndarray) -> None:
        ahead, ids = self.ahead, torch.as_tensor(rows, device=episodes.device)
        self.ready[rows] = -1  # valid state if Ctrl-C interrupts
        ahead.sampler.seed = episodes.sampler.seed
        ahead.sampler.next_episode[rows] = episodes.sampler.next_episode[rows]
        if ahead.ground and episodes.ground:
            ahead.ground.levels[rows] = episodes.ground.levels[rows]
        first = ahead.begin(ids)
        if len(rows) < len(self.ready):
            first = {name: values.index_copy(0, ids, first[name]) for name, values in self.observation.items()}
        self.observation = first
        self.ready[rows] = episodes.sampler.next_episode[rows]
