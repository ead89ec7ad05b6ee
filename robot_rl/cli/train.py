"""`robot-rl train`: train a policy with a recipe."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

import tyro

from robot_rl.cli import options as opt
from robot_rl.cli.console import learned
from robot_rl.training.run import read_metrics
from robot_rl.training.terrain import CURRICULUM
from robot_rl.util.errors import ConfigError, Interrupted
from robot_rl.util.limits import Fraction, Interval, NonNegativeFloat, NonNegativeInt
from robot_rl.util.registry import DATASET

if TYPE_CHECKING:
    from robot_rl.data import Dataset

R = TypeVar("R")
HELD_OUT = 0.1
"""Fraction of a dataset's episodes that is held out if training has only the dataset and no task."""
_SIMULATION = (
    "engine", "without", "randomization", "range", "instructions", "changes", "choose", "curriculum", "levels", "mjcf",
    "episode_steps", "workers",
)  # fmt: skip


@dataclass
class Train(Generic[R]):
    """Train a policy. All files go to one run folder. Ctrl-C saves a checkpoint and ends; after a kill, --resume
    continues from the last checkpoint."""

    config: Annotated[R, tyro.conf.arg(name="")]
    task: tyro.conf.Positional[str] = ""
    """Task name, see `robot-rl tasks`; import path, my_lab.drawer:TASK; or gym:ID of a Gymnasium environment. Without a
    task, --dataset is cloned with its own observations, actions, cameras and rate."""
    recipe: str = ""
    """Recipe, see `robot-rl recipes`; its options are listed below. Default: diffusion-bc for a dataset without a task
    and for an arm's task with a scripted demonstrator, sac for a gym: task, else ppo."""
    dataset: Path | None = None
    """LeRobot v3.0 dataset of demonstrations; default datasets/<task>."""
    rename: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """New name for a column or camera of the dataset, observation.images.wrist=observation.images.hand, or for one
    dimension of a column, action/gripper=gripper.width."""
    image_size: Annotated[int, Interval(ge=0, le=960)] = 0
    """Height and width to which the dataset's pictures are shrunk, pixels; 0: unchanged."""
    held_out: Fraction | None = None
    """Fraction of the dataset's episodes, from the end, to hold out for `robot-rl evaluate --dataset`; default 0.1
    without a task, else 0."""
    base: Path | None = None
    """Bundle of the recipe's initial or base policy."""
    classifier: Path | None = None
    """Success classifier that ends episodes and provides rewards instead of the task's own test; see `robot-rl
    classifier fit`."""
    reward: Path | None = None
    """Vetted reward file that replaces the task's reward; needs --training.reward task; see `robot-rl reward write`."""
    out: Path | None = None
    """Run folder; default runs/<date>-<time>-<task>-<recipe>."""
    seed: opt.RandomSeed = 0
    seeds: str = ""
    """Several seeds, 0..4 or 0,2,5, trained in sequence: one run folder per seed in --out, seed-0, seed-1, ..."""
    resume: bool = False
    """Continue from the checkpoint in --out, or in the latest run of this task and recipe. Some recipes, such as ppo,
    can continue to more --training.steps."""
    threads: NonNegativeInt = 0
    """Learner threads; physics uses all cores. 0: one per core, at most 4, for recipes that do not simulate during
    updates (bc, flow-bc, diffusion-bc, ppo), else 1."""
    precision: Literal["highest", "high", "medium"] = "medium"
    """Precision of float32 matrix products, as in torch. medium uses oneDNN (twice as fast on AMD's AVX-512, with the
    same precision) and bfloat16 if the processor supports it; highest never rounds."""
    engine: opt.Engine = "mujoco"
    device: str = "auto"
    """Device of the learner and of physics in genesis or warp: cpu, cuda, cuda:1, mps and the like, or auto for cuda
    if available."""
    without: opt.Without = ()
    randomization: opt.RangeFile = None
    range: opt.Range = ()
    instructions: opt.Instructions = "training"
    changes: opt.Changes = 0.0
    choose: NonNegativeFloat = 0.0
    """Temperature for sampling instructions, for example 0.2: instructions with a success rate near 0.5 are sampled
    most often. 0: uniform sampling."""
    curriculum: str = ""
    """Curriculum: adr:LOW:HIGH begins at the nominal values of the randomized parameters and widens a range while at
    least HIGH of the episodes at its bound succeed, down to LOW; adr:LOW:HIGH:reward goes by the mean reward.
    qarl:FLOOR pushes with an adversary that becomes rational while episodes return at least FLOOR; rarl and
    random-forces are its controls; see docs/randomization.md."""
    levels: str = CURRICULUM
    """Levels of uneven ground on which episodes begin: curriculum (robots that walk well get harder ground), a level
    like 3, or a range like 0..9, from which each episode draws."""
    mjcf: opt.Mjcf = ""
    episode_steps: opt.EpisodeSteps = None
    env_python: opt.EnvPython = None
    ray: opt.Ray = ""
    workers: NonNegativeInt = 0
    """Rollout workers on the nodes of --ray, one CPU each, that simulate the environments of this run; 0: none."""
    json: opt.Json = False
    words: opt.Suppress[list[str]] = field(default_factory=list)

    def run(self) -> int:
        from robot_rl.util import ranks
        from robot_rl.util.devices import find_device

        if ranks.LAUNCHED == 1:
            return self._run()
        self._check_parallel()
        with ranks.joined(find_device(self.device)):
            try:
                return self._run()
            except Interrupted as error:
                if ranks.rank():
                    return error.code
                raise

    def _check_parallel(self) -> None:
        """Raise ConfigError if several processes of torchrun cannot train the recipe together with these options."""
        if not self.config.data_parallel:  # type: ignore[attr-defined]
            raise ConfigError(f"recipe {self.recipe} learns in one process; start it without torchrun")
        for option in ("seeds", "curriculum", "workers"):
            if getattr(self, option):
                raise ConfigError(f"--{option} is for one process; leave it out, or start without torchrun")

    def _run(self) -> int:
        from robot_rl.cli.console import say_nominal, show
        from robot_rl.training.run import latest_folder, new_folder
        from robot_rl.util import ranks
        from robot_rl.util.seeds import seed_list
        from sim.randomization.checks import nominal
        from sim.tasks import tasks, without_robot

        seeds = seed_list(self.seeds) if self.seeds else []
        if seeds and self.seed:
            raise ConfigError("--seed and --seeds both name seeds; leave out --seed")
        if self.workers and not self.ray:
            raise ConfigError(f"--workers {self.workers}: name the Ray cluster of the workers with --ray")
        if self.ray and bool(seeds) == bool(self.workers):
            raise ConfigError(
                "--ray trains several seeds at once, --seeds 0..4, or one seed with rollout workers, --workers 4: give "
                "one of the two"
            )
        self._name_task()
        self._check_read([*self.config.needs, *self.config.may_use])  # type: ignore[attr-defined]
        self._check_paid()
        fixed = [] if without_robot(self.task) else nominal(tasks.get(self.task), self.engine)
        without = [*self.without, *say_nominal(self.engine, fixed, self.without)]
        if self.out is not None:
            folder = self.out
        elif self.resume:
            which = Path("runs"), self.task, self.recipe
            folder = latest_folder(*which, "seed-*/config.json") if seeds else latest_folder(*which)
        else:
            folder = new_folder(Path("runs"), self.task, self.recipe)
        if seeds:
            from robot_rl.cli.seeds import train_seeds

            return train_seeds(self, folder, seeds, without)
        with self._simulated() as simulate:
            result = self.train(ranks.from_first(folder), self.seed, without, simulate)
        if not ranks.rank():
            show(result, self.json, self.recipe)
        return 0

    def train(self, folder: Path, seed: int, without: Sequence[str], simulate: Any = None) -> dict[str, Any]:
        """Train one seed in a run folder; return the result to show. `simulate`: see `open_job`."""
        import torch

        from policies.bundle import save_bundle
        from robot_rl.cli.console import bar
        from robot_rl.recipes.inputs import inputs_before, settings_before
        from robot_rl.recipes.job import open_job
        from robot_rl.training.follower import open_run
        from robot_rl.training.run import learning_floats, provenance
        from robot_rl.util import ranks
        from sim.divergence import report

        recipe: Any = self.config
        config = self.settings(seed, without)
        torch.set_num_threads(config["threads"])
        extendable_setting = f"config.{recipe.extendable_setting}" if recipe.extendable_setting else ""

        def progress(phase: str, done: int, total: int, metrics: dict[str, float]) -> None:
            names = ("train/success", "train/return", "bc/loss", "critic/loss")
            shown = "".join(f"  {k.split('/')[1]} {metrics[k]:.3f}" for k in names if k in metrics)
            update(done, total, phase + shown)

        before = settings_before(folder, bool(self.seeds)) if self.resume or self.seeds else {}
        config = self.read_as(before, config)
        settings = {name: value for name, value in config.items() if name != "config"}
        began = inputs_before(before, settings)
        diverged = None if ranks.rank() else folder / "diverged"
        job = open_job(settings, None, progress, diverged, began, simulate=simulate)
        job.check(recipe.needs, recipe.may_use)
        inputs = began or job.inputs
        config, settings = config | {"inputs": inputs}, settings | {"inputs": inputs}
        if job.data and (added := job.data.info["total_episodes"] - inputs["dataset"]["of"]) > 0:
            said = f"{job.dataset} has {added} episodes more than the {inputs['dataset']['of']} that the run began with"
            print(f"{said}; the new episodes are not used", file=sys.stderr)  # noqa: T201
        opened = open_run(folder, config, self.resume, extendable_setting)
        shown = nullcontext(_silent) if ranks.rank() else bar(self.recipe)
        with opened as run, shown as update, learning_floats(self.precision):
            if self.resume and not self.seeds and not run.checkpoint_file.exists():
                print(f"nothing to resume: {folder} has no checkpoint yet, so training begins", file=sys.stderr)  # noqa: T201
            run.stop_on_signals()
            self._note_task(run, job.data)
            job.run = run
            bundle = recipe.train(job)
            bundle.provenance = provenance() | settings | {"seconds": run.elapsed}
            if not ranks.rank():
                save_bundle(bundle, folder / "bundle")
            elapsed = run.elapsed
        result = {"run": str(folder), "bundle": str(folder / "bundle"), "seconds": round(elapsed, 1)}
        result |= learned(read_metrics(folder))
        return result | report(folder / "diverged") | ({"without": list(without)} if without else {})

    def settings(self, seed: int, without: Sequence[str]) -> dict[str, Any]:
        """Return the content of config.json for one seed's run."""
        from robot_rl.training.run import learner_threads
        from robot_rl.util.files import file_name
        from sim.randomization.ranges import read_ranges

        recipe: Any = self.config
        dataset = self.dataset or Path("datasets") / file_name(self.task)
        settings: dict[str, Any] = {"task": self.task, "recipe": self.recipe, "seed": seed}
        # Record only inputs that the recipe reads: the others may be gone on resume.
        settings |= {"dataset": str(dataset.resolve())} if "demonstrations" in recipe.needs else {}
        read = {"rename": list(self.rename), "image_size": self.image_size, "held_out": self.held_out}
        settings |= read if "demonstrations" in recipe.needs else {}
        may = (*recipe.needs, *recipe.may_use)
        settings |= {"base": str(self.base) if self.base else None} if "base" in may else {}
        settings |= {"engine": self.engine, "device": self.device, "without": list(without)}
        if "environment" in may:
            names = ("instructions", "changes", "choose", "curriculum", "levels", "episode_steps", "workers")
            settings |= {name: getattr(self, name) for name in names}
            settings |= {"ranges": read_ranges(self.randomization, self.range)}
            files = {"classifier": self.classifier, "reward": self.reward}
            settings |= {name: str(path.resolve()) if path else "" for name, path in files.items()}
        settings |= {"mjcf": str(Path(self.mjcf).resolve()) if self.mjcf else ""}
        settings |= {"env_python": str(self.env_python.absolute()) if self.env_python else None}
        settings |= {"precision": self.precision}
        settings |= {"threads": self.threads or learner_threads(recipe.sim_idle_during_update)}
        return settings | {"config": asdict(recipe)}

    @contextmanager
    def _simulated(self) -> Iterator[Any]:
        """Yield a function that builds environments on the rollout workers; None without workers. ConfigError for
        options that need the simulation in this process."""
        if not self.workers:
            yield None
            return
        from robot_rl.cluster.remote import Cluster
        from robot_rl.cluster.workers import on_workers

        if hasattr(self.config, "operator"):
            raise ConfigError(f"the operator of recipe {self.recipe} watches one simulation here; leave out --workers")
        for option in ("classifier", "mjcf"):
            if getattr(self, option):
                raise ConfigError(f"--{option} needs the simulation on this computer; leave out --workers")
        with closing(Cluster(self.ray)) as cluster:
            yield on_workers(cluster, self.workers)

    def read_as(self, before: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
        """Return the settings `config`; dataset options that were not given are those of the earlier run `before`."""
        default = {"rename": [], "image_size": 0, "held_out": None}
        if before.get("dataset") == config.get("dataset"):
            config = config | {k: before[k] for k, v in default.items() if k in before and config.get(k) == v}
        if "held_out" in config and config["held_out"] is None:
            config["held_out"] = HELD_OUT if self.task.startswith(DATASET) else 0.0
        return config

    def _note_task(self, run: Any, data: Dataset | None) -> None:
        """Write dataset.json and randomization.json, which describe data and simulation in the report."""
        from sim.randomization.ranges import read_ranges, with_ranges
        from sim.tasks import tasks, without_robot

        if not without_robot(self.task):
            task = with_ranges(tasks.get(self.task), read_ranges(self.randomization, self.range))
            varied = [r for r in task.randomization if r.parameter not in self.without]
            run.write("randomization.json", [r.record() for r in varied])
        if data is None:
            return
        recorded = {}
        with suppress(OSError, ValueError, RecursionError):
            recorded = json.loads((data.root / "meta" / "dataset.json").read_bytes())
        facts = {"path": str(data.root), "episodes": data.num_episodes, "frames": data.num_frames, "fps": data.fps}
        current = isinstance(recorded, dict) and recorded.get("frames") == data.num_frames
        run.write("dataset.json", recorded if current else facts)

    def _name_task(self) -> None:
        """Set the task's name to that of the dataset if no task is given. Raises ConfigError if there is no dataset
        either, or if the recipe needs an environment."""
        from robot_rl.data.recording import task_of

        if self.task.startswith(DATASET):
            raise ConfigError(f"{self.task} is no task; name the dataset's folder with --dataset")
        if self.task:
            return
        if self.dataset is None:
            raise ConfigError("name a task, see `robot-rl tasks`, or a dataset to clone with --dataset")
        needs: Collection[str] = self.config.needs  # type: ignore[attr-defined]
        if "environment" in needs:
            raise ConfigError(
                f"recipe {self.recipe} practises in a task, and a dataset alone has none: name a task too, or a recipe "
                "that clones, --recipe diffusion-bc, bc, flow-bc, vla-sft, vla-tokens or consistency"
            )
        self.task = task_of(self.dataset)

    def _check_read(self, needs: Sequence[str]) -> None:
        """Raise ConfigError if an option is given that the recipe does not use."""
        groups = dict.fromkeys((*_SIMULATION, "classifier", "reward"), "environment") | {"base": "base"}
        groups |= dict.fromkeys(("dataset", "rename", "image_size", "held_out"), "demonstrations")
        for option in fields(self):
            group = groups.get(option.name)
            unused = group is not None and group not in needs
            if unused and getattr(self, option.name) != option.default:
                flag = f"--{option.name.replace('_', '-')}"
                raise ConfigError(f"recipe {self.recipe} does nothing with {flag}; leave it out")

    def _check_paid(self) -> None:
        """Raise ConfigError if --reward is given but the recipe would ignore or misuse the reward."""
        recipe: Any = self.config
        if self.reward is None:
            return
        source = getattr(getattr(recipe, "training", None), "reward", "")
        if not source:
            raise ConfigError(f"recipe {self.recipe} learns from no reward of the environment; leave out --reward")
        if source != "task":
            raise ConfigError(f"--reward would not be read: add --training.reward task, which is now {source}")
        if "demonstrations" in recipe.needs:
            raise ConfigError(
                f"recipe {self.recipe} also learns from demonstrations, and a dataset lacks the state after "
                "the last step, which a written reward needs; take a recipe without, such as sac or ppo"
            )


def _silent(done: int, total: int, text: str = "") -> None:
    """Show no progress."""


def recipe_named(argv: list[str], default: str) -> Any:
    """Return the recipe class named by --recipe in `argv`, or else by `default`."""
    from robot_rl.recipes import recipes

    name = default
    for k, word in enumerate(argv):
        if word == "--recipe" and k + 1 < len(argv):
            name = argv[k + 1]
        elif word.startswith("--recipe="):
            name = word.split("=", 1)[1]
    return recipes.get(name)


def _other_task(argv: Sequence[str], names: Collection[str]) -> str:
    """Return the first word that is a task name or import path and no flag's value; "" if there is no such word."""
    pairs = zip(["", *argv], argv, strict=False)
    words = [word for before, word in pairs if not before.startswith("--")]
    return next((word for word in words if word in names or re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", word)), "")


def main(argv: list[str]) -> int:
    """Run the command. The recipe is found first, so that --help lists the recipe's options."""
    from robot_rl.cli.main import parse
    from sim.tasks import tasks, without_robot

    default = "diffusion-bc"
    if not any(word.startswith("--recipe") for word in argv):
        known = (word for word in argv if word in tasks.entries or without_robot(word))
        task = next(known, "") or _other_task(argv, set(tasks))
        if without_robot(task):
            default = "sac"
        elif task and (not tasks.get(task).expert or tasks.get(task).commands):  # a scripted walk is worth no clone
            default = "ppo"
    recipe = recipe_named(argv, default)
    parsed = parse(Train[recipe], argv, "train")  # type: ignore[valid-type]
    parsed.recipe, parsed.words = parsed.recipe or default, argv
    return int(parsed.run())
