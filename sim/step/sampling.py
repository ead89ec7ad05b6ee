"""Sampling of initial conditions and randomized values from (seed, episode)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from robot_rl.interface.robot import RobotSpec
from robot_rl.util.errors import ConfigError
from robot_rl.util.rows import Rows
from sim.commands import PURPOSE as COMMAND
from sim.randomization import episode_rng
from sim.randomization.noise import episode_keys, normals, uniforms
from sim.step.distribution import EpisodeDistribution
from sim.step.placement import Placement
from sim.tasks.base import Task

_NOISE, _PUSH, _BIAS = 0, 2, 3
"""Purposes of an episode's random numbers, besides COMMAND; every purpose has a random number key of its own."""
TRAINING = "training"
"""Instruction set without the held-out instructions."""
CHANGE_WINDOW = (0.03, 0.4)
"""Earliest and latest time in an episode at which its instruction changes, as shares of the horizon."""
_HELD_OUT = {TRAINING: (False,), "held-out": (True,), "all": (False, True)}


def chosen(task: str, instructions: Sequence[tuple[str, bool]], instruction_set: str) -> list[int]:
    """Return the indices of the instructions in `instruction_set` of `TaskEnv`; [] for a task without instructions.

    `instructions` are pairs of text and held-out flag. A text selects held-out instructions only if no other
    instruction begins with it.
    """
    if instruction_set in _HELD_OUT:
        ids = [k for k, (_, held_out) in enumerate(instructions) if held_out in _HELD_OUT[instruction_set]]
    else:
        begin = [k for k, (text, _) in enumerate(instructions) if text.startswith(instruction_set)]
        ids = [k for k in begin if not instructions[k][1]] or begin
    if instruction_set != TRAINING and not ids:
        has = f"; it has: {', '.join(text for text, _ in instructions)}" if instructions else ""
        raise ConfigError(f"task {task!r} has no instruction of {instruction_set!r}{has}")
    return ids


@dataclass(frozen=True)
class EpisodeSample:
    """Initial conditions of k episodes."""

    values: dict[str, np.ndarray]
    """Values (k,) of every randomized parameter."""
    joints: np.ndarray
    """Initial joint positions (k, J), rad."""
    objects: dict[str, np.ndarray]
    """Initial positions (k, 7 + J) of every object and its own joints, by name."""
    bias_direction: Tensor
    """Factor (k, biases) in [-1, 1] that gives every sensor bias its direction."""
    start: np.ndarray | None = None
    """Shift, m, and orientation w x y z (k, 7) of the trunk at the start; None: where it stands, upright."""


def _start(values: dict[str, np.ndarray], count: int) -> np.ndarray | None:
    """Return the initial poses (count, 7) of trunks, see `EpisodeSample.start`."""
    if not any(name.startswith("start.") for name in values):
        return None
    zero = np.zeros(count)
    roll, pitch, height = (values.get(f"start.{name}", zero) for name in ("roll", "pitch", "height"))
    cr, sr, cp, sp = np.cos(roll / 2), np.sin(roll / 2), np.cos(pitch / 2), np.sin(pitch / 2)
    return np.stack([zero, zero, height, cp * cr, cp * sr, sp * cr, -sp * sr], 1)


