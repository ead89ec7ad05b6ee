"""`robot-rl record`: record demonstrations by a person."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.live import Live
from rich.text import Text

from robot_rl.cli import options as opt
from robot_rl.cli.console import console
from robot_rl.util.limits import NonNegativeFloat, NonNegativeInt, PositiveInt, Seed

if TYPE_CHECKING:
    from real.sessions.recording import Progress
    from robot_rl.data import Dataset
    from robot_rl.interface.pipeline import Interface
    from sim.tasks.base import Task


@dataclass
class Record:
    """Record demonstrations by a person as a LeRobot v3.0 dataset for `robot-rl train`.

    In simulation, use a device in this terminal. With --robot, record on a robot or its twin and run `robot-rl teleop`
    in another terminal. An episode begins with the first input. It ends when the task is solved, or when you mark it as
    success or failure, or reset, which discards and repeats it."""

    task: opt.TaskName
    teleop: Literal["keyboard", "gamepad", "spacemouse", "topic"] = "keyboard"
    """Input in simulation: a device in this terminal, or the topic teleop/<robot>/joy, which `robot-rl teleop` or your
    own node publishes. A robot always gets its input from this topic."""
    instruction: str = ""
    """For a task with instructions: on a robot, the instruction to demonstrate; in simulation, the prefix of the
    instructions to demonstrate, or empty for all training instructions."""
    robot: str | None = None
    """Record on this robot or its twin through its topics; default: in simulation."""
    profile: opt.Profile = ""
    episodes: PositiveInt = 20
    """Number of demonstrations in the finished dataset."""
    out: Path | None = None
    """Dataset folder; default datasets/<task>."""
    resume: bool = False
    """Continue a dataset that `robot-rl record` began."""
    keep_failures: bool = False
    """Keep episodes that you marked as failures or that timed out."""
    keep_pauses: bool = False
    """Keep control periods without input and motion."""
    seconds: NonNegativeFloat = 30.0
    """Time limit of an episode, s; 0: the task's limit for policies."""
    seed: Seed = 0
    """Seed of object poses and of the simulation's randomization."""
    image_size: NonNegativeInt = 0
    """In simulation, image height and width for cameras that the policy does not use, pixels; 0 leaves these cameras
    out, because rendering without a GPU slows the simulation down."""
    view: bool = False
    """Show the simulation in the browser on this machine. For a robot, use `robot-rl view robot:NAME`."""
    camera: bool = True
    """Record the robot's cameras; error if a camera sends nothing."""
    without: opt.Without = ()
    mjcf: opt.Mjcf = ""
    json: opt.Json = False
    ros_args: opt.RosArgs = field(default_factory=list)

    def run(self) -> int:
        if not self.view:
            return self.record()
        from robot_rl.util.errors import ConfigError
        from robot_rl.view.simulation import RecordingView

        if self.robot:
            raise ConfigError(f"--view shows a simulation; start `robot-rl view robot:{self.robot}` beside this")
        with closing(RecordingView(lambda address: console.print(f"view: {address} (this machine only)"))) as view:
            return self.record(view)

    def record(self, on_step: Callable[[Any], None] = lambda _env: None) -> int:
        """Record demonstrations; return the exit status. After every control period, `on_step` gets the environment."""
        from signal import Signals

        import torch

        from real.recording.recorder import Recorder
        from real.recording.session import stop_on_signals
        from real.sessions.recording import Recording
        from real.teleop import Finished
        from robot_rl.cli.console import show
        from robot_rl.cli.deploy import limited
        from robot_rl.util.errors import ConfigError, Interrupted
        from robot_rl.util.settings import as_json
        from sim.collect import check_settings, store_settings
        from sim.tasks import task_of, tasks, without_robot

        torch.set_num_threads(1)
        if self.profile and not self.robot:
            raise ConfigError(f"--profile {self.profile} is a real robot's driver; name the robot with --robot")
        if without_robot(self.task):
            raise ConfigError(f"{self.task} has no robot that a person could move; record a task of `robot-rl tasks`")
        task = task_of(self.robot, self.task) if self.robot else tasks.get(self.task)
        _check_movable(task)
        task = replace(task, interface=limited(task.interface, self.seconds))
        out = self.out or Path("datasets") / self.task.replace(":", ".")
        number, ended = 0, ""
        with ExitStack() as stack:
            # Open the device first: opening may fail, and the terminal must be restored last.
            env, cameras, settings = stack.enter_context(self._on_robot(task) if self.robot else self._simulated(task))
            settings = as_json({"task": self.task, "seed": self.seed, "skill": "person"} | settings)
            settings["keep_failures"] = self.keep_failures
            exists = self.resume and (out / "meta" / "info.json").exists()
            if exists and _check_columns(out, env.pipeline, cameras.sizes).num_episodes:
                check_settings(out, settings)
            recorder = stack.enter_context(closing(Recorder(out, env.pipeline, cameras.sizes, self.resume)))
            store_settings(recorder.writer, settings)
            say = stack.enter_context(display(env.pipeline.interface, self.seconds))
            recording = Recording(
                env, recorder, cameras.look, self.episodes, self.seed, self.keep_failures, self.keep_pauses, say,
                on_step,
            )  # fmt: skip
            stop_on_signals()
            try:
                recording.activate()
                recording.run()
            except Finished:
                ended = "you quit"
            except KeyboardInterrupt as interrupt:
                number = int(interrupt.args[0])
        progress = recording.progress
        summary: dict[str, Any] = {
            "path": str(out), "episodes": progress.saved, "frames": recorder.writer.num_frames,
            "new_episodes": progress.new, "successes": progress.successes, "failures": progress.failures,
            "discarded": progress.discarded, "paused_frames": progress.paused,
        }  # fmt: skip
        if not self.robot:
            timing = env.ticker.timing
            summary["speed"] = len(timing.late) / max(1, len(timing.late) + timing.missed)
        summary |= {"ended": ended} if ended else {}
        show(summary, self.json, "demonstrations")
        if number:
            raise Interrupted(
                f"ended by {Signals(number).name} with {progress.saved} episodes in {out}, without the running one; "
                "go on with --resume",
                number,
            )
        return 0

    @contextmanager
    def _simulated(self, task: Task) -> Iterator[Any]:
        from real.episode.rehearsal import RehearsalEnv
        from real.teleop import DeviceInput, OperatorInput, open_device
        from robot_rl.robots import robots
        from sim.env import TaskEnv
        from sim.step.sampling import TRAINING

        with ExitStack() as stack:
            if self.teleop == "topic":
                from real.bus import open_node

                node = stack.enter_context(open_node("record", ros_args=self.ros_args))
                inputs = OperatorInput(node, robots.get(task.interface.robot).name)
            else:
                device = open_device(self.teleop)
                console.print(device.help, highlight=False)
                inputs = DeviceInput(device)
            stack.enter_context(closing(inputs))
            words = self.instruction or TRAINING
            simulation = TaskEnv(task, 1, mjcf=self.mjcf, without=self.without, instruction_set=words)
            env = RehearsalEnv(stack.enter_context(closing(simulation)), inputs, self.image_size)
            yield env, env, {"image_size": self.image_size, "where": "simulation", "mjcf": env.mjcf} | env.simulation

    @contextmanager
    def _on_robot(self, task: Task) -> Iterator[Any]:
        from real.bus import open_node
        from real.episode.env import RobotEnv
        from real.recording.recorder import RobotCameras
        from real.teleop import OperatorInput
        from robot_rl.robots import robots
        from robot_rl.robots.profiles import with_profile

        robot = with_profile(robots.get(task.interface.robot), self.profile)
        cameras = task.interface.cameras if self.camera else ()
        with open_node("policy", ros_args=self.ros_args) as node:
            operator = OperatorInput(node, robot.name)
            env = RobotEnv(
                node, task.interface, cameras=cameras, operator=operator, instruction=self.instruction, robot=robot
            )
            with closing(env):
                yield env, RobotCameras(env), {"where": "robot", "camera": self.camera}


