"""The stages of the demonstrations; each is a command."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from robot_rl.cli.demo.stages import Journey, Options, Stage, evaluation, success
from robot_rl.cli.demo.vla_journey import learned as vla_learned
from robot_rl.cli.demo.vla_journey import stages as vla


# ---- an arm: demonstrations, cloning, reinforcement learning, a twin, corrections -----------------------------------
@dataclass(frozen=True)
class Scale:
    """Sizes of the stages of the arm's demonstration."""

    demonstrations: int = 15
    updates: int = 2000
    steps: int = 40_000
    evaluations: int = 200
    robot_episodes: int = 20
    minutes: float = 3.0
    video_episodes: int = 3


QUICK = Scale(10, 500, 12_000, 100, 1, 0.2, 1)
"""Sizes for three minutes in all, enough to show that each stage works and learns."""


def _panda(o: Options) -> list[Stage]:
    task, scale, seed = "panda-lift", QUICK if o.quick else Scale(), ["--seed", str(o.seed)]
    data = str(o.folder / "collect" / "dataset")
    imitate, improve, tuned = (o.folder / n for n in ("imitate", "improve", "finetune"))
    learn = ["--dataset", data, *seed]
    stages: list[Stage] = [
        (
            "collect",
            ["collect", task, "--episodes", str(scale.demonstrations), "--out", data, *seed]
            + ["--log", str(o.folder / "collect")],
        ),
        (
            "imitate",
            ["train", task, "--recipe", "diffusion-bc", "--out", str(imitate), *learn]
            + ["--training.updates", str(scale.updates)],
        ),
        (
            "improve",
            ["train", task, "--recipe", "resfit", "--base", str(imitate), "--out", str(improve), *learn]
            + ["--training.steps", str(scale.steps)],
        ),
    ]
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
            (
                "deploy on the twin",
                ["launch", "arm", *twin, f"policy:={improve}", episodes, f"out:={before}"]
                + ["label:=zero-shot on the twin"],
            ),
            (
                "correct on the twin",
                ["launch", "finetune", *twin, "teleop:=scripted", f"policy:={improve}", f"out:={tuned}"]
                + [f"minutes:={scale.minutes}"],
            ),
            (
                "deploy again",
                ["launch", "arm", *twin, f"policy:={tuned}", episodes, f"out:={after}"] + ["label:=after corrections"],
            ),
        ]
    return stages


def _panda_learned(folder: Path) -> bool:
    """Return whether cloning beats chance, and reinforcement learning beats cloning."""
    chance, cloned, improved = (success(folder / n / "evaluation.json") for n in ("random", "imitate", "improve"))
    return chance < cloned < improved


# ---- a quadruped: reinforcement learning, the other engine, a twin that is steered ---------------------------------
def _go2(o: Options) -> list[Stage]:
    task, train = "go2-velocity", o.folder / "train"
    steps = ["--training.steps", "1200000"] if o.quick else []
    count, film = (20, 0) if o.quick else (100, 1)
    stages: list[Stage] = [
        ("train", ["train", task, "--recipe", "ppo", "--out", str(train), "--seed", str(o.seed), *steps]),
        ("evaluate in MuJoCo", evaluation(str(train), "in MuJoCo", count, film, train)),
        (
            "evaluate in Genesis",
            evaluation(str(train), "in Genesis", count, film, train, "--engine", "genesis", name="genesis"),
        ),
    ]
    if o.robot:
        twin = ["robot:=go2", "twin:=true", f"task:={task}", f"seed:={o.seed}", f"policy:={train}"]
        episodes = f"episodes:={1 if o.quick else 3}"
        deploy, intervene = (f"out:={o.folder / name}" for name in ("deploy", "intervene"))
        pushed = [f"seconds:={10 if o.quick else 25}", "push_every:=5"]
        person = ["seconds:=12", "teleop:=scripted", "commands:=person", "episodes:=2"]
        stages += [
            ("deploy on the twin", ["launch", "quadruped", *twin, episodes, *pushed, deploy, "label:=on the twin"]),
            (
                "steer, stop and resume on the twin",
                ["launch", "quadruped", *twin, *person, intervene]
                + ["label:=steered by a person, with a stop in the first of two walks"],
            ),
        ]
    return stages


def _go2_learned(folder: Path) -> bool:
    """Return whether it tracks better than a standing robot."""
    measured = json.loads((folder / "train" / "evaluation.json").read_text())
    return bool(measured["velocity_error"]["mean"] < 0.45)


JOURNEYS = {
    "panda-lift": Journey(_panda, _panda_learned),
    "go2": Journey(_go2, _go2_learned),
    "vla": Journey(vla, vla_learned),
}
