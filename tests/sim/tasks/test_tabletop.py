"""Instructions: each episode draws one and is judged by it; the demonstrator does what it is told."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from policies.bundle import load_bundle
from robot_rl.cli.main import main
from robot_rl.data import Dataset
from robot_rl.data.recording import load_episodes
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.language import decode
from robot_rl.interface.observation_spec import LANGUAGE
from robot_rl.interface.pipeline import Instruction, Interface, Pipeline
from robot_rl.util.errors import ConfigError
from sim.demonstrators import make_expert
from sim.env import TaskEnv
from sim.step.sampling import chosen
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
        env = TaskEnv(BLIND, 100, threads=1, instruction_set=which)
        asked[which] = {text for seed in (0, 1000, 2000) for text in (env.reset(seed=seed), told(env))[1]}
        env.close()
    assert asked["training"] == {i.text for i in TOLD if not i.held_out}
    assert asked["held-out"] == {i.text for i in TOLD if i.held_out}
    assert asked["all"] == asked["training"] | asked["held-out"]
    assert {word for text in asked["held-out"] for word in text.split()} <= known
    env = TaskEnv(BLIND, 20, threads=1, instruction_set="push the")
    env.reset(seed=0)
    assert len(set(told(env))) > 3 and all(text.startswith("push the ") for text in told(env))
    apart = next(i.text for i in TOLD if i.held_out)
    begins = " ".join(apart.split()[:2])
    texts = [(i.text, i.held_out) for i in TOLD]
    assert all(not TOLD[k].held_out for k in chosen("tabletop", texts, begins)), "a beginning never means it"
    assert [TOLD[k].text for k in chosen("tabletop", texts, apart)] == [apart], "but its whole text does"
    with pytest.raises(ConfigError, match="no instruction of 'jump'; it has: touch the red cube, "):
        TaskEnv(BLIND, 1, instruction_set="jump")
    with pytest.raises(ConfigError, match="'panda-lift' has no instruction of 'held-out'"):
        TaskEnv("panda-lift", 1, instruction_set="held-out")


def test_policies_read_the_instruction_of_their_own_episode_from_its_first_step_on() -> None:
    env = TaskEnv(BLIND, 5, threads=1)
    observation, _ = env.reset(seed=1)
    seen: set[str] = set()
    for _ in range(165):
        env.observation_spec.check(observation)
        assert decode(observation[LANGUAGE]) == told(env)
        seen |= set(told(env))
        observation, *_ = env.step(torch.zeros(5, 4))
    assert len(seen) > 5, "the next episodes ask for other things"
    env.close()


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


def test_an_instruction_changes_on_the_way_and_the_new_one_is_then_judged(same: Any) -> None:
    env, still = TaskEnv(BLIND, 40, threads=1, changes=0.5), torch.zeros(40, 4)
    plain = TaskEnv(BLIND, 40, threads=1)
    observation, _ = env.reset(seed=0)
    plain.reset(seed=0)
    first, changed = told(env), torch.zeros(40, dtype=torch.long)
    assert first == told(plain) and same(env.true.objects, plain.true.objects), "all else is drawn as without changes"
    for step in range(1, 100):
        before = told(env)
        observation, *_, infos = env.step(still)
        assert decode(observation[LANGUAGE]) == told(env) == infos["instruction"]
        moved = torch.tensor([a != b for a, b in zip(before, told(env), strict=True)])
        assert not moved.any() or 4 <= step < 64
        changed += moved
    assert changed.max() == 1 and 10 < changed.sum() < 30
    assert set(told(env)) <= {i.text for i in TOLD if not i.held_out}
    saved, ahead = env.state_dict(), told(env)
    env.reset(seed=9)
    env.load_state_dict(saved)
    assert told(env) == ahead
    env.close()
    plain.close()
    with pytest.raises(ConfigError, match="no other instruction to change to; leave out --changes"):
        TaskEnv("panda-lift", 1, changes=0.5)
    with pytest.raises(ConfigError, match="no other instruction to change to"):
        TaskEnv(BLIND, 1, instruction_set="touch the red cube", changes=0.5)


def test_the_demonstrator_follows_a_change_and_grasps_again_what_it_lost() -> None:
    env = TaskEnv(BLIND, 40, threads=2, changes=1.0)
    expert = make_expert(env, "STEADY", 0)
    env.reset(seed=0)
    first, won, still_open = told(env), torch.zeros(40, dtype=torch.bool), torch.ones(40, dtype=torch.bool)
    last = list(first)
    for _ in range(160):
        _, _, terminated, truncated, infos = env.step(expert.act({}))
        last = [new if on else old for new, old, on in zip(infos["instruction"], last, still_open, strict=True)]
        won |= infos["success"] & still_open
        still_open &= ~(terminated | truncated)
    changed = torch.tensor([a != b for a, b in zip(first, last, strict=True)])
    assert changed.float().mean() > 0.7 and won[changed].float().mean() > 0.8
    env.close()


@pytest.mark.parametrize("notices", [True, False])
def test_the_demonstrator_grasps_again_what_it_lost(notices: bool) -> None:
    """Its fingers open once while they carry; one that does not notice lifts nothing."""
    env = TaskEnv(BLIND, 8, threads=1, instruction_set="lift the red cube")
    made = make_expert(env, "STEADY", 0)
    made.expert.carries &= notices
    env.reset(seed=3)
    won, still_open = torch.zeros(8, dtype=torch.bool), torch.ones(8, dtype=torch.bool)
    slips = torch.zeros(8, dtype=torch.long)
    for _ in range(160):
        action = made.act({})
        slipping = (made.expert.at == 3) & (slips < 8)
        action[slipping, -1] = 1.0
        slips += slipping
        *_, terminated, truncated, infos = env.step(action)
        won |= infos["success"] & still_open
        still_open &= ~(terminated | truncated)
    assert (slips == 8).all() and won.float().mean() == float(notices)
    env.close()


def test_changes_are_recorded_frame_by_frame_and_learned_from(tmp_path: Path) -> None:
    words = ["collect", "tabletop", "--episodes", "6", "--num-envs", "6", "--skill", "STEADY", "--changes", "1"]
    assert main([*words, "--keep-failures", "--out", str(tmp_path / "d")]) == 0
    data = Dataset(tmp_path / "d")
    said = [data.tasks[int(k)] for k in data.column("task_index")]
    info = EnvInfo.of(Pipeline(TASK.interface))
    changed = 0
    for ours, theirs in zip(load_episodes(tmp_path / "d", info, successes=False), data.episodes, strict=True):
        texts = decode(ours[LANGUAGE])
        assert texts == said[theirs.start : theirs.start + theirs.length] and texts[0] == theirs.task
        changed += len(set(texts)) == 2
    assert changed >= 3
    assert main(["dataset", "verify", str(tmp_path / "d")]) == 0


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
    env = TaskEnv(BLIND, 120, threads=2, instruction_set="all")
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
    episodes = load_episodes(tmp_path / "d", EnvInfo.of(Pipeline(TASK.interface)), successes=False)
    for ours, theirs in zip(episodes, Dataset(tmp_path / "d").episodes, strict=True):
        assert decode(ours[LANGUAGE]) == [theirs.task] * theirs.length


def test_a_small_vla_learns_is_evaluated_by_instruction_and_says_what_it_was_asked(tmp_path: Path, capsys: Any) -> None:
    data, run = tmp_path / "d", tmp_path / "run"
    collect = ["collect", "tabletop", "--episodes", "4", "--num-envs", "4", "--keep-failures", "--out", str(data)]
    small = ["--policy.encoder.width", "16", "--policy.encoder.layers", "1", "--policy.encoder.channels", "8", "8"]
    train = ["train", "tabletop", "--recipe", "vla-sft", "--dataset", str(data), "--training.demos", "all"]
    assert main(collect) == 0
    assert main([*train, *small, "--training.updates", "3", "--training.batch", "8", "--out", str(run)]) == 0
    words = load_bundle(run).policy.config.encoder.words
    assert {"cube", "touch", "tray"} <= set(words)
    capsys.readouterr()
    for drawn, wanted in (("training", False), ("held-out", True)):
        evaluate = ["evaluate", str(run), "--episodes", "3", "--num-envs", "3", "--instructions", drawn, "--json"]
        assert main(evaluate) == 0
        found = json.loads(capsys.readouterr().out)["by_instruction"]
        assert sum(each["episodes"] for each in found.values()) == 3
        assert set(found) <= {i.text for i in TOLD if i.held_out is wanted}
    assert (run / "evaluation.json").exists() and (run / "evaluation-held-out.json").exists()


@pytest.mark.parametrize(
    "recipe",
    [
        ("vla-rl", "--training.steps", "240", "--training.num-envs", "2", "--training.rollout", "120"),
        ("srpo", "--training.rounds", "1", "--training.num-envs", "2", "--training.group", "2"),
        ("grape", "--training.rounds", "1", "--training.num-envs", "2", "--training.group", "2"),
    ],
    ids=lambda words: words[0],
)
def test_a_policy_that_writes_tokens_is_improved_in_the_task(recipe: tuple[str, ...], tmp_path: Path) -> None:
    data, base = tmp_path / "d", tmp_path / "base"
    collect = ["collect", "tabletop", "--episodes", "2", "--num-envs", "2", "--keep-failures", "--out", str(data)]
    small = ["--policy.encoder.width", "16", "--policy.encoder.layers", "1", "--policy.encoder.channels", "8", "8"]
    train = ["train", "tabletop", "--recipe", "vla-tokens", "--dataset", str(data), "--training.demos", "all"]
    assert main(collect) == 0
    assert main([*train, *small, "--training.updates", "2", "--training.batch", "4", "--out", str(base)]) == 0
    assert main(["train", "tabletop", "--recipe", *recipe, "--base", str(base), "--out", str(tmp_path / "rl")]) == 0
    assert load_bundle(tmp_path / "rl").policy.config.encoder == load_bundle(base).policy.config.encoder


def test_practice_chooses_instructions_reads_progress_and_goes_on(tmp_path: Path, capsys: Any) -> None:
    data, base, run = (str(tmp_path / name) for name in ("d", "base", "rl"))
    collect = ["collect", "tabletop", "--episodes", "3", "--num-envs", "3", "--skill", "STEADY", "--out", data]
    small = ["--policy.encoder.width", "16", "--policy.encoder.layers", "1", "--policy.encoder.channels", "8", "8"]
    clone = ["train", "tabletop", "--recipe", "vla-tokens", "--dataset", data, *small]
    practise = ["train", "tabletop", "--recipe", "vla-rl", "--base", base, "--training.num-envs", "2"]
    practise += ["--training.rollout", "60", "--choose", "0.2", "--agent.progress", "0.5", "--out", run]
    assert main(collect) == 0
    assert main([*clone, "--training.updates", "2", "--training.batch", "4", "--out", base]) == 0
    capsys.readouterr()
    assert main([*practise, "--dataset", "nothing", "--training.steps", "120"]) == 2
    assert "nothing does not exist" in capsys.readouterr().err
    for steps in ("120", "240"):
        assert main([*practise, "--dataset", data, "--training.steps", steps, "--resume"]) == 0
    settings = json.loads((tmp_path / "rl" / "config.json").read_text())
    assert settings["choose"] == 0.2 and settings["config"]["agent"]["progress"] == 0.5
    assert main(["train", "testbed:discs", "--recipe", "ppo", "--choose", "0.2", "--out", str(tmp_path / "no")]) == 2
    assert "no instructions that can be chosen; leave out --choose" in capsys.readouterr().err


def test_pictures_are_rendered_for_those_who_look(same: Any) -> None:
    every, some = TaskEnv(TASK, 3, threads=1), TaskEnv(TASK, 3, threads=1)
    first = [env.reset(seed=5)[0] for env in (every, some)]
    key = "observation.images.wrist"
    assert torch.equal(first[0][key], first[1][key])
    some.request_images(torch.tensor([False, True, False]))
    action = torch.full((3, 4), 0.8)
    (a, *_), (b, *_) = every.step(action), some.step(action)
    assert torch.equal(a["observation.state"], b["observation.state"])
    assert torch.equal(a[key][1], b[key][1]) and not torch.equal(a[key][1], first[0][key][1])
    assert torch.equal(b[key][[0, 2]], first[1][key][[0, 2]]), "these are as they were"
    some.request_images(None)
    (a, *_), (b, *_) = every.step(action), some.step(action)
    assert torch.equal(a[key], b[key])
    some.request_images(torch.zeros(3, dtype=torch.bool))
    ended = False
    while not ended:
        (a, *_, infos), (b, *_) = every.step(action), some.step(action)
        ended = "final_obs" in infos
    begun = infos["_final_obs"]
    assert torch.equal(a[key][begun], b[key][begun]), "an episode's first observation is new"
    for env in (every, some):
        env.close()


def test_a_group_shares_its_situation() -> None:
    env = TaskEnv(BLIND, 6, threads=1)
    env.reset(seed=4, options={"group": 3})
    assert len(set(told(env)[:3])) == 1 and len(set(told(env)[3:])) == 1
    for pose in env.true.objects.values():
        assert torch.equal(pose[0], pose[2]) and torch.equal(pose[3], pose[5]) and not torch.equal(pose[2], pose[3])
    env.reset(seed=4)
    assert not torch.equal(env.true.objects["red_cube"][0], env.true.objects["red_cube"][1])
    env.close()


def test_an_interface_with_instructions_survives_json_and_names_its_faults() -> None:
    assert Interface.from_json(json.loads(json.dumps(TASK.interface.to_json()))) == TASK.interface
    assert "instructions" not in tasks.get("panda-lift").interface.to_json()
    with pytest.raises(ValueError, match="each of the instructions has its own test"):
        replace(TASK.interface, success="lifted:tray:0.1")
    with pytest.raises(ValueError, match="'lift it' is given twice"):
        replace(TASK.interface, instructions=(Instruction("lift it", "lifted:tray:0.1"),) * 2)
    with pytest.raises(ValueError, match="4 places for 5 objects"):
        replace(TASK.scene, places=TASK.scene.places[:4])
