"""Episodes that start in recorded states and are paid for tracking what was recorded next.

    recorded   A: a0 a1 a2 a3 ...      B: b0 b1 b2 b3 ...
    plain      start a2, told A, tracks a3 a4 ...
    linked     start a2, told B, no reward for some steps, then tracks on from the frame of B nearest to a2
    noisy      start a2 + noise, told A, no reward for some steps, then tracks on from the frame of A nearest to it

SkillMimic-V2: Yu et al. 2025 (arXiv 2505.02094). Plain starts are reference state initialization: Peng et al. 2018,
"DeepMimic" (arXiv 1804.02717). Without reward for as many steps as the references take for the same distance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robot_rl.interface.environment import EnvWrapper
from robot_rl.interface.observation_spec import STATE
from robot_rl.learning.parts.references import References, StartWeights
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt

COUNTERS = ("frame", "segment", "wait", "held", "count")
"""Whole numbers (n,) that a `ReferenceEnv` keeps of each running episode."""


@dataclass(frozen=True)
class ReferencesConfig:
    """Start states from references, and the reward for tracking them."""

    command: str = "skill"
    """Field of observation.state that tells the skill: references of one skill have the same value. Empty: all show
    the same skill."""
    links: Fraction = 0.3
    """Share of the episodes that start in a reference of another skill than they are told."""
    noisy: Fraction = 0.1
    """Share of the episodes that start beside the references."""
    noise: NonNegativeFloat = 0.3
    """Standard deviation of these starts, in those of each field over all references."""
    uniform: Fraction = 0.5
    """Share of the starts that are drawn uniformly; the others are in references and segments with little reward."""
    hold: PositiveInt = 20
    """Steps for which the last state of a reference is tracked; then the episode ends as by a time limit."""
    sharpness: PositiveFloat = 2.0
    """Factor of the squared distance in the reward exp(-sharpness d^2)."""


class ReferenceEnv(EnvWrapper):
    """An environment whose episodes start in states of references, with the reward of tracking them.

    Success ends no episode: it would end the reward, and policies would learn to stop just before it."""

    frame: Tensor
    """Frame that the state should be like."""
    segment: Tensor
    """Segment of the references where the tracking began."""
    wait: Tensor
    """Number of steps that are still without reward."""
    held: Tensor
    """Number of steps in which the last frame was tracked."""
    count: Tensor
    """Number of steps with reward."""

    def __init__(self, env: Any, episodes: Sequence[Tensor], config: ReferencesConfig):
        """`episodes`: references (T, D) of observation.state. ConfigError if the environment cannot start in them."""
        super().__init__(env)
        if not hasattr(env, "begin"):
            raise ConfigError(f"task {env.info.task!r} cannot start in a recorded state: only testbeds can")
        self.config, n, env.success_ends = config, env.num_envs, False
        self.device = torch.device(getattr(env, "device", "cpu"))
        self.references = References(episodes, env.info.state, config.command, self.device)
        if config.links and len(self.references.commands) < 2:
            raise ConfigError(
                "all references show the same skill, so none can be linked: record another, name the field that tells "
                "the skill with --references.command, or set --references.links 0"
            )
        self.starts = StartWeights(len(episodes), config.uniform, self.device)
        self.rng = torch.Generator().manual_seed(0)
        for name in COUNTERS:
            setattr(self, name, torch.zeros(n, dtype=torch.long, device=self.device))
        self.total = torch.zeros(n, device=self.device)
        """Sum (n,) of the running episode's rewards."""

    def _begin(self, where: Tensor) -> dict[str, Tensor]:
        """Start the episodes of environments `where` (n,); return all observations."""
        known, n = self.references, len(where)
        u = torch.rand(n, 5, generator=self.rng).to(self.device)
        noise = torch.randn(n, known.frames.shape[1], generator=self.rng).to(self.device)
        frame = known.draw(self.starts.weights(), u[:, :2])
        skill, count = known.skill[frame], len(known.commands)
        linked, noisy = u[:, 2] < self.config.links, u[:, 3] < self.config.noisy
        other = (skill + 1 + (u[:, 4] * (count - 1)).long()) % count
        skill = torch.where(linked, other, skill)
        state = known.frames[frame] + noisy[:, None] * self.config.noise * known.deviation * noise
        observation: dict[str, Tensor] = self.env.begin(where, known.told(state, skill))
        near, distance = known.nearest(observation[STATE], skill)  # the environment may have moved what overlapped
        plain = ~(linked | noisy)
        frame = torch.where(plain, frame, near)
        wait = torch.where(plain, 0, (distance / known.speed).ceil().long())
        for name, value in (("frame", frame), ("wait", wait), ("segment", known.segment(frame))):
            setattr(self, name, torch.where(where, value, getattr(self, name)))
        self.held, self.count = self.held.masked_fill(where, 0), self.count.masked_fill(where, 0)
        self.total = self.total.masked_fill(where, 0.0)
        return observation

    def reset(self, *, seed: int | None = None, **kwargs: Any) -> Any:
        if seed is not None:
            self.rng.manual_seed(seed)
        _, infos = self.env.reset(seed=seed, **kwargs)
        return self._begin(torch.ones(self.env.num_envs, dtype=torch.bool, device=self.device)), infos

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        """Step the environment; return the reward of tracking in place of the task's."""
        observation, _, terminated, truncated, infos = self.env.step(actions)
        final, paid = infos.get("final_obs", observation), self.wait == 0
        frame = torch.where(paid, self.references.next(self.frame), self.frame)
        self.held, self.frame = self.held + (paid & (frame == self.frame)), frame
        truncated = truncated | (self.held >= self.config.hold) & ~terminated
        done = terminated | truncated
        distance = self.references.distance(final[STATE], self.references.frames[frame])
        reward = torch.where(paid, (-self.config.sharpness * distance.square()).exp(), 0.0)
        self.wait = (self.wait - 1).clamp_min(0)
        self.total, self.count = self.total + reward, self.count + paid
        if done.any():
            lost = self.references.left(frame) + self.config.hold - self.held  # rewards that a failure cut off count 0
            steps = (self.count + terminated * lost).clamp_min(1)
            self.starts.report(self.segment[done], (self.total / steps)[done])
            observation, infos = self._begin(done), infos | {"final_obs": final, "_final_obs": done}
        return observation, reward, terminated, truncated, infos

    @property
    def curriculum_metrics(self) -> dict[str, float]:
        """Return the mean reward per step, over all references and of the one that is tracked worst."""
        mean = self.starts.mean.mean(1)
        return {"references/reward": float(mean.mean()), "references/worst": float(mean.min())}

    def wrapper_state(self) -> dict[str, Any]:
        """Return the rewards by segment, the generator, and the running episodes' values."""
        own = {name: getattr(self, name).clone() for name in (*COUNTERS, "total")}
        return own | {"mean": self.starts.mean.clone(), "rng": self.rng.get_state()}

    def load_wrapper_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `wrapper_state`."""
        for name in (*COUNTERS, "total"):
            setattr(self, name, state[name].to(self.device, copy=True))
        self.starts.mean = state["mean"].to(self.device, copy=True)
        self.rng.set_state(state["rng"])
