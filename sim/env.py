"""Vector environment of a task: torch tensors, same-step autoreset, randomization per episode."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from robot_rl.interface.command import JointPositions
from robot_rl.interface.environment import Demonstrator, EnvInfo
from robot_rl.interface.observation_spec import IMAGES, PRIVILEGED, ObservationField, ObservationSpec
from robot_rl.interface.pipeline import Pipeline
from robot_rl.interface.spec import Field, VectorSpec
from robot_rl.interface.state import OF_JOINTS, RobotState
from robot_rl.robots import robots
from robot_rl.util.devices import find_device, known_device
from robot_rl.util.errors import ConfigError
from sim.demonstrators import make_expert
from sim.divergence import DivergenceRecorder, quiet
from sim.engines import engines
from sim.engines.base import Engine
from sim.parameters import find, nominal_value, parameters
from sim.randomization import Randomize
from sim.randomization.checks import check_randomization, check_supported, check_twice, choose
from sim.randomization.ranges import as_ranges, with_ranges
from sim.rendering.looks import Appearance
from sim.scenes import time_grid
from sim.step.action_chain import REASONS
from sim.step.distribution import EpisodeDistribution
from sim.step.episodes import Episodes, PrefetchedResets
from sim.step.ground import Levels
from sim.step.sampling import TRAINING, chosen
from sim.tasks import tasks
from sim.tasks.base import Task
from sim.terrain import Terrain

OUTSIDE, GRAVITY = 0.15, 9.81
"""Largest force of `TaskEnv.disturb` as a share of the robot's weight, and the acceleration of gravity, m/s^2."""


