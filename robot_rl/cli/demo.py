"""`robot-rl demo`: train a policy, evaluate it, and run it on the robot's twin; each stage is a `robot-rl` command."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import tyro

from robot_rl.util.limits import Seed

Stage = tuple[str, list[str]]
"""Name of a stage, and the arguments of its `robot-rl` command."""


@dataclass(frozen=True)
class Options:
    """Options of a demonstration."""

    folder: Path
    seed: int
    quick: bool
    """Whether to run small stages, which take a few minutes."""
    robot: bool
    """Whether to include the stages on the twin."""


@dataclass(frozen=True)
class Journey:
    """A demonstration: its stages, and a test of what the policy learned."""

    stages: Callable[[Options], list[Stage]]
    check: Callable[[Path], bool]
    """Function (folder) that returns whether the policies of a quick demonstration learned."""


def evaluation(
    policy: str, label: str, episodes: int, film: int, folder: Path, *options: str, name: str = ""
) -> list[str]:
    """Return the command that evaluates a policy and writes the result and a video of `film` episodes to `folder`."""
    suffix = f"_{name}" if name else ""
    video = ["--video", str(folder / "videos" / f"simulation{suffix}.mp4"), "--video-episodes", str(film)]
    out = ["--out", str(folder / f"evaluation{suffix}.json")]
    return ["evaluate", policy, "--label", label, "--episodes", str(episodes), *out, *(video if film else []), *options]


def success(file: Path) -> float:
    """Return the success rate in the evaluation's JSON file."""
    return float(json.loads(file.read_text())["success"])


# ---- arm: demonstrations, cloning, reinforcement learning, corrections on the twin ---------------------------------
@dataclass(frozen=True)
class Scale:
    """Sizes of the arm demonstration's stages."""

    demonstrations: int = 15
    updates: int = 2000
    steps: int = 40_000
    evaluations: int = 200
    robot_episodes: int = 20
    minutes: float = 3.0
    video_episodes: int = 3


QUICK = Scale(5, 500, 12_000, 100, 1, 0.2, 1)
"""Sizes for about four minutes in total: enough to show that each stage works and learns."""


def _panda(o: Options) -> list[Stage]:
    task, scale, seed = "panda-lift", QUICK if o.quick else Scale(), ["--seed", str(o.seed)]
    data = str(o.folder / "collect" / "dataset")
    imitate, improve, tuned = (o.folder / n for n in ("imitate", "improve", "finetune"))
    learn = ["--dataset", data, *seed]
    stages: list[Stage] = [
        ("collect", ["collect", task, "--episodes", str(scale.demonstrations), "--out", data, *seed,
                     "--log", str(o.folder / "collect")]),
        ("imitate", ["train", task, "--recipe", "diffusion-bc", "--out", str(imitate), *learn,
                     "--training.updates", str(scale.updates)]),
        ("improve", ["train", task, "--recipe", "resfit", "--base", str(imitate), "--out", str(improve), *learn,
                     "--training.steps", str(scale.steps)]),
    ]  # fmt: skip
    for run, label, stage in (
        (imitate, "cloned policy", "evaluate the cloned policy"),
        (improve, "after reinforcement learning", "evaluate the improved policy"),
    ):
        measure = evaluation(str(run), label, scale.evaluations, scale.video_episodes, run)
        stages.append((stage, measure))
    if o.quick:
        floor = evaluation(f"random:{task}", "random actions", scale.evaluations, 0, o.folder / "random")
        stages.append(("evaluate random actions", floor))
    if o.robot:
        twin = ["robot:=panda", "twin:=true", f"task:={task}", f"seed:={o.seed}"]
        before, after = o.folder / "deploy-before", o.folder / "deploy-after"
        episodes = f"episodes:={scale.robot_episodes}"
        stages += [
            ("deploy on the twin", ["launch", "arm", *twin, f"policy:={improve}", episodes, f"out:={before}",
                                    "label:=zero-shot on the twin"]),
            ("correct on the twin", ["launch", "finetune", *twin, "teleop:=scripted", f"policy:={improve}",
                                     f"out:={tuned}", f"minutes:={scale.minutes}"]),
            ("deploy again", ["launch", "arm", *twin, f"policy:={tuned}", episodes, f"out:={after}",
                              "label:=after corrections"]),
        ]  # fmt: skip
    return stages


def _panda_learned(folder: Path) -> bool:
    """Return whether cloning beats random actions and reinforcement learning beats cloning."""
    chance, cloned, improved = (success(folder / n / "evaluation.json") for n in ("random", "imitate", "improve"))
    return chance < cloned < improved


