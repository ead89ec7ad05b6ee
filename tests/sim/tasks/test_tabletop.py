"""Instructions: each episode draws one and is judged by it; the demonstrator does what it is told."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_rl.cli.main import main
from robot_rl.data import Dataset
from robot_rl.interface.pipeline import Instruction, Interface
from robot_rl.util.errors import ConfigError
from sim.demonstrators import make_expert
from sim.env import TaskEnv
from sim.tasks import tasks

TASK = tasks.get("tabletop")
TOLD = TASK.interface.instructions
BLIND = replace(TASK, interface=replace(TASK.interface, pictures=()))
"""Without pictures, which take time."""


def told(env: TaskEnv) -> list[str]:
    return [env.instruction(i) for i in range(env.num_envs)]


def test_held_out_instructions_are_never_asked_in_training_and_have_known_words() -> None:
    assert len(TOLD) == 24 and 4 <= sum(i.held_out for i in TOLD) <= 6
    known = {word for i in TOLD if not i.held_out for word in i.text.split()}
    asked: dict[str, set[str]] = {}
    for which in ("training", "held-out", "all"):
        env = TaskEnv(BLIND, 100, threads=1, asks=which)  # type: ignore[arg-type]
        asked[which] = {text for seed in (0, 1000, 2000) for text in (env.reset(seed=seed), told(env))[1]}
        env.close()
    assert asked["training"] == {i.text for i in TOLD if not i.held_out}
    assert asked["held-out"] == {i.text for i in TOLD if i.held_out}
    assert asked["all"] == asked["training"] | asked["held-out"]
    assert {word for text in asked["held-out"] for word in text.split()} <= known
    with pytest.raises(ConfigError, match="'panda-lift' has no held-out instructions"):
        TaskEnv("panda-lift", 1, asks="held-out")


def test_an_episode_has_its_instruction_and_layout_from_its_seed_alone(same: Any) -> None:
    many, one = TaskEnv(BLIND, 6, threads=1), TaskEnv(BLIND, 1, threads=1)
    many.reset(seed=3)
    one.reset(seed=7)
    for _ in range(3):
        assert told(many)[4] == told(one)[0]
        for name, pose in many.true.objects.items():
            assert torch.equal(pose[4], one.true.objects[name][0])
        for env in (many, one):
            for _ in range(160):  # to the next episode, or beyond
                *_, infos = env.step(torch.zeros(env.num_envs, 4))
                if "final_obs" in infos:
                    break
    state = many.state_dict()
    before = told(many)
    many.reset(seed=50)
    many.load_state_dict(state)
    assert told(many) == before
    many.close()
    one.close()


def test_layouts_deal_every_object_to_every_place_and_nothing_overlaps() -> None:
    env = TaskEnv(BLIND, 200, threads=1)
    env.reset(seed=0)
    at = {name: pose[:, :2] for name, pose in env.true.objects.items()}
    places = torch.tensor(TASK.scene.places)
    for where in at.values():
        nearest = torch.cdist(where, places).argmin(1)
        assert nearest.unique().numel() == len(places)
    names = list(at)
    for k, name in enumerate(names):
        for other in names[k + 1 :]:
            assert (at[name] - at[other]).norm(dim=1).min() > (0.083 if "tray" in (name, other) else 0.06)
    env.close()


def test_the_demonstrator_does_what_it_is_told_and_something_else_is_no_success() -> None:
    env = TaskEnv(BLIND, 120, threads=2, asks="all")
    expert = make_expert(env, "STEADY", 0)
    env.reset(seed=0)
    asked, won, still_open = told(env), torch.zeros(120, dtype=torch.bool), torch.ones(120, dtype=torch.bool)
    for _ in range(160):
        _, _, terminated, truncated, infos = env.step(expert.act({}))
        won |= infos["success"] & still_open
        done = terminated | truncated
        still_open &= ~done
        expert.reset(done.nonzero().squeeze(-1))
    assert won.float().mean() > 0.85
    verbs = {verb: [bool(w) for w, text in zip(won, asked, strict=True) if text.startswith(verb)]
             for verb in ("touch", "lift", "push", "put")}  # fmt: skip
    assert all(sum(w) / len(w) > 0.7 for w in verbs.values()), verbs
    wrong = torch.zeros(120)
    for k in range(1, 24):  # in the end of these motions, judged by other instructions
        other = (env.true.instruction + k) % 24
        assert env.pipeline.success is not None
        wrong += env.pipeline.success(replace(env.true, instruction=other)) / 23
    assert wrong.mean() < 0.1
    env.close()


def test_recorded_episodes_are_labelled_with_their_instruction(tmp_path: Path) -> None:
    words = [
        "collect",
        "tabletop",
        "--episodes",
        "5",
        "--num-envs",
        "5",
        "--skill",
        "STEADY",
        "--out",
        str(tmp_path / "d"),
    ]
    assert main([*words, "--image-size", "0", "--keep-failures"]) == 0
    recorded = Counter(episode.task for episode in Dataset(tmp_path / "d").episodes)
    assert len(recorded) > 2 and set(recorded) <= {i.text for i in TOLD if not i.held_out}


def test_an_interface_with_instructions_survives_json_and_names_its_faults() -> None:
    assert Interface.from_json(json.loads(json.dumps(TASK.interface.to_json()))) == TASK.interface
    assert "instructions" not in tasks.get("panda-lift").interface.to_json()
    with pytest.raises(ValueError, match="each of the instructions has its own test"):
        replace(TASK.interface, success="lifted:tray:0.1")
    with pytest.raises(ValueError, match="'lift it' is given twice"):
        replace(TASK.interface, instructions=(Instruction("lift it", "lifted:tray:0.1"),) * 2)
    with pytest.raises(ValueError, match="4 places for 5 objects"):
        replace(TASK.scene, places=TASK.scene.places[:4])
