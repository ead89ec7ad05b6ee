"""`robot-rl reward`: write a reward, by a language model or from demonstrations, and vet it before training;
`robot-rl classifier`: fit and show success classifiers."""

import sys
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from robot_rl.assistant import ModelConfig
from robot_rl.cli import options as opt
from robot_rl.cli.options import Json
from robot_rl.rewards.fitting import FitConfig
from robot_rl.rewards.written.stages import StagesConfig
from robot_rl.util.limits import PositiveInt


@dataclass(frozen=True)
class EpisodeOptions:
    """Options of the scripted episodes on which a reward is vetted."""

    skill: str = "STEADY"
    """Skill of the task's scripted demonstrator."""
    policy: Path | None = None
    """Bundle or run folder of a policy that acts instead of the demonstrator."""
    seed: opt.RandomSeed = 0
    goal: str = ""
    """Goal in words; default: the task's instruction."""
    episode_steps: opt.EpisodeSteps = None
    env_python: opt.EnvPython = None
    threads: PositiveInt = 1
    """Number of threads for the policy's networks."""


@dataclass
class _OnTask:
    """Base class of the commands that work on one task."""

    task: tyro.conf.Positional[str]
    """Task name, as for `robot-rl train`."""

    def opened(self, episodes: EpisodeOptions) -> tuple[Any, str]:
        """Return the task's environments and the task's goal in words. Raises ConfigError if the goal is unknown."""
        import torch

        from robot_rl.rewards.written.file import written_reward_info
        from robot_rl.rewards.written.vetting import STARTS
        from robot_rl.rewards.written.writer import goal_of
        from robot_rl.util.errors import ConfigError
        from sim.make import describe, make

        torch.set_num_threads(episodes.threads)
        info = written_reward_info(describe(self.task, episodes.env_python, episodes.episode_steps))
        if not info.reports_success:
            raise ConfigError(f"{self.task} reports no success, so no reward can be vetted on it")
        env: Any = make(self.task, STARTS, episodes.env_python, episodes.episode_steps)
        goal = episodes.goal or goal_of(env)
        if not goal:
            raise ConfigError(f"{self.task} does not say in words what is to be done; say it with --goal")
        return env, goal


def played(env: Any, episodes: EpisodeOptions) -> Any:
    """Run the scripted episodes with a progress bar and return them."""
    from policies.bundle import load_bundle
    from robot_rl.cli.console import bar
    from robot_rl.rewards.written.vetting import play
    from sim.demonstrators import demonstrator

    bundle = load_bundle(episodes.policy) if episodes.policy else None
    with bar("scripted episodes") as update:
        return play(env, lambda seed: demonstrator(env, episodes.skill, seed, bundle), episodes.seed, update)


def finish(reward: Any, out: Path, as_json: bool, more: dict[str, Any]) -> int:
    """Save a reward and show its vetting result; return exit status 1 if vetting refused the reward, else 0."""
    from robot_rl.cli.console import show
    from robot_rl.rewards.written.file import save_reward

    save_reward(reward, out)
    show({"reward": str(out)} | reward.summary() | more, as_json, "reward")
    if reward.refusal:
        sys.stderr.write(f"robot-rl: nothing is learned from {out}: {reward.refusal}\n")
    return int(bool(reward.refusal))