# ---- quadruped: reinforcement learning, evaluation in both engines, steering on the twin ---------------------------
def _go2(o: Options) -> list[Stage]:
    task, train = "go2-velocity", o.folder / "train"
    steps = ["--training.steps", "1200000"] if o.quick else []
    count, film = (20, 0) if o.quick else (100, 1)
    stages: list[Stage] = [
        ("train", ["train", task, "--recipe", "ppo", "--out", str(train), "--seed", str(o.seed), *steps]),
        ("evaluate in MuJoCo", evaluation(str(train), "in MuJoCo", count, film, train)),
        ("evaluate in Genesis",
         evaluation(str(train), "in Genesis", count, film, train, "--engine", "genesis", name="genesis")),
    ]  # fmt: skip
    if o.robot:
        twin = ["robot:=go2", "twin:=true", f"task:={task}", f"seed:={o.seed}", f"policy:={train}"]
        episodes = f"episodes:={1 if o.quick else 3}"
        deploy, intervene = (f"out:={o.folder / name}" for name in ("deploy", "intervene"))
        pushed = [f"seconds:={10 if o.quick else 25}", "push_every:=5"]
        person = ["seconds:=12", "teleop:=scripted", "commands:=person", "episodes:=2"]
        stages += [
            ("deploy on the twin", ["launch", "quadruped", *twin, episodes, *pushed, deploy, "label:=on the twin"]),
            ("steer, stop and resume on the twin", ["launch", "quadruped", *twin, *person, intervene,
                                                    "label:=steered by a person, stopped in the first of 2 episodes"]),
        ]  # fmt: skip
    return stages


def _go2_learned(folder: Path) -> bool:
    """Return whether the policy tracks velocity commands better than a standing robot."""
    measured = json.loads((folder / "train" / "evaluation.json").read_text())
    return bool(measured["velocity_error"]["mean"] < 0.45)


# ---- a vision-language-action policy: imitation, reinforcement learning, instructions on the twin --------------------
TASK = "tabletop"
PRACTICE = "resfit"
"""Recipe that improves the cloned policy."""
PRACTISED = "lift the"
"""Prefix of the instructions for reinforcement learning."""


@dataclass(frozen=True)
class VLAScale:
    """Sizes of the vision-language-action demonstration's stages."""

    demonstrations: int = 400
    updates: int = 2800
    batch: int = 64
    steps: int = 16_000
    episodes: int = 60
    """Number of episodes per evaluation."""
    robot_episodes: int = 5
    video_episodes: int = 3
    taught: str = "training"
    """Instructions that are demonstrated: "training" for all training instructions, or a common prefix."""


QUICK_VLA = VLAScale(75, 1000, 32, 1_600, 32, 1, 2, "touch the")
"""Sizes for a few minutes in total: one verb, and too few steps for reinforcement learning to help."""


def _vla(o: Options) -> list[Stage]:
    scale, seed = QUICK_VLA if o.quick else VLAScale(), ["--seed", str(o.seed)]
    data = str(o.folder / "collect" / "dataset")
    imitate, practise = o.folder / "imitate", o.folder / "practise"
    practised = scale.taught if o.quick else PRACTISED
    subset, learn = ["--instructions", practised], ["--dataset", data, *seed]
    episodes, film = scale.episodes, scale.video_episodes
    stages: list[Stage] = [
        ("collect", ["collect", TASK, "--episodes", str(scale.demonstrations), "--num-envs", "25", "--skill", "STEADY",
                     "--changes", "0.3", "--instructions", scale.taught,
                     "--out", data, *seed, "--log", str(o.folder / "collect")]),
        ("imitate", ["train", TASK, "--recipe", "vla-sft", *learn, "--out", str(imitate),
                     "--training.updates", str(scale.updates), "--training.batch", str(scale.batch)]),
        ("practise", ["train", TASK, "--recipe", PRACTICE, "--base", str(imitate), *learn, *subset,
                      "--out", str(practise), "--training.steps", str(scale.steps)]),
    ]  # fmt: skip
    cloned, floor = str(imitate), f"random:{TASK}"
    if o.quick:
        measure = evaluation(floor, "random actions", episodes, 0, o.folder / "random", *subset)
        stages.append(("evaluate random actions", measure))
    else:
        for kind in ("training", "held-out"):
            words, label = ["--instructions", kind], f"{kind} instructions"
            measure = evaluation(cloned, f"cloned, {label}", episodes, film, imitate, *words, name=kind)
            stages.append((f"evaluate the cloned policy, {label}", measure))
    verb = practised.split()[0]
    stages += [
        (f"evaluate the cloned policy, {verb}",
         evaluation(cloned, f"cloned, {verb}", episodes, film if o.quick else 0, imitate, *subset)),
        (f"evaluate the practised policy, {verb}",
         evaluation(str(practise), f"practised, {verb}", episodes, film, practise, *subset)),
    ]  # fmt: skip
    if o.robot:
        twin = ["robot:=panda", "twin:=true", f"task:={TASK}", f"seed:={o.seed}", f"episodes:={scale.robot_episodes}"]
        policy = [f"policy:={practise}", f"instruction:={practised} red cube"]
        if not o.quick:
            out = [f"out:={o.folder / 'deploy'}", "label:=practised, on the twin"]
            stages.append(("deploy on the twin", ["launch", "arm", *twin, *policy, *out]))
        policy = [f"policy:={imitate}", "instruction:=touch the red cube", f"then:={practised} green ball", "after:=1"]
        out = [f"out:={o.folder / 'talk'}", "label:=cloned, on the twin, instruction changed midway"]
        stages.append(("change the instruction on the twin", ["launch", "arm", *twin, *policy, *out]))
    return stages