def _check_movable(task: Task) -> None:
    """Raise ConfigError if the task's actions move no tool, because no input device can then demonstrate the task."""
    from robot_rl.interface.pipeline import Pipeline
    from robot_rl.util.errors import ConfigError

    pipeline = Pipeline(task.interface)
    if not pipeline.controller.twist_limit.any():
        steered = " (a person steers it, and a policy moves its legs)" if pipeline.command.fields else ""
        raise ConfigError(
            f"the actions of task {task.name!r} move joints and not a tool{steered}: no device can demonstrate them; "
            "learn it with train --recipe ppo"
        )


def _check_columns(root: Path, pipeline: Any, images: Any) -> Dataset:
    """Return the dataset to continue. Raises DatasetError if its columns differ from those that would be recorded."""
    from robot_rl.data import Dataset, DatasetError
    from robot_rl.data.recording import check, features
    from robot_rl.interface.environment import EnvInfo

    dataset, info = Dataset(root), EnvInfo.of(pipeline)
    check(dataset, info)
    new = {key: f.shape for key, f in features(info, images).items() if f.is_video}
    old = {key: f.shape for key, f in dataset.features.items() if f.is_video}
    if new != old:
        raise DatasetError(f"{root} holds the pictures {old}, but this session records {new}; choose another --out")
    return dataset