@dataclass
class Write(_OnTask):
    """Let a language model write a reward for a task, report errors to the model, and vet the result on scripted
    episodes. Exit status 1 if the reward ranks failures too high; training then refuses the reward."""

    out: Path | None = None
    """Reward file; default rewards/<task>.py. The vetting result is written beside the reward file as .json."""
    feedback: str = ""
    """Revise the reward in --out according to this feedback on the trained policy."""
    rounds: PositiveInt = 4
    """Maximum number of answers of the language model."""
    config: Annotated[ModelConfig, tyro.conf.arg(name="")] = field(default_factory=ModelConfig)
    episodes: Annotated[EpisodeOptions, tyro.conf.arg(name="")] = field(default_factory=EpisodeOptions)
    json: opt.Json = False

    def run(self) -> int:
        from robot_rl.assistant import ReplyModel
        from robot_rl.cli.console import console
        from robot_rl.rewards.written.file import WrittenReward, description_path, read_reward
        from robot_rl.rewards.written.writer import conversation, revision, write
        from robot_rl.training.run import provenance
        from robot_rl.util.errors import ConfigError

        model, out = ReplyModel(self.config), self.out or default_file(self.task)
        if description_path(out).exists() != out.exists() or (out.exists() and not self.feedback):
            raise ConfigError(f"{out} is there already; revise it with --feedback, or choose another --out")
        env, goal = self.opened(self.episodes)
        messages, history = conversation(env, goal), []
        if self.feedback:
            before = read_reward(out)
            if before.task != self.task:
                raise ConfigError(f"{out} is a reward for {before.task}, not {self.task}; name another --out")
            messages = revision(messages, before.source, self.feedback)
            history = [*before.provenance.get("history", []), {"sha256": before.sha256, "source": before.source}]
        report = partial(console.print, soft_wrap=True, markup=False)
        try:
            found = write(model, messages, played(env, self.episodes), self.rounds, report)
        finally:
            env.close()
        origin = provenance() | {"model": self.config.model, "goal": goal, "feedback": self.feedback}
        origin |= {"rounds": found.rounds, "rejected": found.rejected, "history": history}
        counts = {"rounds": found.rounds, "rejected": len(found.rejected)} | model.summary()
        return finish(WrittenReward(found.source, self.task, found.vetting, origin), out, self.json, counts)


@dataclass
class Stages(_OnTask):
    """Write a reward from the states of demonstrations, and vet it on scripted episodes. Exit status 1 if the reward
    ranks failures too high; training then refuses the reward."""

    dataset: Path | None = None
    """Dataset of demonstrations; default datasets/<task>. Only the states of successful episodes are read."""
    out: Path | None = None
    """Reward file; default rewards/<task>.py. The vetting result is written beside the reward file as .json."""
    config: Annotated[StagesConfig, tyro.conf.arg(name="")] = field(default_factory=StagesConfig)
    episodes: Annotated[EpisodeOptions, tyro.conf.arg(name="")] = field(default_factory=EpisodeOptions)
    json: opt.Json = False

    def run(self) -> int:
        from robot_rl.data.recording import STATE, load_episodes
        from robot_rl.rewards.written.file import WrittenReward, description_path
        from robot_rl.rewards.written.stages import write_stages
        from robot_rl.rewards.written.vetting import vet
        from robot_rl.training.run import provenance
        from robot_rl.util.errors import ConfigError
        from robot_rl.util.files import file_name
        from sim.make import describe

        out, data = self.out or default_file(self.task), self.dataset or Path("datasets") / file_name(self.task)
        if out.exists() or description_path(out).exists():
            raise ConfigError(f"{out} is there already; choose another --out")
        info = describe(self.task, self.episodes.env_python, self.episodes.episode_steps)
        demonstrations = load_episodes(data, info)
        source = write_stages([each[STATE] for each in demonstrations], info.state, self.config)
        env, goal = self.opened(self.episodes)
        try:
            found = vet(source, played(env, self.episodes))
        finally:
            env.close()
        origin = provenance() | {"episodes": len(demonstrations), "stages": asdict(self.config), "goal": goal}
        return finish(WrittenReward(source, self.task, found, origin), out, self.json, {})


@dataclass
class Vet(_OnTask):
    """Vet a reward, given as Python code or as a language model's answer with one fenced code block, on scripted
    episodes. Exit status 1 if the reward ranks failures too high; training then refuses the reward."""

    file: tyro.conf.Positional[Path]
    """File that contains the reward."""
    out: Path | None = None
    """File for the vetted reward; default: the input's name with .py. The vetting result is beside it, as .json."""
    episodes: Annotated[EpisodeOptions, tyro.conf.arg(name="")] = field(default_factory=EpisodeOptions)
    json: opt.Json = False

    def run(self) -> int:
        from robot_rl.assistant import fenced
        from robot_rl.rewards.written.code import compile_reward
        from robot_rl.rewards.written.file import WrittenReward, description_path, read_source
        from robot_rl.rewards.written.vetting import vet
        from robot_rl.rewards.written.views import Views
        from robot_rl.training.run import provenance
        from robot_rl.util.errors import ConfigError

        text = read_source(self.file)
        source, out = text if self.file.suffix == ".py" else fenced(text), self.out or self.file.with_suffix(".py")
        description_path(out)
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
    """Show a written reward's vetting result, and whether training accepts it."""

    file: tyro.conf.Positional[Path]
    """Reward file."""
    json: opt.Json = False

    def run(self) -> int:
        from robot_rl.cli.console import show
        from robot_rl.rewards.written.file import read_reward

        reward = read_reward(self.file)
        origin = {k: reward.provenance[k] for k in ("model", "goal", "feedback", "commit") if reward.provenance.get(k)}
        show({"reward": str(self.file)} | reward.summary() | origin, self.json, "reward")
        return 0


