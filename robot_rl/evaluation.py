"""Evaluate a policy on held-out episodes, with confidence intervals; every episode counts once."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from policies.base import Chunk, Observation, Prefix, RunnablePolicy
from policies.execution import ChunkExecutor, Execution
from robot_rl.interface.environment import on_device
from robot_rl.interface.observation_spec import LANGUAGE
from robot_rl.util.seeds import HELD_OUT
from robot_rl.util.statistics import mean_interval, wilson


@dataclass
class Evaluation:
    """Results of finished episodes. Lists have one entry per episode; numbers cover all episodes."""

    success: list[bool] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    """Length of each episode, control periods."""
    action_change: list[float] = field(default_factory=list)
    """Mean absolute change of the action from one control period to the next; actions are in [-1, 1]."""
    metrics: dict[str, list[float]] = field(default_factory=dict)
    """For each metric of the task, its mean over every episode; NaN for an episode without a value of the metric."""
    takeovers: list[int] = field(default_factory=list)
    """Number of takeovers in each episode."""
    by_hand: list[bool] = field(default_factory=list)
    """Whether a person corrected the episode or marked its end, so that the result is not only the policy's."""
    nonfinite: int = 0
    """Number of non-finite actions of the policy, which are refused."""
    divergences: int = 0
    """Number of episodes that ended because their simulation diverged."""
    instructions: list[str] = field(default_factory=list)
    """Last instruction of each episode; []: the task has no instructions."""
    first_instructions: list[str] = field(default_factory=list)
    """First instruction of each episode; []: the task has no instructions."""
    ground: list[str] = field(default_factory=list)
    """Kind of the ground on which each episode began; []: level ground."""
    levels: list[int] = field(default_factory=list)
    """Level of difficulty of that ground."""
    returns: list[float] = field(default_factory=list)
    """Sum of the rewards of each episode."""
    reports_success: bool = True
    """Whether the environment reports success."""
    rate: float = 0.0
    """Number of control periods per second; 0: unknown."""
    held: int = 0
    """Number of control periods in which the robot held its position because inference was not finished."""
    inference_periods: int = 0
    """Duration of the longest of the last ten asynchronous inferences, control periods."""

    def summary(self) -> dict[str, Any]:
        """Return means, rates and intervals over the episodes that no person corrected or marked."""
        own = [k for k in range(len(self.success)) if not (self.by_hand and self.by_hand[k])]
        n, steps = len(own), [self.steps[k] for k in own]
        done = [self.steps[k] for k in own if self.success[k]]
        low, high = wilson(len(done), n)
        success = {"success": len(done) / n if n else None, "success_low": low, "success_high": high}
        if self.rate and sum(steps):
            success["successes_per_10_min"] = len(done) / (sum(steps) / self.rate / 600)
        returns = mean_interval([self.returns[k] for k in own] if self.returns else [])
        return (
            {
                "episodes": n,
                **(success if self.reports_success else {}),
                **({} if returns["mean"] is None else {"return": returns}),
                "steps": sum(steps) / max(1, n),
                "steps_of_successes": sum(done) / max(1, len(done)),
                "action_change": sum(self.action_change[k] for k in own) / max(1, n),
                "nonfinite": self.nonfinite,
                **({"held_share": self.held / max(1, sum(self.steps))} if self.held else {}),
                **({"inference_periods": self.inference_periods} if self.inference_periods else {}),
            }
            | {
                name: mean_interval([values[k] for k in own] if self.by_hand else values)
                for name, values in self.metrics.items()
            }
            | ({"by_instruction": self.by_instruction(own)} if self.instructions else {})
            | ({"by_ground": self.by_ground(own)} if self.ground else {})
            | self._changed(own)
        )

    def _changed(self, episodes: list[int]) -> dict[str, Any]:
        """Return the success rate of the episodes whose instruction changed; {} if there are no such episodes."""
        pairs = list(zip(self.first_instructions, self.instructions, strict=True))
        changed = [self.success[k] for k in episodes if pairs and pairs[k][0] != pairs[k][1]]
        if not changed:
            return {}
        low, high = wilson(sum(changed), len(changed))
        rate = sum(changed) / len(changed)
        return {"changed": {"episodes": len(changed), "success": rate, "success_low": low, "success_high": high}}

    def by_instruction(self, episodes: list[int]) -> dict[str, dict[str, float]]:
        """Return the number and the success rate of `episodes` (indices) per last instruction."""
        successes: dict[str, list[bool]] = {}
        for k in episodes:
            successes.setdefault(self.instructions[k], []).append(self.success[k])
        return {text: {"episodes": len(v), "success": sum(v) / len(v)} for text, v in sorted(successes.items())}

    def by_ground(self, episodes: list[int]) -> dict[str, dict[str, float]]:
        """Return number, success rate and mean errors of `episodes` (indices) per kind and per level of the ground."""
        groups: dict[str, list[int]] = {name: [] for name in sorted({self.ground[k] for k in episodes})}
        groups |= {f"level {level}": [] for level in sorted({self.levels[k] for k in episodes})}
        for k in episodes:
            groups[self.ground[k]].append(k)
            groups[f"level {self.levels[k]}"].append(k)
        errors = {name: values for name, values in self.metrics.items() if name.endswith("_error")}
        return {
            name: {"episodes": len(of), "success": sum(self.success[k] for k in of) / len(of)}
            | {error: mean for error, values in errors.items() if (mean := mean_of(values, of)) is not None}
            for name, of in groups.items()
        }

    def per_episode(self) -> dict[str, list[float]]:
        """Return success, return and metrics per episode, in the order of seeds, for paired comparisons of policies."""
        success: dict[str, list[float]] = {"success": [*map(int, self.success)]} if self.reports_success else {}
        measured = {"return": self.returns} | self.metrics
        return success | {name: [float(f"{v:.6g}") for v in values] for name, values in measured.items()}


