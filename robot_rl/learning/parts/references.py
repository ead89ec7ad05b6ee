"""Reference sequences of states: nearest frames, tracking reward, and weights of starts by how well they are tracked.

    distance  d(s, r)^2 = sum over fields of the mean squared difference / the field's variance over all references
    nearest   the frame of a skill's references with the smallest d: the edge of the graph from s to that skill
    time      d / the references' mean d per step: steps in which s could become that frame
    reward    exp(-sharpness d(s, r)^2)
    weights   softmax(-5 mean reward), mixed with uniform ones

Yu et al. 2025, "SkillMimic-V2: Learning Robust and Generalizable Interaction Skills from Sparse and Noisy
Demonstrations" (arXiv 2505.02094).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from robot_rl.interface.spec import VectorSpec
from robot_rl.util.errors import ConfigError, UnknownName

SEGMENTS = 10
"""Parts of a reference with weights of their own."""
TEMPERATURE = 5.0
"""Factor of the mean reward in the weights, as published."""
RATE = 0.1
"""Weight of a new mean reward in the running one."""


class References:
    """Frames of all references, one after the other, F in all, of C references and K skills."""

    def __init__(self, episodes: Sequence[Tensor], spec: VectorSpec, command: str, device: torch.device | str = "cpu"):
        """Read references (T, D) of states. The field `command` tells the skill and must not change in a reference; if
        it is empty, all show the same skill."""
        names = [field.name for field in spec.fields]
        if command and command not in names:
            raise UnknownName("field of observation.state for the option references.command:", command, names)
        for k, states in enumerate(episodes):
            if len(states) < 2:
                raise ConfigError(f"reference {k} has {len(states)} states, and motion takes two: leave it out")
        self.command = spec.slice(command) if command else slice(0, 0)
        self.frames = torch.cat(list(episodes)).to(device)
        """States (F, D)."""
        self.length = torch.tensor([len(states) for states in episodes], device=device)
        self.first = self.length.cumsum(0) - self.length
        """Number of frames (C,) of each reference, and the place (C,) of its first one."""
        self.clip = torch.repeat_interleave(torch.arange(len(episodes), device=device), self.length)
        """Reference (F,) of each frame."""
        told = self.frames[:, self.command]
        if changed := (told != told[self.first][self.clip]).any(1).nonzero().flatten().tolist():
            raise ConfigError(
                f"reference {int(self.clip[changed[0]])} changes its {command}, and a reference shows one skill: "
                "record episodes with one each, or name another field with --references.command"
            )
        self.commands, self.skill = told[:1], torch.zeros_like(self.clip)
        """Values (K, ...) of the command, and the skill (F,) of each frame."""
        if command:
            self.commands, self.skill = told.unique(dim=0, return_inverse=True)
        self.deviation = torch.zeros(spec.size, device=device)
        """Standard deviation (D,) of the component's field; 0 for the command and for constant fields."""
        self.scale = torch.full_like(self.deviation, torch.inf)
        """Difference (D,) of a component that counts as the distance 1."""
        for field in spec.fields:
            part = spec.slice(field.name)
            deviation = self.frames[:, part].var(0, correction=0).mean().sqrt()
            if field.name != command and deviation > 1e-6:  # a constant field tells nothing
                self.deviation[part], self.scale[part] = deviation, deviation * len(field.dims) ** 0.5
        moved = self.distance(self.frames[1:], self.frames[:-1])[self.clip[1:] == self.clip[:-1]]
        self.speed = float(moved.mean().clamp_min(1e-6))
        """Mean distance of two successive frames."""

    def distance(self, state: Tensor, other: Tensor) -> Tensor:
        """Return the distance (...) between states (..., D), 1 for about one standard deviation in one field."""
        return ((state - other) / self.scale).norm(dim=-1)

    def nearest(self, state: Tensor, skill: Tensor) -> tuple[Tensor, Tensor]:
        """Return the frame (n,) of each skill (n,) that is nearest to each state (n, D), and its distance (n,)."""
        between = torch.cdist(state / self.scale, self.frames / self.scale, compute_mode="donot_use_mm_for_euclid_dist")
        between = between.masked_fill(self.skill != skill[:, None], torch.inf)
        distance, frame = between.min(1)
        return frame, distance

    def told(self, state: Tensor, skill: Tensor) -> Tensor:
        """Return states (n, D) with the command of each skill (n,)."""
        state = state.clone()
        state[:, self.command] = self.commands[skill]
        return state

    def left(self, frame: Tensor) -> Tensor:
        """Return the numbers (n,) of frames that follow frames (n,) in their references."""
        clip = self.clip[frame]
        return self.first[clip] + self.length[clip] - 1 - frame

    def next(self, frame: Tensor) -> Tensor:
        """Return the frames (n,) after frames (n,); the last one of a reference stays."""
        return frame + (self.left(frame) > 0)

    def segment(self, frame: Tensor) -> Tensor:
        """Return the segment (n,) of frames (n,), counted through all references."""
        clip = self.clip[frame]
        return clip * SEGMENTS + (frame - self.first[clip]) * SEGMENTS // self.length[clip]

    def draw(self, weights: Tensor, u: Tensor) -> Tensor:
        """Return frames (n,) by weights (C, S) of references and their segments, from uniform u (n, 2) in [0, 1)."""
        total = weights.flatten().double().cumsum(0)
        cell = torch.searchsorted(total, u[:, 0].double() * total[-1], right=True).clamp_max(len(total) - 1)
        clip, segment = cell // SEGMENTS, cell % SEGMENTS
        begin, end = (((segment + k) * self.length[clip] + SEGMENTS - 1) // SEGMENTS for k in (0, 1))
        place = begin + (u[:, 1] * (end - begin)).long()
        return self.first[clip] + torch.minimum(place, self.length[clip] - 1)  # short references lack some segments


def adaptive(mean: Tensor, uniform: float) -> Tensor:
    """Return weights (..., n) that sum to 1, larger for a smaller mean reward (..., n), of which a share is uniform."""
    return (1 - uniform) * (-TEMPERATURE * mean).softmax(-1) + uniform / mean.shape[-1]


class StartWeights:
    """Weights (C, S) of references and of their segments, by the mean reward of the episodes that tracked from there.

    A reference that is tracked badly on average has more weight, and in it the segments that are."""

    def __init__(self, references: int, uniform: float, device: torch.device | str = "cpu"):
        self.uniform = uniform
        self.mean = torch.zeros(references, SEGMENTS, device=device)
        """Running mean reward (C, S) by the segment in which the tracking began."""

    def weights(self) -> Tensor:
        """Return the weights (C, S), which sum to 1."""
        return adaptive(self.mean.mean(1), self.uniform)[:, None] * adaptive(self.mean, self.uniform)

    def report(self, segment: Tensor, reward: Tensor) -> None:
        """Take in the mean rewards (n,) of episodes that began in segments (n,), counted through all references."""
        total, count = (torch.zeros_like(self.mean).flatten() for _ in range(2))
        total, count = total.index_add(0, segment, reward), count.index_add(0, segment, torch.ones_like(reward))
        new = (total / count.clamp_min(1)).view_as(self.mean)
        self.mean = torch.where(count.view_as(self.mean) > 0, self.mean + RATE * (new - self.mean), self.mean)
