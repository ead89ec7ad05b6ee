"""`robot-rl finetune`: fine-tune a policy on a robot while a person corrects it."""

import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import tyro

from robot_rl.cli import options as opt
from robot_rl.util.limits import NonNegativeFloat, NonNegativeInt

R = TypeVar("R")


@dataclass
class Finetune(Generic[R]):
    """Run a policy on a robot or its twin while a learner process improves it.

    Run a teleop device in another terminal (`robot-rl teleop keyboard`). The device's enable button takes over at once;
    your correction passes the shield, is recorded, and becomes training data."""

    bundle: opt.BundlePath
    config: Annotated[R, tyro.conf.arg(name="")]
    recipe: str = "hil-serl"
    """Recipe, see `robot-rl recipes`; its options are listed below."""
    robot: str = "panda"
    """Robot to control; the bundle must be for this robot."""
    profile: opt.Profile = ""
    instruction: opt.InstructionTopic = ""
    classifier: opt.Classifier = None
    minutes: NonNegativeFloat = 3.0
    """Session length, minutes; the last episode runs to its end."""
    dataset: Path | None = None
    """Dataset of demonstrations; default: the bundle's training dataset."""
    out: Path | None = None
    """Run folder; default runs/<date>-<time>-<task>-<recipe>."""
    seed: opt.RandomSeed = 0
    resume: bool = False
    """Continue the session in --out, or the latest session of this task and recipe, with its dataset and learner."""
    camera: bool = True
    """Record the task's cameras; error if a camera sends nothing."""
    film: NonNegativeInt = 2
    """Number of corrected episodes to film."""
    bag: opt.Bag = False
    ray: opt.Ray = ""
    json: opt.Json = False
    ros_args: opt.RosArgs = field(default_factory=list)

    def run(self) -> int:
        from contextlib import closing
        from signal import Signals

        import torch

        from policies.bundle import Bundle, load_bundle, save_bundle
        from real import clock
        from real.bus import open_node
        from real.control.timing import baseline
        from real.drivers.state import NotReady
        from real.episode.env import RobotEnv
        from real.recording.session import VideoRecorder, stop_on_signals
        from real.sessions.finetune import FinetuneSession, LearnerProcess
        from real.teleop.commands import OperatorInput
        from robot_rl.cli.console import bar, show
        from robot_rl.cluster.remote import require_answer
        from robot_rl.data import Dataset
        from robot_rl.data.recording import load_episodes
        from robot_rl.data.view import DatasetView
        from robot_rl.interface.environment import EnvInfo
        from robot_rl.interface.pipeline import Pipeline
        from robot_rl.recipes import inputs as run_inputs
        from robot_rl.rewards.classifier import load_classifier
        from robot_rl.robots import robots
        from robot_rl.robots.profiles import with_profile
        from robot_rl.training.checkpoint import load_state
        from robot_rl.training.published import WEIGHTS
        from robot_rl.training.run import Run, latest_folder, new_folder, provenance
        from robot_rl.util.errors import ConfigError, Interrupted, UserError

        recipe: Any = self.config
        if not hasattr(recipe, "learner"):
            raise ConfigError(f"recipe {self.recipe} trains in simulation: use `robot-rl train --recipe {self.recipe}`")
        if self.ray:
            require_answer(self.ray)
        torch.set_num_threads(1)
        bundle = load_bundle(self.bundle)
        spec = with_profile(robots.get(self.robot), self.profile)
        bundle.check_robot(spec)
        policy = recipe.prepared(bundle)
        classifier = load_classifier(self.classifier) if self.classifier else None
        source = self.dataset or bundle.provenance.get("dataset")
        if not source or not (Path(source) / "meta" / "info.json").exists():
            raise ConfigError(f"no demonstrations at {source or '(unknown)'}: name the dataset with --dataset")
        dataset = Path(source).resolve()
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
        began = run_inputs.inputs_before(run_inputs.settings_before(folder), settings) if self.resume else {}
        data = run_inputs.open_dataset(dataset, settings, began)
        load_episodes(data, info)  # check the learner's data before the robot moves
        inputs = run_inputs.file_inputs(settings, info, simulated=False)
        inputs |= {"dataset": run_inputs.dataset_inputs(data, info, began)}
        run_inputs.check_inputs(settings, began, inputs, run_inputs.INPUTS)
        settings["inputs"] = began or inputs
        with (
            Run(folder, settings | {"config": asdict(recipe)}, self.resume) as run,
            open_node("finetune", ros_args=self.ros_args, rate=spec.command_rate) as node,
        ):
            unloaded = baseline(spec.command_rate)
            command = [sys.executable, "-m", "robot_rl.cli.learner", str(folder)]
            command += ["--ray", self.ray] if self.ray else ["--lockstep"] if clock.in_lockstep() else []
            film = VideoRecorder(self.film, corrected_only=True)
            interface, operator = replace(bundle.interface, robot=self.robot), OperatorInput(node, spec.name)
            env = RobotEnv(node, interface, cameras=cameras, operator=operator, instruction=self.instruction,
                           classifier=classifier, words=bundle.policy.words, robot=spec)  # fmt: skip
            stop_on_signals()
            session = FinetuneSession(env, policy, run, self.seed, film, self.bag)
            number, ended = 0, ""
            try:
                process = LearnerProcess(command, folder / WEIGHTS, elsewhere=bool(self.ray))
                with closing(session), closing(env), process as learner, bar("finetune") as update:
                    try:
                        session.activate()
                        session.learn(learner, 60 * self.minutes, update)
                    finally:
                        env.close()  # stop the robot first: the learner takes longer to end
            except KeyboardInterrupt as interrupt:
                number = interrupt.args[0]
            except NotReady as error:  # robot or twin died, or another program commands it: keep the learned weights
                ended = str(error)
            loop = env.summary() | unloaded | {"learner": "running beside", "lockstep": clock.in_lockstep()}
            run.write("loop.json", loop)
            film.write(run.folder, "fine-tuning on the robot; an orange edge marks a correction")
            session.adopt()
            policy.explore = False
            learned = folder / "learner" / "checkpoint.safetensors"
            critic = load_state(learned)["state"]["agent"].get("critic", {}) if learned.exists() else bundle.critic
            result = Bundle(policy, bundle.interface, bundle.robot, provenance() | settings, critic)
            save_bundle(result, folder / "bundle")
            summary = {"run": str(folder), "bundle": str(folder / "bundle")} | session.summary()
            summary |= {"ended": ended} if ended else {}
        show(summary, self.json, "fine-tuning")
        kept = f"after {len(session.episodes)} episodes, without the running one; the learned policy is in "
        kept += f"{folder / 'bundle'}; go on with --resume --out {folder}"
        if number:
            raise Interrupted(f"ended by {Signals(number).name} {kept}", number)
        if ended:
            raise UserError(f"{ended}; ended {kept}")
        return 0


def main(argv: list[str]) -> int:
    """Run the command. The recipe's name is parsed first, so that --help lists the recipe's options."""
    from robot_rl.cli.main import parse
    from robot_rl.cli.train import recipe_named

    ros = argv.index("--ros-args") if "--ros-args" in argv else len(argv)
    recipe = recipe_named(argv, "hil-serl")
    parsed = parse(Finetune[recipe], argv[:ros], "finetune")  # type: ignore[valid-type]
    parsed.ros_args = argv[ros:]
    return int(parsed.run())
