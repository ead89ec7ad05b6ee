"""Small planar tasks in batched tensors, to compare learning methods within seconds to a minute of training.

A testbed consists of functions of a state (n, S). `TestbedEnv` wraps them in the interface of a vector environment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.language import decode
from robot_rl.interface.observation_spec import LANGUAGE, PRIVILEGED, STATE, ObservationSpec
from robot_rl.interface.spec import Field, VectorSpec, numbered
from robot_rl.interface.symmetry import Mirror
from robot_rl.util.errors import ConfigError
from sim.randomization import Randomize
from sim.step.distribution import EpisodeDistribution
from sim.tasks import TESTBED

SKILLS = {"STEADY": 0.05, "CLUMSY": 0.35, "WEAK": 1.5, "MIXED": 0.35, "CHANGING": 0.35, "RANDOM": 1.5}
"""Action noise of a demonstrator by skill, as a fraction of the action range. Half of the noise is sampled per step,
half is constant over an episode."""
HABITS = {"MIXED": (-0.5, 1.0), "CHANGING": (-0.75, 1.0), "RANDOM": (0.0, 0.0)}
"""Range of a factor on the demonstrator's actions, by skill. It is sampled per episode, or as `CHANGES` says; unlike
noise, it does not average out in behavior cloning. Actions of skill RANDOM do not depend on the task."""
FADE = 0.9
"""Factor of an action's true value for every step until success."""
CHANGES = {"CHANGING": 0.2}
"""Probability per step that the factor is sampled again, by skill: then no episode is good from start to end."""


class Testbed(ABC):
    """Small task: states, dynamics, observation, outcome and a demonstrator."""

    name: ClassVar[str]
    horizon: ClassVar[int]
    observation: ClassVar[int]
    """Size of observation.state."""
    action: ClassVar[int]
    draws: ClassVar[int]
    """Number of uniform random numbers per initial state."""
    reports_success: ClassVar[bool] = True
    rewards: ClassVar[tuple[str, ...]] = ()
    """Names of the reward terms in `terms`."""
    rate: ClassVar[float] = 20.0
    """Control rate, Hz."""
    goal: ClassVar[str] = ""
    """Description of the task's goal and actions, for language models."""
    fields: ClassVar[tuple[Field, ...]] = ()
    """Fields of observation.state; empty: its numbers have no names."""
    randomization: ClassVar[tuple[Randomize, ...]] = ()
    """Parameters of the physics that differ between episodes; a state ends with their values."""
    nominal: ClassVar[dict[str, float]] = {}
    """Their nominal values."""
    disturbance: ClassVar[int] = 0
    """Number of outside forces."""
    mirror: ClassVar[Mirror | None] = None
    """Reflections of observations and actions; None: the task is not symmetric."""
    extra_inputs: ClassVar[ObservationSpec] = ObservationSpec(())
    """Spec of `observe_others`: images, instructions, and privileged state for critics and demonstrators."""

    @abstractmethod
    def start(self, u: Tensor) -> Tensor:
        """Return initial states (n, S), without parameters, from uniform random numbers u (n, draws) in [0, 1)."""

    @abstractmethod
    def advance(self, s: Tensor, a: Tensor) -> Tensor:
        """Return the next states (n, S) after actions a (n, A) in [-1, 1]."""

    def disturb(self, s: Tensor, force: Tensor) -> Tensor:
        """Return states (n, S) after one step of outside forces (n, F) in [-1, 1]; by default, there are none."""
        return s

    def observe(self, s: Tensor) -> Tensor:
        """Return observations (n, D); by default, the state."""
        return s

    def restore(self, observation: Tensor) -> Tensor:
        """Return the states (n, S), without parameters, that are observed as `observation` (n, D). ConfigError if
        observations do not tell the state."""
        if type(self).observe is not Testbed.observe:
            raise ConfigError(f"{TESTBED}{self.name} cannot start in an observed state: it has no method restore")
        return observation

    @abstractmethod
    def outcome(self, s: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return reward (n,), success (n,) and failure (n,) of the steps that reached states s by actions a. Success
        and failure end the episode."""

    def observe_others(self, s: Tensor) -> dict[str, Tensor]:
        """Return all observations (n, ...) other than observation.state, by the keys of `extra_inputs`."""
        return {}

    def terms(self, s: Tensor, a: Tensor) -> Tensor:
        """Return the reward terms (n, K), which sum to the reward."""
        return s.new_zeros(len(s), 0)

    def measure(self, s: Tensor, a: Tensor) -> dict[str, Tensor]:
        """Return metrics (n,) by name of the steps that reached states s by actions a; by default, there are none."""
        return {}

    @abstractmethod
    def progress(self, s: Tensor) -> Tensor:
        """Return the progress (n,) of states towards success, as a human observer would rate it, in m or similar."""

    @abstractmethod
    def expert(self, observation: Tensor, u: Tensor) -> Tensor:
        """Return a demonstrator's actions (n, A); u (n, 4) in [0, 1) is constant over an episode."""


def uniform(seed: Tensor, episode: Tensor, count: int) -> Tensor:
    """Return random numbers (n, count) in [0, 1) for each seed (n,) and episode (n,) (SplitMix64, Steele 2014)."""
    k = torch.arange(1, count + 1, device=seed.device)
    z = (seed * 1_000_003 + episode)[:, None] * 65_537 + k
    z = z * -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed integer
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        z = (z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))) * factor
    z = z ^ ((z >> 31) & ((1 << 33) - 1))
    return ((z >> 11) & ((1 << 53) - 1)).double().mul(2.0**-53).float().clamp(max=1 - 2**-24)


