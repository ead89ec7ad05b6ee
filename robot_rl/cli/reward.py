"""`robot-rl reward`: have a reward written by a language model, and vet it before anything is learned from it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from robot_rl.assistant.model import ModelConfig
from robot_rl.util.limits import PositiveInt, Seed


@dataclass(frozen=True)
class EpisodeOptions:
    """The task, and the scripted episodes on which a reward is vetted."""

    skill: str = "STEADY"
    """Skill of the task's demonstrator."""
    policy: Path | None = None
    """Bundle or run whose policy acts in place of a demonstrator."""
    seed: Seed = 0
    """Seed of everything random."""
    goal: str = ""
    """What is to be done, in words; default: the task's own instruction."""
    episode_steps: PositiveInt | None = None
    """Longest episode of a gym: task, steps; needed where its environment has no time limit. None: as it says."""
    env_python: Path | None = None
    """Python of another virtual environment that runs a gym: task."""
    threads: PositiveInt = 1
    """Threads of a policy's networks."""


@dataclass
class _OnTask:
    """A command about one task."""

    task: tyro.conf.Positional[str]
    """Name of the task, as for `robot-rl train`."""

    def opened(self, episodes: EpisodeOptions) -> tuple[Any, str]:
        """Return the environments of the task and its goal in words; ConfigError where there is none."""
        import torch

        from robot_rl.rewards.written.env import paid_info
        from robot_rl.rewards.written.vetting import STARTS
        from robot_rl.rewards.written.writer import goal_of
        from robot_rl.util.errors import ConfigError
        from sim.make import describe, make

        torch.set_num_threads(episodes.threads)
        info = paid_info(describe(self.task, episodes.env_python, episodes.episode_steps))
        if not info.reports_success:
            raise ConfigError(f"{self.task} reports no success, so no reward can be vetted on it")
        env: Any = make(self.task, STARTS, episodes.env_python, episodes.episode_steps)
        goal = episodes.goal or goal_of(env)
        if not goal:
            raise ConfigError(f"{self.task} does not say in words what is to be done; say it with --goal")
        return env, goal


def played(env: Any, episodes: EpisodeOptions) -> Any:
    """Return the scripted episodes, with a progress bar."""
    from policies.bundle import load_bundle
    from robot_rl.cli.console import bar
    from robot_rl.rewards.written.vetting import play
    from sim.demonstrators import demonstrator

    bundle = load_bundle(episodes.policy) if episodes.policy else None
    with bar("scripted episodes") as update:
        return play(env, lambda seed: demonstrator(env, episodes.skill, seed, bundle), episodes.seed, update)


def finish(reward: Any, out: Path, as_json: bool, more: dict[str, Any]) -> int:
    """Save a reward and show its figures; return 1 where it was refused."""
    from robot_rl.cli.console import show
    from robot_rl.rewards.written.file import save_reward

    save_reward(reward, out)
    show({"reward": str(out)} | reward.summary() | more, as_json, "reward")
    if reward.refusal:
        sys.stderr.write(f"robot-rl: nothing is learned from {out}: {reward.refusal}\n")
    return int(bool(reward.refusal))