def mean_of(values: list[float], rows: list[int]) -> float | None:
    """Return the mean of the finite values in `rows`; None if there is none."""
    finite = [values[k] for k in rows if math.isfinite(values[k])]
    return sum(finite) / len(finite) if finite else None


class ActionRepeat:
    """A policy that decides every `interval` control periods; a shorter chunk is extended by its last action."""

    def __init__(self, policy: RunnablePolicy, interval: int):
        self.policy, self.horizon, self.execute = policy, interval, interval

    def infer(self, observation: Observation, rng: torch.Generator, prefix: Prefix | None = None) -> Chunk:
        """Return action chunks (B, interval, A)."""
        actions = self.policy.infer(observation, rng).actions[:, : self.horizon]
        missing = self.horizon - actions.shape[1]
        return Chunk(torch.cat([actions, actions[:, -1:].expand(-1, missing, -1)], 1))

    def __getattr__(self, name: str) -> Any:
        if name != "peek":
            raise AttributeError(name)
        return self.policy.peek  # type: ignore[attr-defined]

    def reset(self, ids: Tensor | None = None) -> None:
        """Clear the policy's state for environments `ids`; None: for all environments."""
        self.policy.reset(ids)


def evaluate(
    policy: RunnablePolicy, env: Any, episodes: int, seed: int = HELD_OUT,
    on_step: Callable[[int, dict[str, Any]], None] | None = None, result: Evaluation | None = None,
    execution: Execution | None = None,
) -> Evaluation:  # fmt: skip
    """Run `episodes` episodes of a vector environment: environment i plays seeds seed + i, seed + i + num_envs, ...

    The list of episodes per environment is fixed, so long episodes are not under-represented. After an error, `result`
    has the finished episodes. `on_step` is called with the number of finished episodes and the step's infos. An
    `execution` with delay needs `env.hold_action()`.
    """
    env.info.require_end()
    env = on_device(env, "cpu")
    n = env.num_envs
    result = Evaluation() if result is None else result
    result.rate = env.info.rate
    runner = ChunkExecutor(policy, n, execution, getattr(env, "hold_action", None))
    runner.on_chunk = getattr(env, "show_plan", None)
    request_images = getattr(env, "request_images", None)
    for first in range(0, episodes, n):
        wanted = min(n, episodes - first)
        rng = torch.Generator().manual_seed(seed + first)
        runner.reset()
        observation, _ = env.reset(seed=seed + first)
        if LANGUAGE in observation:
            instructions = [env.instruction(i) for i in range(wanted)]
            result.instructions += instructions
            result.first_instructions += instructions
        if terrain := getattr(env, "terrain", None):
            tiles = env.tiles[:wanted].tolist()
            result.ground += [terrain.kinds[kind] for kind, _ in tiles]
            result.levels += [level for _, level in tiles]
        open_ = torch.arange(n) < wanted
        change, length, returns = torch.zeros(n), torch.zeros(n), torch.zeros(n)
        sums: dict[str, Tensor] = {}
        success, by_hand = torch.zeros(n, dtype=torch.bool), torch.zeros(n, dtype=torch.bool)
        takeovers = torch.zeros(n, dtype=torch.long)
        none = torch.zeros(n, dtype=torch.bool)
        last = None
        while open_.any():
            action = runner.act(observation, rng)
            if request_images is not None:
                request_images(runner.reads_next)
            result.held += int((open_ & runner.idle).sum())
            result.inference_periods = max(result.inference_periods, runner.longest_inference)
            observation, reward, terminated, truncated, infos = env.step(action)
            returns += torch.where(open_, reward.float(), 0.0)
            result.reports_success = "success" in infos
            result.nonfinite += int((open_ & ~action.isfinite().all(-1)).sum())
            executed = infos.get("executed", action)
            executed = torch.where(executed.isfinite().all(-1, keepdim=True), executed, 0.0 if last is None else last)
            if last is not None:
                change += torch.where(open_, (executed - last).abs().mean(-1), 0.0)
            last = executed
            length += open_.float()
            takeovers += open_ & infos.get("takeover", none)
            by_hand |= open_ & (infos.get("intervention", none) | infos.get("marked", none))
            result.divergences += int((open_ & infos.get("diverged", none)).sum())
            for name, value in infos.get("metrics", {}).items():
                seen = open_ & ~value.isnan()
                sums[name] = sums.get(name, torch.zeros(2, n)) + torch.stack([value.nan_to_num() * seen, seen])
            for k, text in enumerate(infos.get("instruction", ())):
                if open_[k]:
                    result.instructions[first + k] = text
            done = (terminated | truncated) & open_
            success |= infos.get("success", none) & open_
            open_ &= ~done
            if on_step is not None:
                on_step(first + int(wanted - open_.sum()), infos | {"done": done})
            if infos.get("handed_back"):
                runner.reset()  # drop the chunk from before the correction
            ended = (terminated | truncated).nonzero().squeeze(-1)
            if len(ended):
                runner.reset(ended)
        result.success += success[:wanted].tolist()
        result.returns += returns[:wanted].tolist()
        result.steps += length[:wanted].int().tolist()
        result.takeovers += takeovers[:wanted].tolist()
        result.by_hand += by_hand[:wanted].tolist()
        for name, (total, count) in sums.items():
            result.metrics.setdefault(name, []).extend((total / count)[:wanted].tolist())
        result.action_change += (change / length.clamp_min(2).sub(1))[:wanted].tolist()
    if request_images is not None:
        request_images(None)
    return result