STYLES = {"running": "bold red", "waiting": "bold yellow", "let go": "bold yellow", "saved": "bold green"}
WORDS = {
    "resetting": "resetting", "let go": "let go of the keys to begin", "waiting": "waiting for your first input",
    "running": "RECORDING", "saved": "saved", "failed": "failed, not saved", "discarded": "discarded; the same again",
}  # fmt: skip
KEYS = (
    "The robot stands still while you give no input. The episode ends when the task is solved, or by your mark:",
    "y success    n failure    enter discard and repeat    q quit    (gamepad: A, X, Menu, Ctrl-C)",
)


@contextmanager
def display(interface: Interface, seconds: float) -> Iterator[Any]:
    """Show a recording's state in a line that updates in place, or, without a terminal, in a new line per change.

    Yield the update function, which takes the recording's `Progress`.
    """
    from real import clock

    for text in (f"{interface.task}: {interface.instruction}", *KEYS):
        console.print(text, soft_wrap=True, markup=False)
    limit = f" of {seconds:g} s" if seconds else " s"
    before = ""

    def line(progress: Progress) -> Text:
        number = progress.saved + (progress.phase != "saved")
        text = Text(f"episode {number} of {progress.episodes}  ")
        text.append(WORDS.get(progress.phase, progress.phase), STYLES.get(progress.phase, ""))
        if progress.phase == "running":
            text.append(f" {clock.now() - progress.began:4.1f}{limit}")
        counts = f"   saved {progress.new}, failed {progress.failures}, discarded {progress.discarded}"
        text.append(counts, "dim")
        return text.append(f"   {progress.instruction}", "bold") if progress.instruction else text

    if not console.is_terminal:

        def say(progress: Progress) -> None:
            nonlocal before
            if progress.phase != before and progress.phase != "resetting":
                console.print(line(progress), soft_wrap=True)
            before = progress.phase

        yield say
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        shown = [0.0]

        def update(progress: Progress) -> None:
            nonlocal before
            now, changed = time.monotonic(), progress.phase != before
            if progress.phase in ("saved", "failed", "discarded") and changed:
                live.console.print(line(progress))
            if changed or now - shown[0] > 0.2:
                live.update(line(progress), refresh=True)
                shown[0] = now
            before = progress.phase

        yield update
