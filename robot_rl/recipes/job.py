"""Training job: the inputs that a recipe gets from the command line."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from policies.base import Size
from policies.bundle import Bundle, load_bundle
from robot_rl.data.dataset import Dataset
from robot_rl.data.recording import DemoSelection, info_of, load_episodes
from robot_rl.data.recording import check as check_dataset
from robot_rl.interface.environment import EnvFactory, EnvInfo
from robot_rl.operators.intervention import InterventionWrapper, judge_of
from robot_rl.operators.scripted import OperatorConfig, ScriptedOperator
from robot_rl.recipes import recipes
from robot_rl.recipes.inputs import INPUTS, Inputs, check_inputs, dataset_inputs, file_inputs, open_dataset
from robot_rl.rewards import RewardName
from robot_rl.rewards.classifier import ClassifierWrapper, judged_info, load_classifier
from robot_rl.rewards.written.file import RewardWrapper, load_reward, written_reward_info
from robot_rl.robots import robots
from robot_rl.training.choosing import InstructionCurriculum
from robot_rl.training.curriculum import read_curriculum
from robot_rl.training.run import Run
from robot_rl.training.terrain import CURRICULUM, read_levels, with_curriculum
from robot_rl.util.devices import find_device
from robot_rl.util.errors import ConfigError
from robot_rl.util.files import file_name
from robot_rl.util.ranks import own_device
from robot_rl.util.registry import DATASET

Progress = Callable[[str, int, int, dict[str, float]], None]
"""Callback that gets the counted unit, the number of units done, their total number, and the latest metrics."""


@dataclass
class Job:
    """Inputs of one training run: task, environments, data, base policy, seed and device."""

    info: EnvInfo
    """Description of the task."""
    make_env: EnvFactory
    run: Run | None
    """Run for checkpoints and metrics; None for a job that only builds its agent."""
    seed: int
    dataset: Path
    """Folder of the demonstrations, which need not exist."""
    base: Bundle | None
    progress: Progress
    device: str = "cpu"
    """Device of the learner."""
    data: Dataset | None = None
    """Opened dataset of the demonstrations; None if it is not used or does not exist."""
    inputs: Inputs = field(default_factory=dict)
    """Inputs of the run besides its settings, by sha256."""

    @property
    def opened(self) -> Run:
        """Return the job's run; ValueError for a job without a run."""
        if self.run is None:
            raise ValueError("this job has no run: it can build an agent, not train it")
        return self.run

    @property
    def size(self) -> Size:
        return Size(self.info.observation, self.info.action, self.info.extra_inputs)

    def counting(self, what: str, total: int) -> Callable[[int, dict[str, float]], None]:
        """Return the progress callback of a loop that counts `what`."""
        return lambda step, metrics: self.progress(what, step, total, metrics)

    def check(self, needs: Sequence[str], may_use: Sequence[str] = ()) -> None:
        """Raise ConfigError if the job lacks a part that a recipe needs, or if the base does not fit the task."""
        if "base" in needs or ("base" in may_use and self.base is not None):
            self.require_base()
        if "demonstrations" in needs:
            self.check_demonstrations()

    def demonstrations(
        self, reward: RewardName = "success", demos: DemoSelection = "successes"
    ) -> list[dict[str, Tensor]]:
        """Return the selected episodes of the dataset. Reward "success" marks success, and "task" is the task's reward
        as recorded."""
        self.check_demonstrations()
        data = self.data or self.dataset
        episodes = load_episodes(data, self.info, reward, demos == "successes")
        if demos != "best":
            return episodes
        ranked = episodes if reward == "task" else load_episodes(data, self.info, "task", False)
        returns = torch.stack([episode["reward"].sum() for episode in ranked])
        best = returns.argsort(descending=True, stable=True)[: -(-len(returns) // 4)]
        return [episodes[k] for k in best.sort().values.tolist()]

    def instructions(self) -> list[str]:
        """Return the texts of all instructions of the task and of the dataset."""
        ours = self.info.interface.instructions if self.info.interface else ()
        theirs = self.data.episodes if self.data else []
        return [*(each.text for each in ours), *(task for episode in theirs for task in episode.tasks)]

    def check_demonstrations(self) -> None:
        """Raise ConfigError if the dataset does not exist."""
        if self.dataset.exists():
            return
        task = self.info.task
        raise ConfigError(
            f"{self.dataset} does not exist; record it with `robot-rl collect {task}`, or name a dataset with --dataset"
            if self.info.demonstrator
            else f"{self.dataset} does not exist, and task {task!r} has no scripted demonstrator to record one; name a "
            "dataset with --dataset, or choose a recipe that learns without, such as ppo"
        )

    def require_base(self) -> Bundle:
        """Return the base bundle; ConfigError if the job has no base, or if the base does not fit the task."""
        if self.base is None:
            raise ConfigError(f"the recipe starts from a policy: train one for {self.info.task}; name it with --base")
        named = self.base.task if self.base.contract is None else self.base.interface.task
        if named != self.info.task:
            raise ConfigError(f"{self.base.label} is for task {named!r}, not {self.info.task!r}")
        if self.info.interface is None:
            size = self.base.policy.size
            if size != self.size:
                raise ConfigError(
                    f"{self.base.label} observes {size.observation} numbers and acts with {size.action}, and "
                    f"{self.info.task} now has {self.size.observation} and {self.size.action}; train it again"
                )
            return self.base
        self.base.check_task(self.info.interface)
        self.base.check_robot(robots.get(self.base.interface.robot))
        return self.base

    def operated(self, operator: OperatorConfig) -> InterventionWrapper:
        """Return a single environment with a scripted operator. For rule value-gap, the critics of `base` judge."""
        from sim.demonstrators import demonstrator

        if not self.info.demonstrator:
            raise ConfigError(
                f"task {self.info.task!r} has no scripted operator: it has no demonstrator; `robot-rl tasks` lists "
                "those that do"
            )
        if operator.rule == "value-gap" and self.base is None:
            raise ConfigError("--operator.rule value-gap: name a run of rlpd, whose critics judge, with --base")
        judge = judge_of(self.require_base()) if operator.rule == "value-gap" else None
        env = self.make_env(1)
        scripted = ScriptedOperator(demonstrator(env, operator.skill, self.seed), operator, self.seed, judge)
        watched = InterventionWrapper(env, scripted)
        if operator.rule not in watched.rules:
            env.close()
            raise ConfigError(
                f"task {self.info.task!r} does not report what --operator.rule {operator.rule} needs; take one of "
                f"{', '.join(watched.rules)}"
            )
        return watched

    def bundle(self, agent: Any) -> Bundle:
        """Return a bundle of the agent's policy, value functions and settings."""
        agent.finish()
        agent.policy.eval()
        return Bundle(
            agent.policy, self.info.interface, self.info.robot, critic=agent.value_state(), agent=asdict(agent.config),
            task=self.info.task, described=self.info,
        )  # fmt: skip


def open_job(
    settings: dict[str, Any], run: Run | None, progress: Progress, diverged: Path | None = None,
    began: Inputs | None = None, check: Sequence[str] = INPUTS, simulate: Callable[..., Any] | None = None,
) -> Job:  # fmt: skip
    """Return the job for a run's settings, as `robot-rl train` writes them to config.json.

    Args:
        diverged: folder in which episodes whose physics diverge are stored.
        began: inputs with which a resumed run began; episodes added to the dataset since then are not used.
        check: names of the inputs that must be unchanged since the run began.
        simulate: function that builds the environments; None: `sim.make.make`.
    """
    from sim.engines import engines
    from sim.make import describe
    from sim.make import make as make_here

    make = simulate or make_here

    task, python = settings["task"], settings.get("env_python")
    physics = {name: settings[name] for name in ("engine", "mjcf", "without")}
    device = own_device(find_device(settings["device"]))
    physics |= {"device": device if engines.get(settings["engine"]).takes_device else "cpu", "diverged": diverged}
    physics |= {"instruction_set": settings["instructions"]} if "instructions" in settings else {}
    physics |= {name: settings[name] for name in ("changes", "ranges") if name in settings}
    python, steps, began = Path(python) if python else None, settings.get("episode_steps"), began or {}
    physics |= {"episode_steps": steps}
    levels = settings.get("levels", "")
    physics |= {} if levels in ("", CURRICULUM) else {"levels": read_levels(levels)}
    base = load_bundle(settings["base"]) if settings.get("base") else None
    dataset, alone = Path(settings.get("dataset") or Path("datasets") / file_name(task)), task.startswith(DATASET)
    data = open_dataset(dataset, settings, began) if "dataset" in settings and (alone or dataset.exists()) else None
    if alone and data:
        info = base.info if base else info_of(data, recipes.get(settings["recipe"]).reads_instructions)
    else:
        info = describe(task, python, steps)
    make_env = lambda count: make(task, count, python, **physics)  # noqa: E731
    if settings.get("classifier"):
        if settings.get("changes"):
            raise ConfigError("a classifier judges one instruction in an episode; leave out --changes")
        classifier, physics["success_ends"] = load_classifier(settings["classifier"]), False
        info = judged_info(info, classifier)
        make_env = lambda count: ClassifierWrapper(make(task, count, python, **physics), classifier)  # noqa: E731
    if settings.get("reward"):
        if settings.get("classifier"):
            raise ConfigError("--classifier and --reward both say what is paid; leave out one")
        written, info = load_reward(settings["reward"]), written_reward_info(info)
        make_env = lambda count: RewardWrapper(make(task, count, python, **physics), written)  # noqa: E731
    if settings.get("choose"):
        plain = make_env
        make_env = lambda count: InstructionCurriculum(plain(count), settings["choose"])  # noqa: E731
    if settings.get("curriculum"):
        wrap, fixed = read_curriculum(settings["curriculum"]), make_env
        make_env = lambda count: wrap(fixed(count))  # noqa: E731
    if levels == CURRICULUM:
        flat_or_not = make_env
        make_env = lambda count: with_curriculum(flat_or_not(count))  # noqa: E731
    inputs = file_inputs(settings, info, simulated="classifier" in settings)  # only simulated runs have that setting
    if data:
        check_dataset(data, info)
        inputs["dataset"] = dataset_inputs(data, info, began)
    check_inputs(settings, began, inputs, check)
    return Job(info, make_env, run, settings["seed"], dataset, base, progress, device, data, inputs)