def _vla_learned(folder: Path) -> bool:
    """Return whether the cloned policy succeeds more often than random actions."""
    return success(folder / "imitate" / "evaluation.json") > success(folder / "random" / "evaluation.json")


JOURNEYS = {
    "panda-lift": Journey(_panda, _panda_learned),
    "go2": Journey(_go2, _go2_learned),
    "vla": Journey(_vla, _vla_learned),
}


@dataclass
class Demo:
    """Run a demonstration and write report.html. Two CPU cores take 11 minutes (panda-lift), 9 (go2) or 25 (vla).

    panda-lift: a Panda learns to lift a cube, then is deployed and corrected on the twin. go2: a Go2 learns to walk,
    is evaluated in Genesis and on the twin, and is steered, stopped and reset. vla: a small vision-language-action
    policy is cloned, improved by reinforcement learning, and given instructions on the twin."""

    name: tyro.conf.Positional[str] = "panda-lift"
    """Demonstration: panda-lift, go2 or vla."""
    quick: bool = False
    """Run small stages, four to five minutes in total, and check that the policy learned."""
    seed: Seed = 0
    """Seed of everything random, except the held-out episodes, which never change."""
    out: Path | None = None
    """Output folder; default runs/<date>-<time>-demo."""
    robot: bool = True
    """Include the stages on the twin."""
    stages: dict[str, Any] = field(default_factory=dict, init=False)

    def run(self) -> int:
        from robot_rl.cli.console import console
        from robot_rl.cli.launch import private_domain
        from robot_rl.util.errors import ConfigError, UnknownName

        if self.name not in JOURNEYS:
            raise UnknownName("demo", self.name, JOURNEYS)
        journey = JOURNEYS[self.name]
        folder = self.out or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-demo"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise ConfigError(f"{folder} exists; choose another --out") from None
        stages = journey.stages(Options(folder, self.seed, self.quick, self.robot))
        stages.append(("report", ["report", str(folder), "--out", str(folder / "report.html")]))
        environment = private_domain() | os.environ  # the user's setting wins
        begin = time.monotonic()
        for number, (stage, command) in enumerate(stages, 1):
            console.rule(f"[bold]{number}. {stage}", align="left")
            line = "$ robot-rl " + shlex.join(command)  # unwrapped, for copy and paste
            console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)
            start = time.monotonic()
            code = _finish([sys.executable, "-m", "robot_rl.cli.main", *command], environment)
            now = time.monotonic()
            self.stages[stage] = {"seconds": round(now - start, 1), "since_start": round(now - begin, 1)}
            (folder / "demo.json").write_text(json.dumps(self.stages, indent=2))
            if code:
                console.print(f"stage {stage} failed with status {code}; earlier results are in {folder}")
                return code
        console.rule(f"[bold]done in {(time.monotonic() - begin) / 60:.1f} minutes", align="left")
        if self.quick:
            learned = journey.check(folder)
            console.print("the policy learned" if learned else "the policy did not learn")
            return 0 if learned else 1
        return 0


def _finish(command: list[str], environment: dict[str, str]) -> int:
    """Run a stage to its end, even after a signal, so that it saves its work; return its exit status.

    A signal raises no exception here: raised after the stage's end, it would lose the stage's exit status.
    """
    stage: subprocess.Popen[bytes] | None = None
    received: set[int] = set()

    def on_signal(number: int, frame: object) -> None:
        received.add(number)
        if stage and number == signal.SIGTERM:  # a terminal sends SIGINT to the stage itself
            stage.terminate()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        stage = subprocess.Popen(command, env=environment)
        if signal.SIGTERM in received:  # during the start
            stage.terminate()
        return stage.wait() or (128 + min(received) if received else 0)  # the stage may have finished despite a signal
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
