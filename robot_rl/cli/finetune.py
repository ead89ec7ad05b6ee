"""`robot-rl finetune`: keep learning on the robot while a person corrects it."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import tyro

from robot_rl.util.limits import NonNegativeFloat, NonNegativeInt, Seed

R = TypeVar("R")


@dataclass
class Finetune(Generic[R]):
    """Run a policy on a robot or its twin while a learner process improves it.

    Start a teleop device beside it (`robot-rl teleop keyboard`): holding its dead-man takes over at once; the
    correction is executed through the shield, recorded and learned from."""

    bundle: tyro.conf.Positional[Path]
    """Bundle, or a run folder that holds one."""
    config: Annotated[R, tyro.conf.arg(name="")]
    recipe: str = "hil-serl"
    """How to learn, see `robot-rl recipes`; its options are listed below."""
    robot: str = "panda"
    """Robot to drive; a bundle for another one is refused."""
    instruction: str = ""
    """What the robot is asked, for a policy that reads instructions; the topic `instruction` changes it."""
    classifier: Path | None = None
    """Success classifier that judges episodes by what the cameras see, in place of the task's own test: objects then
    need no tracking; see `robot-rl classifier fit`."""
    minutes: NonNegativeFloat = 3.0
    """Length of the session, minutes; the last episode is finished."""
    dataset: Path | None = None
    """Demonstrations; default is the dataset that the bundle was trained on."""
    out: Path | None = None
    """Run folder; default runs/<date>-<time>-<task>-<recipe>."""
    seed: Seed = 0
    """Seed of everything random."""
    resume: bool = False
    """Continue the session in --out, or the latest of this task and recipe: its dataset, weights and learner."""
    camera: bool = True
    """Record the task's cameras; one that sends nothing is an error."""
    film: NonNegativeInt = 2
    """Corrected episodes to record as video."""
    json: bool = False
    """Print one JSON object instead of a table."""
    ros_args: tyro.conf.Suppress[list[str]] = field(default_factory=list)

    def run(self) -> int:
        """Fine-tune; return the exit status."""
        from contextlib import closing
        from signal import Signals

        import torch

        from policies.bundle import Bundle, load_bundle, save_bundle
        from real.bus import open_node
        from real.control.clock import bare_loop
        from real.episode.env import RobotEnv
        from real.finetune import FinetuneSession, LearnerProcess
        from real.recording.session import VideoRecorder, stop_on_signals
        from real.robots.base import NotReady
        from real.teleop.commands import OperatorInput
        from robot_rl.cli.console import bar, show
        from robot_rl.data import Dataset
        from robot_rl.data.recording import load_episodes
        from robot_rl.data.view import DatasetView
        from robot_rl.interface.environment import EnvInfo
        from robot_rl.interface.pipeline import Pipeline
        from robot_rl.recipes.inputs import (
            INPUTS,
            check_inputs,
            dataset_inputs,
            file_inputs,
            inputs_before,
            open_dataset,
            settings_before,
        )
        from robot_rl.rewards.classifier import load_classifier
        from robot_rl.robots import robots
        from robot_rl.training.checkpoint import load_state
        from robot_rl.training.human_in_the_loop import WEIGHTS
        from robot_rl.training.run import Run, latest_folder, new_folder, provenance
        from robot_rl.util.errors import ConfigError, Interrupted, UserError

        recipe: Any = self.config
        if not hasattr(recipe, "learner"):
            raise ConfigError(f"recipe {self.recipe} trains in simulation: use `robot-rl train --recipe {self.recipe}`")
        torch.set_num_threads(1)
        bundle = load_bundle(self.bundle)
        spec = robots.get(self.robot)
        bundle.check_robot(spec)
        policy = recipe.policy(bundle)
        classifier = load_classifier(self.classifier) if self.classifier else None
        named = self.dataset or bundle.provenance.get("dataset")
        if not named or not (Path(named) / "meta" / "info.json").exists():
            raise ConfigError(f"no demonstrations at {named or '(unknown)'}: name the dataset with --dataset")
        dataset = Path(named).resolve()
        info = EnvInfo.of(Pipeline(bundle.interface))
        which = Path("runs"), bundle.interface.task, self.recipe
        folder = self.out or (latest_folder(*which, "episodes.jsonl") if self.resume else new_folder(*which))
        settings: dict[str, Any] = {"task": bundle.interface.task, "recipe": self.recipe, "seed": self.seed}
        cameras = bundle.interface.cameras if self.camera else ()
        settings |= {"dataset": str(dataset), "base": str(self.bundle), "robot": self.robot, "minutes": self.minutes}
        settings["cameras"] = cameras
        settings["classifier"] = str(self.classifier.resolve()) if self.classifier else ""
        view = DatasetView.inherited(bundle.provenance, Dataset(dataset).features)
        settings |= {"rename": list(view.rename), "image_size": view.image_size}
        began = inputs_before(settings_before(folder), settings) if self.resume else {}
        data = open_dataset(dataset, settings, began)
        load_episodes(data, info)  # the learner reads it too: check it before the robot moves
        inputs = file_inputs(settings, info, simulated=False) | {"dataset": dataset_inputs(data, info, began)}
        check_inputs(settings, began, inputs, INPUTS)
        settings["inputs"] = began or inputs
        with (
            Run(folder, settings | {"config": asdict(recipe)}, self.resume) as run,
            open_node("finetune", ros_args=self.ros_args, rate=spec.command_rate) as node,
        ):
            bare = bare_loop(spec.command_rate).summary()
            command = [sys.executable, "-m", "robot_rl.cli.learner", str(folder)]
            film = VideoRecorder(self.film, corrected_only=True)
            env = RobotEnv(node, bundle.interface, cameras=cameras, operator=OperatorInput(node, spec.name),
                           instruction=self.instruction, classifier=classifier, words=bundle.policy.words)  # fmt: skip
            stop_on_signals()
            session = FinetuneSession(env, policy, run, self.seed, film)
            number, ended = 0, ""
            try:
                with (
                    closing(session),
                    closing(env),
                    LearnerProcess(command, folder / WEIGHTS) as learner,
                    bar("finetune") as update,
                ):
                    try:
                        session.learn(learner, 60 * self.minutes, update)
                    finally:
                        env.close()  # the robot first: a learner takes a while to end
            except KeyboardInterrupt as interrupt:
                number = interrupt.args[0]
            except NotReady as error:  # the robot or its twin died, or somebody else commands it: keep what was learned
                ended = str(error)
            run.write("loop.json", env.summary() | {"bare": bare, "learner": "running beside"})
            film.write(run.folder, "fine-tuning on the robot; an orange edge marks a correction")
            session.adopt()
            policy.explore = False
            learned = folder / "learner" / "checkpoint.safetensors"
            critic = load_state(learned)["state"]["agent"]["critic"] if learned.exists() else bundle.critic
            result = Bundle(policy, bundle.interface, bundle.robot, provenance() | settings, critic)
            save_bundle(result, folder / "bundle")
            summary = {"run": str(folder), "bundle": str(folder / "bundle")} | session.summary()
            summary |= {"ended": ended} if ended else {}
        show(summary, self.json, "fine-tuning")
        if number:
            raise Interrupted(
                f"ended by {Signals(number).name} after {len(session.episodes)} episodes, without the running one; "
                f"what was learned is in {folder / 'bundle'}; go on with --resume --out {folder}",
                number,
            )
        if ended:
            raise UserError(
                f"{ended}; ended after {len(session.episodes)} episodes, without the running one; what was learned is "
                f"in {folder / 'bundle'}; go on with --resume --out {folder}"
            )
        return 0


def main(argv: list[str]) -> int:
    """Parse the recipe's name first: its own options then appear in --help."""
    from robot_rl.cli.main import parse
    from robot_rl.cli.train import recipe_named

    ros = argv.index("--ros-args") if "--ros-args" in argv else len(argv)
    recipe = recipe_named(argv, "hil-serl")
    parsed = parse(Finetune[recipe], argv[:ros], "finetune")  # type: ignore[valid-type]
    parsed.ros_args = argv[ros:]
    return int(parsed.run())
