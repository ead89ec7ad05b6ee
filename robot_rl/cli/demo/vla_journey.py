"""The stages of `robot-rl demo vla`: a small policy that sees and reads learns a tabletop, practises, and is told what
to do on the twin."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from robot_rl.cli.demo.stages import Options, Stage, evaluation, success

TASK = "tabletop"
PRACTICE = "resfit"
"""Recipe that improves the clone."""
PRACTISED = "lift the"
"""What practice asks for: instructions that begin so."""


@dataclass(frozen=True)
class VLAScale:
    """Sizes of the stages."""

    demonstrations: int = 400
    updates: int = 2800
    batch: int = 64
    steps: int = 16_000
    episodes: int = 60
    """Of each evaluation."""
    robot_episodes: int = 5
    video_episodes: int = 3
    taught: str = "training"
    """What is demonstrated."""


QUICK = VLAScale(75, 1000, 32, 1_600, 32, 1, 2, "touch the")
"""Sizes for a few minutes in all: one verb, and too little practice to help."""


def stages(o: Options) -> list[Stage]:
    """Return the stages in order."""
    scale, seed = QUICK if o.quick else VLAScale(), ["--seed", str(o.seed)]
    data = str(o.folder / "collect" / "dataset")
    imitate, practise = o.folder / "imitate", o.folder / "practise"
    practised = scale.taught if o.quick else PRACTISED
    asked = ["--instructions", practised]
    shown = ["--dataset", data]
    episodes, film = scale.episodes, scale.video_episodes
    found: list[Stage] = [
        (
            "collect",
            ["collect", TASK, "--episodes", str(scale.demonstrations), "--num-envs", "25", "--skill", "STEADY"]
            + ["--changes", "0.3", "--instructions", scale.taught]
            + ["--out", data, *seed, "--log", str(o.folder / "collect")],
        ),
        (
            "imitate",
            ["train", TASK, "--recipe", "vla-sft", *shown, "--out", str(imitate), *seed]
            + ["--training.updates", str(scale.updates), "--training.batch", str(scale.batch)],
        ),
        (
            "practise",
            ["train", TASK, "--recipe", PRACTICE, "--base", str(imitate), *shown]
            + [*asked, "--out", str(practise), *seed, "--training.steps", str(scale.steps)],
        ),
    ]
    cloned, floor = str(imitate), f"random:{TASK}"
    if o.quick:
        measure = evaluation(floor, "random actions", episodes, 0, o.folder / "random", *asked)
        found.append(("evaluate random actions", measure))
    else:
        for which, label in (("training", "told what it was shown"), ("held-out", "told what nobody showed it")):
            words = ["--instructions", which]
            measure = evaluation(cloned, f"cloned, {label}", episodes, film, imitate, *words, name=which)
            found.append((f"evaluate the clone, {label}", measure))
    verb = practised.split()[0]
    found += [
        (
            f"evaluate the clone's {verb}",
            evaluation(cloned, f"cloned, told to {verb}", episodes, film if o.quick else 0, imitate, *asked),
        ),
        (
            f"evaluate the practised {verb}",
            evaluation(str(practise), f"practised, told to {verb}", episodes, film, practise, *asked),
        ),
    ]
    if o.robot:
        twin = ["robot:=panda", "twin:=true", f"task:={TASK}", f"seed:={o.seed}", f"episodes:={scale.robot_episodes}"]
        told = [f"policy:={practise}", f"instruction:={practised} red cube"]
        if not o.quick:
            out = [f"out:={o.folder / 'deploy'}", "label:=practised, on the twin"]
            found.append(("deploy on the twin", ["launch", "arm", *twin, *told, *out]))
        told = [f"policy:={imitate}", "instruction:=touch the red cube", f"then:={practised} green ball", "after:=1"]
        out = [f"out:={o.folder / 'talk'}", "label:=cloned, on the twin, told something else on its way"]
        found.append(("change its mind on the twin", ["launch", "arm", *twin, *told, *out]))
    return found


def learned(folder: Path) -> bool:
    """Return whether the clone does what it is told more often than random actions do."""
    return success(folder / "imitate" / "evaluation.json") > success(folder / "random" / "evaluation.json")