@dataclass
class Write(_OnTask):
    """Have a language model write a reward for a task, tell it what was wrong, and vet the result on scripted episodes;
    exit status 1 when it ranks failures too high, so that nothing may be learned from it."""

    out: Path | None = None
    """File of the reward; default rewards/<task>.py, and .json beside it."""
    feedback: str = ""
    """Revise the reward in --out by this wish of a person who watched what was learned from it."""
    rounds: PositiveInt = 4
    """Answers of the model until one is good enough."""
    config: Annotated[ModelConfig, tyro.conf.arg(name="")] = field(default_factory=ModelConfig)
    episodes: Annotated[EpisodeOptions, tyro.conf.arg(name="")] = field(default_factory=EpisodeOptions)
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Write; return the exit status."""
        from robot_rl.assistant import ReplyModel
        from robot_rl.cli.console import console
        from robot_rl.rewards.written.file import WrittenReward, describing, read_reward
        from robot_rl.rewards.written.writer import conversation, revision, write
        from robot_rl.training.run import provenance
        from robot_rl.util.errors import ConfigError

        model, out = ReplyModel(self.config), self.out or default_file(self.task)
        if describing(out).exists() != out.exists() or (out.exists() and not self.feedback):
            raise ConfigError(f"{out} is there already; revise it with --feedback, or choose another --out")
        env, goal = self.opened(self.episodes)
        messages, history = conversation(env, goal), []
        if self.feedback:
            before = read_reward(out)
            if before.task != self.task:
                raise ConfigError(f"{out} is a reward for {before.task}, not {self.task}; name another --out")
            messages = revision(messages, before.source, self.feedback)
            history = [*before.provenance.get("history", []), {"sha256": before.sha256, "source": before.source}]
        try:
            found = write(model, messages, played(env, self.episodes), self.rounds, _say(console))
        finally:
            env.close()
        origin = provenance() | {"model": self.config.model, "goal": goal, "feedback": self.feedback}
        origin |= {"rounds": found.rounds, "rejected": found.rejected, "history": history}
        counts = {"rounds": found.rounds, "rejected": len(found.rejected)} | model.summary()
        return finish(WrittenReward(found.source, self.task, found.vetting, origin), out, self.json, counts)


@dataclass
class Vet(_OnTask):
    """Vet a reward in a file, a person's or a model's answer with one fenced block, on scripted episodes; exit status 1
    when it ranks failures too high, so that nothing may be learned from it."""

    file: tyro.conf.Positional[Path]
    """File with the reward."""
    out: Path | None = None
    """File of the vetted reward; default: the same with .py, and .json beside it."""
    episodes: Annotated[EpisodeOptions, tyro.conf.arg(name="")] = field(default_factory=EpisodeOptions)
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Vet; return the exit status."""
        from robot_rl.assistant import fenced
        from robot_rl.rewards.written.code import compile_reward
        from robot_rl.rewards.written.file import WrittenReward, describing, read_source
        from robot_rl.rewards.written.vetting import vet
        from robot_rl.rewards.written.views import Views
        from robot_rl.training.run import provenance
        from robot_rl.util.errors import ConfigError

        text = read_source(self.file)
        source, out = text if self.file.suffix == ".py" else fenced(text), self.out or self.file.with_suffix(".py")
        describing(out)
        if out.exists() and out.resolve() != self.file.resolve():
            raise ConfigError(f"{out} is there already; choose another --out")
        env, goal = self.opened(self.episodes)
        try:
            compile_reward(source, Views.of(env).fields)
            found = vet(source, played(env, self.episodes))
        finally:
            env.close()
        origin = provenance() | {"file": self.file.name, "goal": goal}
        return finish(WrittenReward(source, self.task, found, origin), out, self.json, {})


@dataclass
class ShowReward:
    """Show the figures of a written reward, and whether it may be learned from."""

    file: tyro.conf.Positional[Path]
    """File of the reward."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Show; return the exit status."""
        from robot_rl.cli.console import show
        from robot_rl.rewards.written.file import read_reward

        reward = read_reward(self.file)
        origin = {k: reward.provenance[k] for k in ("model", "goal", "feedback", "commit") if reward.provenance.get(k)}
        show({"reward": str(self.file)} | reward.summary() | origin, self.json, "reward")
        return 0


@dataclass
class Prompt(_OnTask):
    """Print what a model would be asked, to paste it elsewhere; vet the answer with `robot-rl reward vet`."""

    episodes: Annotated[EpisodeOptions, tyro.conf.arg(name="")] = field(default_factory=EpisodeOptions)

    def run(self) -> int:
        """Print; return the exit status."""
        from robot_rl.rewards.written.writer import conversation

        env, goal = self.opened(self.episodes)
        messages = conversation(env, goal)
        env.close()
        sys.stdout.write("\n\n".join(str(each["content"]) for each in messages) + "\n")
        return 0


def default_file(task: str) -> Path:
    """Return where a task's reward is by default."""
    from robot_rl.util.files import file_name

    return Path("rewards") / f"{file_name(task).replace('.', '-')}.py"


def _say(console: Any) -> Callable[[str], None]:
    return lambda text: console.print(text, soft_wrap=True, markup=False)