@dataclass
class Prompt(_OnTask):
    """Print, for pasting, the prompt that asks a language model for a reward; vet the answer with `reward vet`."""

    episodes: Annotated[EpisodeOptions, tyro.conf.arg(name="")] = field(default_factory=EpisodeOptions)

    def run(self) -> int:
        from robot_rl.rewards.written.writer import conversation

        env, goal = self.opened(self.episodes)
        messages = conversation(env, goal)
        env.close()
        sys.stdout.write("\n\n".join(str(each["content"]) for each in messages) + "\n")
        return 0


def default_file(task: str) -> Path:
    """Return the default reward file of a task."""
    from robot_rl.util.files import file_name

    return Path("rewards") / f"{file_name(task).replace('.', '-')}.py"


@dataclass
class Fit:
    """Fit a success classifier to the marked frames of a dataset with successes and failures, and measure it on
    held-out episodes. Exit status 1 if the classifier is not precise enough to provide rewards."""

    dataset: tyro.conf.Positional[Path]
    """Dataset folder with pictures, from `robot-rl collect` or `robot-rl record` with --keep-failures."""
    out: Path | None = None
    """Classifier folder; default classifiers/<name of the dataset>."""
    config: Annotated[FitConfig, tyro.conf.arg(name="")] = field(default_factory=FitConfig)
    device: str = "auto"
    """Torch device: cpu, cuda, cuda:1, mps and the like, or auto for cuda if available."""
    threads: PositiveInt = 1
    """Number of torch threads."""
    json: Json = False

    def run(self) -> int:
        import time

        import torch

        from robot_rl.cli.console import bar, show
        from robot_rl.data import Dataset
        from robot_rl.rewards.classifier import save_classifier
        from robot_rl.rewards.fitting import fit
        from robot_rl.training.run import provenance
        from robot_rl.util.devices import find_device
        from robot_rl.util.errors import ConfigError

        out = self.out or Path("classifiers") / self.dataset.resolve().name
        if out.exists() and not (out / "classifier.json").is_file():
            raise ConfigError(f"{out} is there and is no classifier, so it is not replaced; choose another --out")
        torch.set_num_threads(self.threads)
        data, begin = Dataset(self.dataset), time.monotonic()
        with bar("classifier") as update:
            classifier = fit(data, self.config, find_device(self.device), update)
        facts: dict[str, Any] = {"path": str(self.dataset.resolve()), "episodes": data.num_episodes}
        classifier.provenance = provenance() | {"dataset": facts, "config": asdict(self.config)}
        save_classifier(classifier, out)
        summary = {"classifier": str(out)} | classifier.summary()
        show(summary | {"seconds": round(time.monotonic() - begin, 1)}, self.json, "classifier")
        if not classifier.reaches_bar:
            sys.stderr.write(f"robot-rl: {classifier.refusal}\n")
        return int(not classifier.reaches_bar)


@dataclass
class ShowClassifier:
    """Show a success classifier's inputs and held-out metrics, and whether it may provide rewards."""

    folder: tyro.conf.Positional[Path]
    """Classifier folder."""
    json: Json = False

    def run(self) -> int:
        from robot_rl.cli.console import show
        from robot_rl.rewards.classifier import read_classifier

        classifier = read_classifier(self.folder)
        summary = {"classifier": str(self.folder)} | classifier.summary()
        origin = {k: v for k, v in classifier.provenance.items() if k in ("dataset", "commit")}
        show(summary | origin, self.json, "classifier")
        return 0