class EpisodeSampler(Rows):
    """Sample episode e of environment i from (seed + i, e): on the CPU at a reset, on the device in control periods."""

    ROWS = ("keys", "sampled", "pinned", "push_speed", "push_every", "instructions", "changes_at")

    def __init__(
        self, task: Task, robot: RobotSpec, columns: list[int], biases: int, num_envs: int, seed: int,
        device: torch.device,
    ):  # fmt: skip
        """`columns`: indices of the task's parameters that are randomized. All parameters of the task are sampled, so
        disabling one parameter does not change another."""
        self.robot, self.seed, self.biases, self.device = robot, seed, biases, device
        self.rate = task.interface.controller.rate
        self.declared, self.columns = len(task.randomization), columns
        self.distribution = EpisodeDistribution([task.randomization[k] for k in columns])
        """Ranges and chances; forks of this sampler share it."""
        self.names = tuple(r.parameter for r in self.distribution.randomization)
        self.further = 3 * max(0, len(task.scene.poses) - 1)
        """Number of bias directions of all tracked poses except the first."""
        self.placements = [Placement.by_name(box, self.names) for box in task.scene.objects]
        self.pushes = "push.speed" in self.names
        self.next_episode = np.zeros(num_envs, np.int64)  # number of each environment's next episode
        self.group = 1  # number of consecutive environments that share a seed
        self.keys = torch.zeros(num_envs, 3, dtype=torch.long, device=device)
        """Random number keys of the running episodes (n, 3): noise, commands, pushes."""
        self.sampled = torch.zeros(num_envs, len(self.names), dtype=torch.double, device=device)
        """Randomized values (n, P) of the running episodes, in the order of `names`."""
        self.pinned = torch.full((num_envs,), -1, device=device)
        """Bound (n,) to which each running episode is pinned, see `EpisodeDistribution.draw`."""
        self.push_speed = torch.zeros(num_envs, device=device)  # velocity of a push (n,), m/s
        self.push_every = torch.zeros(num_envs, dtype=torch.long, device=device)
        """Control periods between two pushes (n,); 0: no pushes."""
        self.instruction_ids = list(range(len(task.interface.instructions)))
        """Indices of the instructions that episodes draw from."""
        self.instruction_change_prob = 0.0  # share of episodes with a change of the instruction
        self.horizon = task.interface.horizon
        self.instructions = torch.zeros(num_envs, 2, device=device)
        """Instruction indices (n, 2) of the running episodes, before and after the change."""
        self.changes_at = torch.full((num_envs,), self.horizon, device=device)
        """Control period (n,) at which the second instruction begins."""
        self.places = np.array(task.scene.places).reshape(-1, 2)

    def fork(self) -> Self:
        other = super().fork()
        other.next_episode = self.next_episode.copy()
        return other

    def sample(self, ids: np.ndarray) -> EpisodeSample:
        """Sample the next episodes of environments `ids` (k,)."""
        joints, numbers = len(self.robot.joints), self.next_episode[ids]
        seeds = [self.seed + int(i) // self.group for i in ids]
        rngs = [episode_rng(seed, int(number)) for seed, number in zip(seeds, numbers, strict=True)]
        u = np.stack([rng.random(self.declared + joints + self.biases - self.further) for rng in rngs])
        at = torch.as_tensor(ids, device=self.device)
        keys = [episode_keys(seeds, numbers, purpose) for purpose in (_NOISE, COMMAND, _PUSH)]
        self.keys[at] = torch.stack(keys, 1).to(self.device)
        self.next_episode[ids] += 1
        spare = np.zeros((len(ids), 2))
        if self.distribution.pins:
            spare = uniforms(episode_keys(seeds, numbers, _BIAS), torch.tensor(1), 2).numpy()
        sampled, pinned = self.distribution.draw(u[:, self.columns], spare)
        self.pinned[at] = torch.from_numpy(pinned).to(self.device)
        self.sampled[at] = torch.from_numpy(sampled).to(self.device)
        values = {name: sampled[:, k] for k, name in enumerate(self.names)}
        zero = np.zeros(len(ids))
        self.push_speed[at] = torch.from_numpy(values.get("push.speed", zero)).float().to(self.device)
        every = torch.from_numpy(values.get("push.interval", zero) * self.rate).long()
        self.push_every[at] = every.to(self.device)
        offset = values.get("robot.home_offset", zero)[:, None]
        home = np.asarray(self.robot.home) + offset * (2 * u[:, self.declared : self.declared + joints] - 1)
        home = home.clip([j.low for j in self.robot.joints], [j.high for j in self.robot.joints])
        # Separate numbers: further objects do not change the samples of a scene with one object.
        more = uniforms(episode_keys(seeds, numbers, _BIAS), torch.tensor(0), self.further)
        direction = torch.cat([torch.from_numpy(2 * u[:, self.declared + joints :] - 1).float(), 2 * more - 1], 1)
        direction = direction.to(self.device)
        objects = {p.box.name: p.poses(values, len(ids)) for p in self.placements}
        if len(self.places):  # drawn last: a task without places has the same numbers above
            assigned = np.stack([self.places[rng.permutation(len(self.places))] for rng in rngs], 1)
            objects = {p.box.name: p.poses(values, len(ids), assigned[k]) for k, p in enumerate(self.placements)}
        if self.instruction_ids:
            first = [self._draw(rng) for rng in rngs]
            second, changes_at = first, [self.horizon] * len(first)
            if self.instruction_change_prob:
                changes = [rng.random() < self.instruction_change_prob for rng in rngs]
                low, high = (int(share * self.horizon) for share in CHANGE_WINDOW)
                when = [int(rng.integers(low, high)) for rng in rngs]
                second = [self._draw(rng, k) if c else k for rng, k, c in zip(rngs, first, changes, strict=True)]
                changes_at = [w if c else self.horizon for w, c in zip(when, changes, strict=True)]
            drawn = [[self.instruction_ids[a], self.instruction_ids[b]] for a, b in zip(first, second, strict=True)]
            self.instructions[at] = torch.tensor(drawn, dtype=torch.float, device=self.device)
            self.changes_at[at] = torch.tensor(changes_at, device=self.device)
        return EpisodeSample(values, home, objects, direction, _start(values, len(ids)))

    def _draw(self, rng: np.random.Generator, excluded: int | None = None) -> int:
        """Draw an index into `instruction_ids` other than `excluded`."""
        weights = self.distribution.instruction_weights
        if weights is None and excluded is None:
            return int(rng.integers(len(self.instruction_ids)))
        shares = np.ones(len(self.instruction_ids)) if weights is None else weights.copy()
        if excluded is not None:
            shares[excluded] = 0.0
        return int(rng.choice(len(self.instruction_ids), p=shares / shares.sum()))

    def instruction(self, steps: Tensor, ids: Tensor | None = None) -> Tensor:
        """Return the indices (k, 1) of the instructions at control periods `steps` (k,) of environments `ids`."""
        pair, change = (rows if ids is None else rows[ids] for rows in (self.instructions, self.changes_at))
        return torch.where(steps < change, pair[:, 0], pair[:, 1])[:, None]

    def noise(self, steps: Tensor, width: int, ids: Tensor | None = None) -> Tensor:
        """Return standard normal numbers (k, width) for control periods `steps` (k,) of environments `ids`."""
        return normals(self._keys(_NOISE, ids), steps, width)

    def command_keys(self, ids: Tensor | None = None) -> Tensor:
        """Return the command keys (k,) of environments `ids`."""
        return self._keys(COMMAND, ids)

    def _keys(self, purpose: int, ids: Tensor | None) -> Tensor:
        keys = self.keys[:, purpose]
        return keys if ids is None else keys[ids]

    def staggered(self, horizon: int) -> Tensor:
        """Return a random first control period (n,) in [0, horizon) per environment."""
        counter = torch.tensor(-1, device=self.device)
        return (uniforms(self.keys[:, _PUSH], counter, 1)[:, 0] * horizon).long()

    def tile_numbers(self, ids: Tensor) -> Tensor:
        """Return random numbers (k, 2) in [0, 1) that choose the tiles of environments `ids` for their episodes."""
        return uniforms(self._keys(_PUSH, ids), torch.tensor(-2, device=self.device), 2)

    def push_velocity(self, steps: Tensor) -> Tensor:
        """Return the velocities (n, 3) float64, m/s, world frame, that pushes add before control periods `steps` (n,).
        Directions are random and horizontal. Rows of environments without a push are 0."""
        due = (self.push_every > 0) & (steps > 0) & (steps % self.push_every.clamp_min(1) == 0)
        angle = 2 * math.pi * uniforms(self.keys[:, _PUSH], steps, 1)[:, 0].double()
        speed = self.push_speed.double() * due
        return torch.stack([speed * angle.cos(), speed * angle.sin(), torch.zeros_like(speed)], 1)