@contextmanager
def single_threaded() -> Iterator[None]:
    """Run the body on one torch thread, without gradients and outside inference mode. Tensors of a thousand rows are
    too short for several threads: with these, an environment step took ten times as long on busy cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode(False), torch.no_grad():
            yield
    finally:
        torch.set_num_threads(threads)


class TaskEnv(VectorEnv):
    """n copies of a task, with all tensors on the device of the physics.

    Actions are (n, A) in [-1, 1]. Observations are dicts as in `observation_spec`: "observation.state" (n, D), the
    privileged "observation.environment_state" (n, P), and "observation.images.<camera>" uint8 (n, H, W, 3) for every
    picture of the interface. The reward is the sum of the task's reward terms; in a task without terms it is 1 on
    success and 0 otherwise. Success and failure terminate an episode, the horizon truncates it. The next episode begins
    in the same step. The last observation of an ended episode is in infos["final_obs"], where infos["_final_obs"] is
    True.

    Episode e of environment i is sampled from (seed + i, e) only: results do not depend on num_envs or threads.
    """

    skills = ("CLUMSY", "STEADY")
    """Skills of the scripted demonstrators."""
    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self, task: Task | str, num_envs: int = 1, *, engine: str = "mujoco", seed: int = 0, threads: int = 0,
        mjcf: str = "", device: str = "auto", randomize: bool = True, without: Sequence[str] = (),
        ranges: Mapping[str, Mapping[str, Any]] | None = None,
        diverged: Path | None = None, instruction_set: str = TRAINING, changes: float = 0.0, success_ends: bool = True,
        levels: Levels | None = None,
    ):  # fmt: skip
        """`without`: parameters that are not randomized; they are sampled all the same, so other samples do not change.
        `ranges`: ranges that replace those of the task or are added to them, see `sim.randomization.ranges`.
        `instruction_set`: instructions that episodes draw from: "training", "held-out", "all", or a text with which
        the instructions begin. `changes`: share of episodes in which the instruction changes.
        `success_ends`: success ends an episode; if False, the caller judges success and calls `restart`.
        `levels`: lowest and highest level of uneven ground from which episodes draw; None: all levels.
        `diverged`: folder for episodes with diverged physics, see `sim.replay`; None: such episodes are not kept.
        """
        self.task: Task = with_ranges(tasks.get(task) if isinstance(task, str) else task, ranges or {})
        self.num_envs, self.rate = num_envs, self.task.interface.controller.rate
        self.robot = robots.get(self.task.interface.robot)
        kind: type[Engine] = engines.get(engine)
        if kind.takes_device:  # first: later errors are about parameters of the engine
            find_device(device)
        elif device != "auto" and known_device(device).type != "cpu":
            gpu = "use --engine warp or genesis for a GPU"
            raise ConfigError(f"engine {engine!r} runs on the CPU, not on {device!r}; {gpu}")
        if levels and self.task.scene.ground is None:
            raise ConfigError(f"task {self.task.name!r} is on level ground; leave out --levels")
        columns, without = choose(self.task, engine, randomize, without)
        used = [self.task.randomization[k] for k in columns]
        tick, ticks = time_grid(self.task.scene.timestep, self.robot.command_rate, self.rate)
        check_twice(self.task.randomization)
        check_supported(used, self.robot, self.task.scene, engine)
        check_randomization(used, 1 / self.rate)
        quiet()
        self.engine = kind(self.robot, self.task.scene, num_envs, threads, mjcf, device)  # type: ignore[call-arg]
        self.device = self.engine.device
        accepted = (JointPositions,)
        self.pipeline = Pipeline(self.task.interface, self.robot, self.device, accepted, "simulation")
        self.episodes = Episodes(self.task, self.pipeline, self.engine, columns, tick, ticks, seed, levels)
        instruction_ids = [(each.text, each.held_out) for each in self.task.interface.instructions]
        self.episodes.sampler.instruction_ids = chosen(self.task.name, instruction_ids, instruction_set)
        if changes and len(self.episodes.sampler.instruction_ids) < 2:
            raise ConfigError(f"task {self.task.name!r} has no other instruction to change to; leave out --changes")
        self.episodes.sampler.instruction_change_prob = changes
        self.episodes.judge.success_ends = success_ends
        self.simulation: dict[str, Any] = {"engine": engine, "device": self.device.type, "without": without}
        self.simulation |= {} if instruction_set == TRAINING else {"instruction_set": instruction_set}
        self.simulation |= {"changes": changes} if changes else {}
        self.simulation |= {"ranges": as_ranges([r for r in used if r.parameter in ranges])} if ranges else {}
        self.simulation |= {"levels": list(levels)} if levels else {}
        """Settings of this simulation, reported with its results."""
        self.mjcf = str(Path(mjcf).resolve()) if mjcf else ""
        self.privileged_size = self.observation_spec[PRIVILEGED].shape[0]
        self.single_action_space = gym.spaces.Box(-1.0, 1.0, (self.pipeline.actions.size,), np.float32)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.single_observation_space = self.observation_spec.gymnasium_space()
        self.observation_space = self.observation_spec.gymnasium_space(num_envs)
        known = parameters(self.robot, self.task.scene, "look")
        self._looks = {k: r.parameter for k, r in enumerate(self.randomization) if r.parameter in known}
        if self._looks:
            self.engine.look = self._style
        self.disturbance = 2 if self.robot.base else 0
        """Number of outside forces, see `disturb`."""
        self.outside: Tensor | None = None
        self._requested: Tensor | None = None  # rows of `request_images`
        self._newest: dict[str, Tensor] = {}  # pictures of the last observation
        self.divergences = 0  # number of episodes that ended because their physics diverged
        self.recorder: DivergenceRecorder | None = None
        if diverged:
            settings = {"task": self.task.name, "mjcf": self.mjcf, "randomize": randomize} | self.simulation
            shape = (num_envs, self.task.interface.horizon, self.pipeline.actions.size)
            self.recorder = DivergenceRecorder(diverged, settings, *shape, self.device)

    @cached_property
    def observation_spec(self) -> ObservationSpec:
        """Return keys, shapes and units of an observation."""
        names = [*self.true_spec.names, *(r.parameter for r in self.randomization)]
        policy = self.pipeline.observation_spec
        vectors = {k: v for k, v in policy.items() if not k.startswith(IMAGES)}
        privileged = ObservationField((len(names),), "float32", "privileged", "mixed", tuple(names))
        return ObservationSpec.of(**vectors, **{PRIVILEGED: privileged}) | policy

    @cached_property
    def true_spec(self) -> VectorSpec:
        """Return the fields of the true state, with which the privileged observation begins. A pose is x y z in m and a
        quaternion; joints of objects follow all poses."""
        wide = ((-math.inf,) * 7, (math.inf,) * 7)
        axes = ("x", "y", "z", "qw", "qx", "qy", "qz")
        scene, bound = self.task.scene, math.inf
        poses = (Field(name, axes, "m, 1", *wide, "base") for name in scene.poses)
        joints = (
            Field(thing.name + OF_JOINTS, thing.joints, "m or rad", (-bound,) * n, (bound,) * n)
            for thing in scene.objects
            if (n := len(thing.joints))
        )
        return VectorSpec((*self.episodes.privileged.spec.fields, *poses, *joints))

    @cached_property
    def info(self) -> EnvInfo:
        return EnvInfo.of(self.pipeline, bool(self.task.expert), tuple(r.name for r in self.task.rewards))

    def make_demonstrator(self, seed: int, skill: str = "STEADY") -> Demonstrator:
        """Return the task's scripted demonstrator for all environments."""
        made: Demonstrator = make_expert(self, skill, seed)
        return made

    # ---- gymnasium ---------------------------------------------------------------------------------------------
    @single_threaded()
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Start new episodes in all environments; with a seed, environment i starts episode 0 of seed + i.

        `options`: {"stagger": True}: episodes begin at different steps of the horizon, so truncations are spread.
        {"episode": e}: with a seed, begin with episode e, not 0. {"group": g}: g consecutive environments share a seed.
        """
        options = options or {}
        self.episodes.sampler.group = options.get("group", 1)
        if seed is not None:
            self.seed = seed
            self.episodes.sampler.next_episode[:] = options.get("episode", 0)
        every = torch.arange(self.num_envs, device=self.device)
        first = self.episodes.begin(every, bool(options.get("stagger")))
        if self.recorder:
            self.recorder.begin(every)
        self._newest = self._pictures(np.arange(self.num_envs))
        return first | self._newest, {}

    def request_images(self, rows: Tensor | None) -> None:
        """Request new pictures in the next observation of environments `rows` (n,) bool. None: of all environments.

        Other environments may return older pictures. Rendering takes most of a step's time, and a policy that executes
        chunks of actions reads few of the pictures.
        """
        self._requested = rows

    @single_threaded()
    def step(self, actions: Tensor | np.ndarray) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Simulate one control period; the docstring of the class describes the results."""
        actions = torch.as_tensor(actions, dtype=torch.float32, device=self.device)
        if actions.shape != self.action_space.shape:
            shape, given = self.action_space.shape, tuple(actions.shape)
            raise ValueError(f"actions for {self.num_envs} copies of {self.task.name} are {shape}, not {given}")
        self.episodes.act(actions, self.outside)
        self.outside = None
        verdict = self.episodes.perceive()
        infos, done = verdict.infos, verdict.terminated | verdict.truncated
        if self.episodes.sampler.instruction_change_prob:
            texts = [each.text for each in self.task.interface.instructions]
            infos["instruction"] = [texts[k] for k in self._instruction_ids()]
        ended, diverged = torch.stack([done, infos["diverged"]]).sum(1).tolist()
        if self.recorder:
            self.recorder.step(actions)
            if diverged:
                self.recorder.keep(infos["diverged"], self._description)
        self.divergences += diverged
        if self.episodes.ground:
            infos["tiles"] = self.tiles.clone()
            infos.setdefault("metrics", {})["terrain_level"] = infos["tiles"][:, 1].float()
        observation = self.episodes.observation() | self._requested_pictures()
        if ended:
            infos["final_obs"], infos["_final_obs"] = observation, done
            observation = self.restart(done.nonzero().squeeze(-1), observation)
        self._newest = {key: observation[key] for key in self._newest}
        return observation, verdict.reward, verdict.terminated, verdict.truncated, infos

    def restart(self, ids: Tensor, observation: dict[str, Tensor]) -> dict[str, Tensor]:
        """Begin new episodes in environments `ids` (k,); return `observation` with the new first observations."""
        first = self.prefetched.begin(self.episodes, ids) if self.prefetched else self.episodes.begin(ids)
        if self.recorder:
            self.recorder.begin(ids)
        first |= self._pictures(ids.cpu().numpy())
        observation = {name: values.index_copy(0, ids, first[name]) for name, values in observation.items()}
        self._newest = {key: observation[key] for key in self._newest}
        return observation

    @cached_property
    def prefetched(self) -> PrefetchedResets | None:
        """Return the prefetched resets; None if the engine cannot be cloned."""
        ahead = self.episodes.clone()
        return PrefetchedResets(ahead) if ahead else None

    def _pictures(self, rows: np.ndarray) -> dict[str, Tensor]:
        """Return pictures of the interface's cameras in environments `rows` (k,): uint8 (k, H, W, 3) by key."""
        render, pictures, delay = self.engine.render_batch, self.task.interface.pictures, self.episodes.pictures
        qpos = delay.shown(rows) if delay and pictures else None
        frames = {p.key: render(rows, p.camera, p.height, p.width, qpos) for p in pictures}
        return {key: torch.from_numpy(value).to(self.device) for key, value in frames.items()}

    def _requested_pictures(self) -> dict[str, Tensor]:
        """Return the pictures of all environments; only requested pictures are rendered again."""
        every = np.arange(self.num_envs)
        rows = every if self._requested is None else every[self._requested.cpu().numpy()]
        if len(rows) == self.num_envs or not self._newest:
            return self._pictures(every)
        at, new = torch.as_tensor(rows, device=self.device), self._pictures(rows) if len(rows) else {}
        return {key: old.index_copy(0, at, new[key]) if new else old for key, old in self._newest.items()}

    def _style(self, index: int) -> Appearance:
        """Return the visual randomization of one environment's running episode."""
        sampled = self.sampled[index].tolist()
        frame = int(self.episodes.sampler.keys[index, 0]), int(self.steps[index])
        return Appearance({name: sampled[k] for k, name in self._looks.items()}, frame)

    def instruction(self, index: int) -> str:
        """Return the current instruction of one environment's episode."""
        interface = self.task.interface
        if not interface.instructions:
            return interface.instruction
        return interface.instructions[self._instruction_ids()[index]].text

    def _instruction_ids(self) -> list[int]:
        """Return the index of every running episode's instruction."""
        return self.episodes.sampler.instruction(self.episodes.steps)[:, 0].int().tolist()

    def instruction_positions(self) -> list[int]:
        """Return every running episode's instruction as an index into `instruction_weights`."""
        return [self.episodes.sampler.instruction_ids.index(k) for k in self._instruction_ids()]

    @property
    def instruction_weights(self) -> Tensor:
        """Return the probability (K,) of every instruction in the instruction set."""
        count, weights = len(self.episodes.sampler.instruction_ids), self.distribution.instruction_weights
        return torch.full((count,), 1 / max(1, count)) if weights is None else torch.tensor(weights)

    def set_instruction_weights(self, instruction_weights: Tensor) -> None:
        """Set the weights (K,) with which the next episodes draw instructions."""
        self.distribution.set_instruction_weights(instruction_weights.double().numpy())

    @property
    def distribution(self) -> EpisodeDistribution:
        """Return what episodes are drawn from."""
        return self.episodes.sampler.distribution

    @property
    def randomization(self) -> tuple[Randomize, ...]:
        """Return the present ranges of the randomized parameters."""
        return self.distribution.randomization

    def set_ranges(self, ranges: Mapping[str, tuple[float, float]]) -> None:
        """Change low and high of randomized parameters, from the next episodes on; they are saved with the state.
        Raise ConfigError, and change nothing, for a range that cannot have its effect."""
        tried = EpisodeDistribution(self.randomization)
        try:
            tried.set_ranges(ranges)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        check_randomization(tried.randomization, 1 / self.rate)
        self.distribution.set_ranges(ranges)

    @property
    def nominal_values(self) -> dict[str, float]:
        """Return the nominal values of the randomized parameters of physics, sensors and pushes; for one whose nominal
        value the robot's model has, the middle of its range."""
        owners = {r.parameter: row.owner for r in self.randomization if (row := find(r.parameter))}
        kept = [r for r in self.task.randomization if owners.get(r.parameter) in ("engine", "sensor", "episode")]
        own = {r.parameter: nominal_value(r.parameter, self.task.scene) for r in kept}
        middles = {r.parameter: float(r.quantile(np.array([0.5]))[0]) for r in kept}
        return {name: middles[name] if value is None else value for name, value in own.items()}

    def pin(self, bounds: Sequence[tuple[str, int]], chance: float) -> None:
        """Pin one parameter to one of `bounds` in a share `chance` of the next episodes, see `EpisodeDistribution`."""
        self.distribution.pin(bounds, chance)

    @property
    def pinned(self) -> Tensor:
        """Return the bound (n,) to which each running episode is pinned, see `EpisodeDistribution.draw`; -1: none."""
        return self.episodes.sampler.pinned

    @property
    def terrain(self) -> Terrain | None:
        """Return the uneven ground; None for a task on level ground."""
        return self.task.scene.ground

    @property
    def tiles(self) -> Tensor:
        """Return kind and level (n, 2) of the tiles on which the running episodes began; (n, 0) on level ground."""
        ground = self.episodes.ground
        return torch.zeros(self.num_envs, 0) if ground is None else ground.tiles

    def set_levels(self, levels: Tensor) -> None:
        """Set the level (n,) of uneven ground on which each environment's next episode begins; -1: drawn at random."""
        assert self.episodes.ground is not None
        self.episodes.ground.levels[:] = levels.cpu().numpy()

    def disturb(self, forces: Tensor) -> None:
        """Let outside forces (n, 2) in [-1, 1] act on the trunks of legged robots in the next control period: along x
        and y of the world frame, up to the share `OUTSIDE` of the robot's weight."""
        self.outside = OUTSIDE * GRAVITY / self.rate * forces.clamp(-1, 1)

    def hold_action(self) -> Tensor:
        """Return the actions (n, A) in [-1, 1] that hold each robot's position and gripper width."""
        return self.pipeline.controller.hold_action(self.episodes.chain.last_action, self.episodes.chain.gripper)

    def render(self) -> tuple[np.ndarray, ...]:
        """Return one 480x640 frame per environment, from the task's first camera."""
        camera = self.task.scene.cameras[0].name
        return tuple(self.engine.render(i, camera, 480, 640, "high") for i in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Release the engines; gymnasium calls this once, from `close`."""
        self.engine.close()
        if prefetched := vars(self).pop("prefetched", None):
            prefetched.ahead.engine.close()

    # ---- running episodes ---------------------------------------------------------------------------------------
    @property
    def seed(self) -> int:
        """Return the seed of environment 0; environment i has seed + i."""
        return self.episodes.sampler.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self.episodes.sampler.seed = seed

    @property
    def true(self) -> RobotState:
        """Return the true state of all environments."""
        return self.episodes.true

    @property
    def state(self) -> RobotState:
        """Return the measured state of all environments."""
        return self.episodes.state

    @property
    def steps(self) -> Tensor:
        """Return the number of control periods (n,) so far in each running episode."""
        return self.episodes.steps

    @property
    def sampled(self) -> Tensor:
        """Return the randomized values (n, P) of the running episodes, in the order of `randomization`."""
        return self.episodes.sampler.sampled

    @property
    def shield_events(self) -> dict[str, int]:
        """Return the number of goals that the shield changed, by reason of the change."""
        return dict(zip(REASONS, self.episodes.chain.events.tolist(), strict=True))

    @property
    def shield_changes(self) -> Tensor:
        """Return why the shield changed the goals of the last step, as bits (n,), see `shield.REASONS`."""
        return self.episodes.chain.changed

    @property
    def state_age(self) -> Tensor:
        """Return the age (n,) of the measured joint positions, s."""
        return self.episodes.sensors.state_age

    def episode_number(self, index: int) -> int:
        """Return the number of the running episode of one environment."""
        return int(self.episodes.sampler.next_episode[index]) - 1

    def episode_record(self, index: int) -> dict[str, float]:
        """Return the randomized values of one environment's running episode, and its tile of uneven ground, by name."""
        sampled = zip(self.randomization, self.sampled[index].tolist(), strict=True)
        record = {f"randomization/{r.parameter}": value for r, value in sampled}
        return record | dict(zip(("terrain/kind", "terrain/level"), self.tiles[index].tolist(), strict=False))

    def _description(self, index: int) -> dict[str, Any]:
        """Return the description of one environment's running episode, see `DivergenceRecorder.keep`."""
        numbers = {"seed": self.seed + index, "episode": self.episode_number(index), "begun": int(self.steps[index])}
        moved = [r for r in self.randomization if r not in self.task.randomization]
        ranges = self.simulation.get("ranges", {}) | as_ranges(moved)
        return numbers | {"drawn": self.episode_record(index)} | ({"ranges": ranges} if ranges else {})

    # ---- resume ------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the environment's whole state: a run that resumes from the copy is bit-identical."""
        return self.episodes.state_dict() | {"divergences": self.divergences}

    @single_threaded()
    def load_state_dict(self, state: dict[str, Any]) -> dict[str, Tensor]:
        """Restore a `state_dict`; return the observation at the moment when the state was copied."""
        self.episodes.load_state_dict(state)
        self.divergences = state["divergences"]
        if self.recorder:
            self.recorder.forget()
        self._newest = self._pictures(np.arange(self.num_envs))
        return self.episodes.observation() | self._newest