class TestbedEnv:
    """n copies of a testbed as a `robot_rl.interface.environment.VectorEnv`."""

    skills = tuple(SKILLS)
    success_ends = True
    """Whether success ends an episode."""

    def __init__(self, testbed: Testbed, num_envs: int, device: str | torch.device = "cpu"):
        self.testbed, self.num_envs, self.device = testbed, num_envs, torch.device(device)
        self.info, self.rate, self.mirror = describe(testbed), testbed.rate, testbed.mirror
        self.seed, self.episode, self.steps = (torch.zeros(num_envs, dtype=torch.long, device=device) for _ in range(3))
        privileged = testbed.extra_inputs.get(PRIVILEGED)
        self.privileged_size = privileged.shape[0] if privileged else 0
        self.distribution = EpisodeDistribution(testbed.randomization)
        """Ranges of the parameters."""
        self.pinned = torch.full((num_envs,), -1, device=device)
        """Bound (n,) to which each running episode is pinned, see `EpisodeDistribution.draw`; -1: none."""
        self.disturbance = testbed.disturbance
        self.outside = torch.zeros(num_envs, testbed.disturbance, device=device)
        """Outside forces (n, F) of the next step."""
        self.state = self._start(torch.ones(num_envs, dtype=torch.bool, device=device))

    def disturb(self, forces: Tensor) -> None:
        """Let outside forces (n, F) in [-1, 1] act in the next step."""
        self.outside = forces.clamp(-1, 1)

    @property
    def randomization(self) -> tuple[Randomize, ...]:
        """Return the present ranges of the parameters."""
        return self.distribution.randomization

    @property
    def nominal_values(self) -> dict[str, float]:
        """Return the nominal values of the parameters."""
        return self.testbed.nominal

    def set_ranges(self, ranges: Mapping[str, tuple[float, float]]) -> None:
        """Change low and high of parameters, from the next episodes on."""
        self.distribution.set_ranges(ranges)

    def pin(self, bounds: Sequence[tuple[str, int]], chance: float) -> None:
        """Pin one parameter to one of `bounds` in a share `chance` of the next episodes, see `EpisodeDistribution`."""
        self.distribution.pin(bounds, chance)

    def _start(self, begin: Tensor) -> Tensor:
        """Return initial states (n, S) of the present episodes, of which those of environments `begin` (n,) begin."""
        draws, count = self.testbed.draws, len(self.testbed.randomization)
        u = uniform(self.seed, self.episode, draws + (count + 2 if count else 0))
        state = self.testbed.start(u[:, :draws])
        if count:
            values, pinned = self.distribution.draw(u[:, draws:-2].cpu().numpy(), u[:, -2:].cpu().numpy())
            self.pinned = torch.where(begin, torch.from_numpy(pinned).to(self.device), self.pinned)
            state = torch.cat([state, torch.from_numpy(values).to(state)], 1)
        return state

    def _observation(self, state: Tensor) -> dict[str, Tensor]:
        return {STATE: self.testbed.observe(state)} | self.testbed.observe_others(state)

    def instruction(self, index: int) -> str:
        """Return the instruction of one environment's episode; the task's name if the testbed has no instructions."""
        observed = self.testbed.observe_others(self.state[index : index + 1])
        return decode(observed[LANGUAGE])[0] if LANGUAGE in observed else self.info.task

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Start an episode in every environment. Environment i has seed + i, or with options {"group": g} seed + i //
        g. Other options are ignored."""
        if seed is None:
            self.episode = self.episode + 1
        else:
            group = (options or {}).get("group", 1)
            self.seed = seed + torch.arange(self.num_envs, device=self.device) // group
            self.episode = torch.zeros_like(self.seed)
        self.steps = torch.zeros_like(self.seed)
        self.state = self._start(torch.ones_like(self.seed, dtype=torch.bool))
        return self._observation(self.state), {}

    def begin(self, where: Tensor, observation: Tensor) -> dict[str, Tensor]:
        """Start the episodes of environments `where` (n,) in the states that are observed as `observation` (n, D);
        return all observations."""
        state = self.testbed.restore(observation)
        state = torch.cat([state, self.state[:, state.shape[1] :]], 1)  # the parameters stay
        self.state = torch.where(where[:, None], state, self.state)
        self.steps = torch.where(where, 0, self.steps)
        return self._observation(self.state)

    def step(self, actions: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Step every environment; see `VectorEnv`."""
        if tuple(actions.shape) != (self.num_envs, self.info.action):
            raise ValueError(f"actions are {(self.num_envs, self.info.action)}, not {tuple(actions.shape)}")
        actions = actions.clamp(-1, 1)
        state = self.testbed.advance(self.testbed.disturb(self.state, self.outside), actions)
        self.outside = torch.zeros_like(self.outside)
        reward, success, failure = self.testbed.outcome(state, actions)
        self.steps = self.steps + 1
        ends = self.testbed.reports_success and self.success_ends
        terminated = failure | success if ends else failure
        truncated = (self.steps >= self.testbed.horizon) & ~terminated
        done = terminated | truncated
        infos: dict[str, Any] = {"success": success} if self.testbed.reports_success else {}
        if self.testbed.rewards:
            parts = self.testbed.terms(state, actions).unbind(1)
            infos["rewards"] = dict(zip(self.testbed.rewards, parts, strict=True))
        if measured := self.testbed.measure(state, actions):
            infos["metrics"] = measured
        if done.any():
            infos |= {"final_obs": self._observation(state), "_final_obs": done}
        self.episode = self.episode + done
        self.steps = torch.where(done, 0, self.steps)
        if done.any():
            state = torch.where(done[:, None], self._start(done), state)
        self.state = state
        return self._observation(self.state), reward, terminated, truncated, infos

    def hold_action(self) -> Tensor:
        """Return zero actions (n, A), which hold the position in all testbeds except swing."""
        return torch.zeros(self.num_envs, self.info.action, device=self.device)

    def progress(self) -> Tensor:
        """Return the progress (n,) of the running episodes towards success."""
        return self.testbed.progress(self.state)

    def true_values(self, action: Tensor) -> tuple[float, float]:
        """Return the values of action (1, A) and of the expert's action in the first environment: `FADE` to the power
        of the steps in which the expert, without errors, succeeds afterwards; 0 if it does not."""
        testbed, state, u = self.testbed, self.state[:1].expand(2, -1), torch.full((2, 4), 0.5, device=self.device)
        value, running = torch.zeros(2, device=self.device), torch.ones(2, dtype=torch.bool, device=self.device)
        for step in range(testbed.horizon - int(self.steps[0])):
            seen = self._observation(state)
            chosen = testbed.expert(seen.get(PRIVILEGED, seen[STATE]), u).clamp(-1, 1)
            chosen = torch.cat([action[:1].clamp(-1, 1), chosen[1:]]) if step == 0 else chosen
            state = testbed.advance(state, chosen)
            _, success, failure = testbed.outcome(state, chosen)
            value = torch.where(running & success, FADE**step, value)
            running &= ~(success | failure)
            if not running.any():
                break
        ours, best = value.tolist()
        return ours, best

    def make_demonstrator(self, seed: int, skill: str = "STEADY") -> NoisyExpert:
        """Return the testbed's demonstrator with the errors of a skill."""
        return NoisyExpert(self.testbed, self.num_envs, SKILLS[skill], seed, HABITS.get(skill), CHANGES.get(skill, 0.0))

    def state_dict(self) -> dict[str, Any]:
        own: dict[str, Any] = {"seed": self.seed, "episode": self.episode, "steps": self.steps, "state": self.state}
        if self.testbed.randomization:
            own |= {"pinned": self.pinned, "distribution": self.distribution.state_dict()}
        return own

    def load_state_dict(self, state: dict[str, Any]) -> dict[str, Tensor]:
        """Restore a `state_dict`; return the observations in the restored state."""
        for name, value in state.items():
            if name == "distribution":
                self.distribution.load_state_dict(value)
            else:
                setattr(self, name, value.to(self.device))
        return self._observation(self.state)

    def close(self) -> None:
        """Do nothing: tensors need no release."""


