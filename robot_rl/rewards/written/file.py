"""Write and read a written reward.

reward.py     the function
reward.json   its sha256, the task, the views that it reads, the figures of its vetting, and where it is from
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from robot_rl.rewards.written.code import BadCode, Function, compile_reward, names_read
from robot_rl.rewards.written.vetting import BAR, LEAST, Vetting
from robot_rl.rewards.written.views import Views
from robot_rl.util import strict_json
from robot_rl.util.errors import ConfigError, UserError
from robot_rl.util.files import replace_file
from robot_rl.util.limits import validate

FORMAT = 1


@dataclass(frozen=True)
class WrittenReward:
    """The source of a reward, and what is known of it."""

    source: str
    task: str
    vetting: Vetting
    provenance: dict[str, Any] = field(default_factory=dict)
    """Model, rounds, feedback and commit."""

    @cached_property
    def function(self) -> Function:
        return compile_reward(self.source)

    @cached_property
    def reads(self) -> list[str]:
        """Return the views that it reads."""
        return names_read(self.source)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()

    @property
    def refusal(self) -> str:
        """Return why this reward may not be used; empty if it may."""
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
        """Raise ConfigError where it was vetted for another task, or reads what is not there."""
        if task != self.task:
            raise ConfigError(f"the written reward was vetted on {self.task}, not {task}; write one for this task")
        if missing := [name for name in self.reads if name not in views.fields]:
            raise ConfigError(f"the written reward reads {missing[0]!r}, which {task} no longer shows; write it again")

    def summary(self) -> dict[str, Any]:
        """Return its figures for a table."""
        return {"task": self.task, "reads": ", ".join(self.reads), "sha256": self.sha256} | self.vetting.summary()


def describing(path: Path) -> Path:
    """Return the file beside a reward's source; ConfigError for a path that is no .py."""
    if path.suffix != ".py":
        raise ConfigError(f"{path} is no name for a reward: it must end in .py")
    return path.with_suffix(".json")


def save_reward(reward: WrittenReward, path: Path) -> None:
    """Write both files. A kill between them leaves a pair whose hash differs, which is refused."""
    meta = {"format": FORMAT, "task": reward.task, "sha256": reward.sha256, "reads": reward.reads}
    meta |= {"vetting": asdict(reward.vetting), "provenance": reward.provenance}
    described = describing(path)
    replace_file(path, reward.source.encode())
    replace_file(described, strict_json.dumps(meta, indent=2).encode())


def read_reward(path: Path | str) -> WrittenReward:
    """Read a reward, to look at; `load_reward` also asks whether it may be learned from."""
    path = Path(path)
    described = describing(path)
    if not path.is_file() or not described.is_file():
        missing = described if path.is_file() else path
        raise ConfigError(f"{missing} is missing; make it with `robot-rl reward write` or `robot-rl reward vet`")
    try:
        meta = json.loads(described.read_bytes())
        if meta["format"] != FORMAT:
            raise ValueError(f"format {meta['format']}, and this robot-rl reads {FORMAT}")
        vetting = Vetting(**meta["vetting"])
        validate(vetting)
        found = WrittenReward(path.read_text("utf-8"), str(meta["task"]), vetting, dict(meta["provenance"]))
        sha256 = meta["sha256"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise ConfigError(f"{described} is damaged or foreign ({reason}); vet the reward again") from None
    if found.sha256 != sha256:
        raise ConfigError(
            f"{path} was changed since it was vetted: its sha256 is not that of {described}; "
            f"vet it again: `robot-rl reward vet {found.task} {path}`"
        )
    return found


def load_reward(path: Path | str) -> WrittenReward:
    """Read a reward that may be learned from; ConfigError for one that was not vetted with success."""
    reward = read_reward(path)
    if reward.refusal:
        raise ConfigError(f"nothing is learned from {path}: {reward.refusal}")
    try:
        compile_reward(reward.source)
    except BadCode as error:
        raise ConfigError(f"{path} is no allowed reward: {error}") from None
    return reward


def read_source(path: Path) -> str:
    """Return a file's text; UserError where there is none."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); name a file with a reward") from None
