"""Save and read a written reward, and use the reward in place of an environment's own reward.

reward.py     the function
reward.json   sha256 of the function, task, views that the function reads, vetting metrics, provenance
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from policies.base import Observation
from robot_rl.interface.environment import EnvInfo, EnvWrapper
from robot_rl.rewards.written.code import BadCode, Function, compile_reward, evaluate, names_read
from robot_rl.rewards.written.vetting import BAR, LEAST, Vetting
from robot_rl.rewards.written.views import Views, final_observation
from robot_rl.util import strict_json
from robot_rl.util.errors import ConfigError, UserError
from robot_rl.util.files import replace_file
from robot_rl.util.limits import validate

FORMAT = 1


@dataclass(frozen=True)
class WrittenReward:
    """Source code of a reward with the reward's task, vetting metrics and provenance."""

    source: str
    task: str
    vetting: Vetting
    provenance: dict[str, Any] = field(default_factory=dict)
    """Origin of the reward: model, rounds, feedback and commit."""

    @cached_property
    def function(self) -> Function:
        return compile_reward(self.source)

    @cached_property
    def reads(self) -> list[str]:
        """Return the names of the views that the reward reads."""
        return names_read(self.source)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()

    @property
    def refusal(self) -> str:
        """Return the reason why this reward may not be used for training; empty if it may be used."""
        v = self.vetting
        if v.passed:
            return ""
        if not v.enough:
            return f"it was vetted on {v.successes} successes and {v.failures} failures, and {LEAST} are needed"
        return (
            f"of a success and a failure with the same start it pays the success more in {v.auc:.1%}, and at least "
            f"{BAR:.0%} are needed (mean return {v.success_return:.3g} of {v.successes} successes, "
            f"{v.failure_return:.3g} of {v.failures} failures)"
        )

    def require_task(self, task: str, views: Views) -> None:
        """Raise ConfigError if the reward was vetted for another task or reads a view that `views` lacks."""
        if task != self.task:
            raise ConfigError(f"the written reward was vetted on {self.task}, not {task}; write one for this task")
        if missing := [name for name in self.reads if name not in views.fields]:
            raise ConfigError(f"the written reward reads {missing[0]!r}, which {task} no longer shows; write it again")

    def summary(self) -> dict[str, Any]:
        """Return the reward's metrics for a table."""
        return {"task": self.task, "reads": ", ".join(self.reads), "sha256": self.sha256} | self.vetting.summary()


def description_path(path: Path) -> Path:
    """Return the path of the JSON file beside a reward's source; ConfigError unless the source is a .py file."""
    if path.suffix != ".py":
        raise ConfigError(f"{path} is no name for a reward: it must end in .py")
    return path.with_suffix(".json")


def save_reward(reward: WrittenReward, path: Path) -> None:
    """Write the .py and .json file. A kill between the writes leaves different hashes: reading refuses the pair."""
    meta = {"format": FORMAT, "task": reward.task, "sha256": reward.sha256, "reads": reward.reads}
    meta |= {"vetting": asdict(reward.vetting), "provenance": reward.provenance}
    described = description_path(path)
    replace_file(path, reward.source.encode())
    replace_file(described, strict_json.dumps(meta, indent=2).encode())


def read_reward(path: Path | str) -> WrittenReward:
    """Read a reward, also one that failed vetting, to show it; `load_reward` reads a reward for training."""
    path = Path(path)
    described = description_path(path)
    if not path.is_file() or not described.is_file():
        missing = described if path.is_file() else path
        raise ConfigError(f"{missing} is missing; make it with `robot-rl reward write` or `robot-rl reward vet`")
    try:
        meta = json.loads(described.read_bytes())
        if meta["format"] != FORMAT:
            raise ValueError(f"format {meta['format']}, and this robot-rl reads {FORMAT}")
        vetting = Vetting(**meta["vetting"])
        validate(vetting)
        reward = WrittenReward(path.read_text("utf-8"), str(meta["task"]), vetting, dict(meta["provenance"]))
        sha256 = meta["sha256"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise ConfigError(f"{described} is damaged or foreign ({reason}); vet the reward again") from None
    if reward.sha256 != sha256:
        raise ConfigError(
            f"{path} was changed since it was vetted: its sha256 is not that of {described}; "
            f"vet it again: `robot-rl reward vet {reward.task} {path}`"
        )
    return reward


def load_reward(path: Path | str) -> WrittenReward:
    """Read a reward for training; ConfigError unless the reward passed vetting and its code is allowed."""
    reward = read_reward(path)
    if reward.refusal:
        raise ConfigError(f"nothing is learned from {path}: {reward.refusal}")
    try:
        compile_reward(reward.source)
    except BadCode as error:
        raise ConfigError(f"{path} is no allowed reward: {error}") from None
    return reward


def read_source(path: Path) -> str:
    """Return a file's text; UserError if it cannot be read."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); name a file with a reward") from None


def written_reward_info(info: EnvInfo) -> EnvInfo:
    """Return a task's `EnvInfo` with a written reward; ConfigError for a task with several instructions."""
    if info.interface is not None and info.interface.instructions:
        raise ConfigError(f"{info.task} asks for one of several things, and a written reward knows only one")
    return replace(info, rewards=())


class RewardWrapper(EnvWrapper):
    """Vector environment with a written reward; the reward is 0 in environments whose physics diverged."""

    def __init__(self, env: Any, reward: WrittenReward):
        """Raise ConfigError if the reward was written for another task."""
        super().__init__(env)
        self.written = reward
        self.info, self.views = written_reward_info(env.info), Views.of(env)
        reward.require_task(env.info.task, self.views)
        self.before: Observation = {}

    def reset(self, **kwargs: Any) -> Any:
        first = self.env.reset(**kwargs)
        self.before = first[0]
        return first

    def step(self, actions: Tensor) -> tuple[Observation, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Execute actions (n, A) for one control period; UserError if a reward is not finite."""
        following, _, terminated, truncated, infos = self.env.step(actions)
        infos.pop("rewards", None)
        last = final_observation(following, terminated | truncated, infos)
        try:
            reward = evaluate(self.written.function, self.views(last), self.views(self.before), actions.clamp(-1, 1))
        except BadCode as error:
            raise UserError(f"the written reward of {self.written.task}: {error}") from None
        broken = infos.get("diverged", torch.zeros_like(terminated))
        if not bool((reward.isfinite() | broken).all()):
            raise UserError(
                f"the written reward of {self.written.task} is not finite in {int((~reward.isfinite()).sum())} of "
                f"{len(reward)} environments; have it revised: `robot-rl reward write --feedback`"
            )
        self.before = following
        return following, torch.where(broken, 0.0, reward), terminated, truncated, infos

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Restore the state from `state_dict`; return the observation of the restored state."""
        self.before = super().load_state_dict(state)
        return self.before