class NoisyExpert:
    """A testbed's expert as a demonstrator: its actions get noise per step and a bias per episode."""

    def __init__(
        self, testbed: Testbed, num_envs: int, noise: float, seed: int, habit: tuple[float, float] | None,
        changes: float = 0.0,
    ):  # fmt: skip
        self.testbed, self.noise, self.habit, self.changes = testbed, noise, habit, changes
        self.rng = torch.Generator().manual_seed(seed)
        self.u = torch.rand(num_envs, 4, generator=self.rng)
        self.bias = self._normal(num_envs)

    def _normal(self, count: int) -> Tensor:
        return 0.5 * self.noise * torch.randn(count, self.testbed.action, generator=self.rng)

    def reset(self, envs: Tensor) -> None:
        """Sample the action bias and the expert's random numbers for new episodes in environments `envs`."""
        self.u[envs] = torch.rand(len(envs), 4, generator=self.rng)
        self.bias[envs] = self._normal(len(envs))

    def act(self, observation: dict[str, Tensor]) -> Tensor:
        """Return actions (n, A) in [-1, 1]."""
        action = self.testbed.expert(observation.get(PRIVILEGED, observation[STATE]), self.u)
        if self.habit is not None:
            low, high = self.habit
            if self.changes:
                again, fresh = torch.rand(2, len(self.u), generator=self.rng)
                self.u[:, 3] = torch.where(again < self.changes, fresh, self.u[:, 3])
            action = action * (low + (high - low) * self.u[:, 3:])
        return (action + self.bias + self._normal(len(action))).clamp(-1, 1)


def describe(testbed: Testbed) -> EnvInfo:
    """Return the `EnvInfo` of a testbed."""
    unbounded, unit = [float("inf")] * testbed.observation, [1.0] * testbed.action
    return EnvInfo(
        f"{TESTBED}{testbed.name}",
        VectorSpec(testbed.fields) if testbed.fields else numbered("state", [-limit for limit in unbounded], unbounded),
        numbered("action", [-limit for limit in unit], unit),
        testbed.rate,
        ObservationSpec(tuple((key, field) for key, field in testbed.extra_inputs.items() if key != PRIVILEGED)),
        demonstrator=True,
        reports_success=testbed.reports_success,
        rewards=testbed.rewards,
        horizon=testbed.horizon,
    )
