"""`robot-rl train`: train a policy with a recipe."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

import tyro

from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import Fraction, Interval, NonNegativeFloat, NonNegativeInt, PositiveInt, Seed
from robot_rl.util.registry import DATASET

if TYPE_CHECKING:
    from robot_rl.data import Dataset

R = TypeVar("R")
HELD_OUT = 0.1
"""Share of a dataset that is held out where it is all there is."""
_SIMULATION = ("engine", "without", "instructions", "changes", "choose", "mjcf", "episode_steps")


@dataclass
class Train(Generic[R]):
    """Train a policy. All files go to one run folder; Ctrl-C saves a checkpoint and ends, a kill loses the time since
    the last one, and --resume continues from there."""

    config: Annotated[R, tyro.conf.arg(name="")]
    task: tyro.conf.Positional[str] = ""
    """Name of the task, see `robot-rl tasks`; its import path, my_lab.drawer:TASK; or gym:ID, any Gymnasium one. Leave
    it out to clone what --dataset holds: observations, actions, cameras and rate are then the dataset's own."""
    recipe: str = ""
    """How to train, see `robot-rl recipes`; its options are listed below. Default diffusion-bc for a dataset without a
    task and for a task with a scripted demonstrator, ppo for another, sac for a gym: task."""
    dataset: Path | None = None
    """Demonstrations, a LeRobot v3.0 dataset; default datasets/<task>."""
    rename: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Another name for a column or camera of the dataset, observation.images.wrist=observation.images.hand, or for one
    number of a column, action/gripper=gripper.width."""
    image_size: Annotated[int, Interval(ge=0, le=960)] = 0
    """Height and width to which the dataset's pictures are made smaller, pixels; 0: as they are."""
    held_out: Fraction | None = None
    """Share of the dataset's episodes, the last ones, to keep for `robot-rl evaluate --dataset`; default 0.1 without a
    task, else 0."""
    base: Path | None = None
    """Bundle of the policy to start from."""
    classifier: Path | None = None
    """Success classifier whose verdict ends episodes and pays rewards in place of the task's own test; see
    `robot-rl classifier fit`."""
    reward: Path | None = None
    """Written and vetted reward that is paid in place of the task's own, with --training.reward task; see `robot-rl
    reward write`."""
    out: Path | None = None
    """Run folder; default runs/<date>-<time>-<task>-<recipe>."""
    seed: Seed = 0
    """Seed of everything random."""
    seeds: str = ""
    """Several seeds by their numbers, 0..4 or 0,2,5, one after the other: one run each in --out, in folders seed-0,
    seed-1, ..."""
    resume: bool = False
    """Continue from the checkpoint in --out, or in the latest run of this task and recipe; ppo can continue to more
    --training.steps."""
    threads: NonNegativeInt = 0
    """Threads of the learner; physics uses all cores. 0: all cores, at most 4, with recipes whose physics rests while
    they learn (bc, flow-bc, diffusion-bc, ppo), else 1."""
    precision: Literal["highest", "high", "medium"] = "medium"
    """Precision of float32 matrix products, as in torch: medium lets oneDNN compute them (half the time on AMD's
    AVX-512, with the same digits) and use bfloat16 if the processor supports it; highest never rounds."""
    engine: str = "mujoco"
    """Physics engine: mujoco or genesis."""
    device: str = "auto"
    """Device of the learner, and of the physics of engine genesis: cpu, cuda, cuda:1, mps and the like, or auto for
    cuda if there is one."""
    without: tuple[str, ...] = ()
    """Randomized parameters of the task to leave at their nominal values, for example cube.mass."""
    instructions: str = "training"
    """What episodes ask for, in a task with instructions: those of training, held-out, all, or those that begin so."""
    changes: Fraction = 0.0
    """Share of episodes in which another of these instructions takes the place of the first on the way."""
    choose: NonNegativeFloat = 0.0
    """Temperature of asking most often for what succeeds in half of the tries, 0.2 for example; 0: all alike."""
    mjcf: str = ""
    """MJCF file of the robot; empty is the one in genesis-world."""
    episode_steps: PositiveInt | None = None
    """Longest episode of a gym: task, steps; needed where its environment has no time limit. None: as it says."""
    env_python: Path | None = None
    """Python of another virtual environment that runs a gym: task."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Train; return the exit status."""
        from robot_rl.cli.console import say_nominal, show
        from robot_rl.training.run import latest_folder, new_folder
        from robot_rl.util.seeds import seed_list
        from sim.randomization.checks import nominal
        from sim.tasks import tasks, without_robot

        seeds = seed_list(self.seeds) if self.seeds else []
        if seeds and self.seed:
            raise ConfigError("--seed and --seeds both name seeds; leave out --seed")
        self._name_task()
        self._check_read([*self.config.needs, *self.config.may_use])  # type: ignore[attr-defined]
        self._check_paid()
        unable = [] if without_robot(self.task) else nominal(tasks.get(self.task), self.engine)
        unable = [name for name in unable if name not in self.without]
        say_nominal(self.engine, unable)
        without = [*self.without, *unable]
        if self.out is not None:
            folder = self.out
        elif self.resume:
            which = Path("runs"), self.task, self.recipe
            folder = latest_folder(*which, "seed-*/config.json") if seeds else latest_folder(*which)
        else:
            folder = new_folder(Path("runs"), self.task, self.recipe)
        if seeds:
            from robot_rl.cli.train_seeds import train_seeds

            return train_seeds(self, folder, seeds, without)
        show(self.train(folder, self.seed, without), self.json, self.recipe)
        return 0

    def train(self, folder: Path, seed: int, without: Sequence[str]) -> dict[str, Any]:
        """Train one seed in a run folder; return what to show of it."""
        import torch

        from policies.bundle import save_bundle
        from robot_rl.cli.console import bar, learned
        from robot_rl.recipes.inputs import inputs_before, settings_before
        from robot_rl.recipes.job import open_job
        from robot_rl.training.numerics import learning_floats
        from robot_rl.training.run import Run, provenance, read_metrics
        from sim.divergence import report

        recipe: Any = self.config
        config = self.settings(seed, without)
        torch.set_num_threads(config["threads"])
        extendable_setting = f"config.{recipe.extendable_setting}" if recipe.extendable_setting else ""

        def progress(what: str, done: int, total: int, metrics: dict[str, float]) -> None:
            names = ("train/success", "train/return", "bc/loss", "critic/loss")
            shown = "".join(f"  {k.split('/')[1]} {metrics[k]:.3f}" for k in names if k in metrics)
            update(done, total, what + shown)

        before = settings_before(folder, bool(self.seeds)) if self.resume or self.seeds else {}
        config = self.read_as(before, config)
        settings = {name: value for name, value in config.items() if name != "config"}
        began = inputs_before(before, settings)
        job = open_job(settings, None, progress, folder / "diverged", began)
        job.check(recipe.needs, recipe.may_use)
        inputs = began or job.inputs
        config, settings = config | {"inputs": inputs}, settings | {"inputs": inputs}
        if job.data and (added := job.data.info["total_episodes"] - inputs["dataset"]["of"]) > 0:
            print(  # noqa: T201
                f"{job.dataset} has {added} episodes more than the {inputs['dataset']['of']} that the run began with; "
                "they are not learned from",
                file=sys.stderr,
            )
        opened = Run(folder, config, self.resume, extendable_setting)
        with opened as run, bar(self.recipe) as update, learning_floats(self.precision):
            if self.resume and not self.seeds and not run.checkpoint_file.exists():
                print(f"nothing to resume: {folder} has no checkpoint yet, so training begins", file=sys.stderr)  # noqa: T201
            run.stop_on_signals()
            self._note_task(run, job.data)
            job.run = run
            bundle = recipe.train(job)
            bundle.provenance = provenance() | settings | {"seconds": run.elapsed}
            save_bundle(bundle, folder / "bundle")
            elapsed = run.elapsed
        result = {"run": str(folder), "bundle": str(folder / "bundle"), "seconds": round(elapsed, 1)}
        result |= learned(read_metrics(folder))
        return result | report(folder / "diverged") | ({"without": list(without)} if without else {})

    def settings(self, seed: int, without: Sequence[str]) -> dict[str, Any]:
        """Return what config.json of one seed's run holds."""
        from robot_rl.training.numerics import learner_threads
        from robot_rl.util.files import file_name

        recipe: Any = self.config
        dataset = self.dataset or Path("datasets") / file_name(self.task)
        settings: dict[str, Any] = {"task": self.task, "recipe": self.recipe, "seed": seed}
        # Inputs that are not read may be gone when the run is resumed.
        settings |= {"dataset": str(dataset.resolve())} if "demonstrations" in recipe.needs else {}
        read = {"rename": list(self.rename), "image_size": self.image_size, "held_out": self.held_out}
        settings |= read if "demonstrations" in recipe.needs else {}
        may = (*recipe.needs, *recipe.may_use)
        settings |= {"base": str(self.base) if self.base else None} if "base" in may else {}
        settings |= {"engine": self.engine, "device": self.device, "without": list(without)}
        if "environment" in may:
            names = ("instructions", "changes", "choose", "episode_steps")
            settings |= {name: getattr(self, name) for name in names}
            files = {"classifier": self.classifier, "reward": self.reward}
            settings |= {name: str(path.resolve()) if path else "" for name, path in files.items()}
        settings |= {"mjcf": str(Path(self.mjcf).resolve()) if self.mjcf else ""}
        settings |= {"env_python": str(self.env_python.absolute()) if self.env_python else None}
        settings |= {"precision": self.precision}
        settings |= {"threads": self.threads or learner_threads(recipe.sim_idle_during_update)}
        return settings | {"config": asdict(recipe)}

    def read_as(self, before: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
        """Return settings of a run in which options of reading the dataset that are not given are those before."""
        default = {"rename": [], "image_size": 0, "held_out": None}
        if before.get("dataset") == config.get("dataset"):
            config = config | {k: before[k] for k, v in default.items() if k in before and config.get(k) == v}
        if "held_out" in config and config["held_out"] is None:
            config["held_out"] = HELD_OUT if self.task.startswith(DATASET) else 0.0
        return config

    def _note_task(self, run: Any, data: Dataset | None) -> None:
        """Write dataset.json and randomization.json for the report: what was learned from, and what varied in it."""
        from sim.tasks import tasks, without_robot

        if not without_robot(self.task):
            varied = [r for r in tasks.get(self.task).randomization if r.parameter not in self.without]
            run.write("randomization.json", [asdict(r) for r in varied])
        if data is None:
            return
        said = {}
        with suppress(OSError, ValueError, RecursionError):
            said = json.loads((data.root / "meta" / "dataset.json").read_bytes())
        facts = {"path": str(data.root), "episodes": data.num_episodes, "frames": data.num_frames, "fps": data.fps}
        current = isinstance(said, dict) and said.get("frames") == data.num_frames
        run.write("dataset.json", said if current else facts)

    def _name_task(self) -> None:
        """Name the task of a dataset alone; ConfigError where there is none either, or the recipe practises."""
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
        """Raise ConfigError for options that the recipe does not use."""
        groups = dict.fromkeys((*_SIMULATION, "classifier", "reward"), "environment") | {"base": "base"}
        groups |= dict.fromkeys(("dataset", "rename", "image_size", "held_out"), "demonstrations")
        for option in fields(self):
            what = groups.get(option.name)
            unread = what is not None and what not in needs
            if unread and getattr(self, option.name) != option.default:
                flag = f"--{option.name.replace('_', '-')}"
                raise ConfigError(f"recipe {self.recipe} does nothing with {flag}; leave it out")

    def _check_paid(self) -> None:
        """Raise ConfigError for a recipe to which a written reward means nothing, or not what it says."""
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


def recipe_named(argv: list[str], default: str) -> Any:
    """Return the recipe class that --recipe names."""
    from robot_rl.recipes import recipes

    name = default
    for k, word in enumerate(argv):
        if word == "--recipe" and k + 1 < len(argv):
            name = argv[k + 1]
        elif word.startswith("--recipe="):
            name = word.split("=", 1)[1]
    return recipes.get(name)


def _other_task(argv: Sequence[str], names: Collection[str]) -> str:
    """Return the first word that is a name or an import path, and not a flag's value; or ""."""
    pairs = zip(["", *argv], argv, strict=False)
    words = [word for before, word in pairs if not before.startswith("--")]
    return next((word for word in words if word in names or re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", word)), "")


def main(argv: list[str]) -> int:
    """Find the recipe first, so that its options appear in --help."""
    from robot_rl.cli.main import parse
    from sim.tasks import tasks, without_robot

    default = "diffusion-bc"
    if not any(word.startswith("--recipe") for word in argv):
        known = (word for word in argv if word in tasks.entries or without_robot(word))
        task = next(known, "") or _other_task(argv, set(tasks))
        default = "sac" if without_robot(task) else default if not task or tasks.get(task).expert else "ppo"
    recipe = recipe_named(argv, default)
    parsed = parse(Train[recipe], argv, "train")  # type: ignore[valid-type]
    parsed.recipe = parsed.recipe or default
    return int(parsed.run())
