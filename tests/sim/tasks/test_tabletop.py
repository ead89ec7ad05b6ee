"""Language instructions: each episode samples one and is judged by it, and the demonstrator follows it."""

import json
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
INSTRUCTIONS = TASK.interface.instructions
BLIND = replace(TASK, interface=replace(TASK.interface, pictures=()))
"""Without camera images, which take time to render."""
SHORT = replace(BLIND, interface=replace(BLIND.interface, horizon=5))


def asked(env: TaskEnv) -> list[str]:
    return [env.instruction(i) for i in range(env.num_envs)]


def demonstrate(env: TaskEnv, expert: Any, spoil: Any = None) -> tuple[torch.Tensor, list[str]]:
    """Return the success (n,) of the first episodes and their last instructions; `spoil` changes actions in place."""
    n, last = env.num_envs, asked(env)
    won, running = torch.zeros(n, dtype=torch.bool), torch.ones(n, dtype=torch.bool)
    for _ in range(160):
        action = expert.act({})
        if spoil:
            spoil(action)
        last = [new if on else old for new, old, on in zip(asked(env), last, running, strict=True)]
        *_, terminated, truncated, infos = env.step(action)
        won |= infos["success"] & running
        running &= ~(terminated | truncated)
        expert.reset((terminated | truncated).nonzero().squeeze(-1))
    return won, last


def test_held_out_instructions_do_not_occur_in_training_but_their_words_do() -> None:
    assert len(INSTRUCTIONS) == 24 and 4 <= sum(i.held_out for i in INSTRUCTIONS) <= 6
    seen: dict[str, set[str]] = {}
    for which in ("training", "held-out", "all"):
        env = TaskEnv(BLIND, 100, threads=1, instruction_set=which)
        seen[which] = {text for seed in (0, 1000, 2000) for text in (env.reset(seed=seed), asked(env))[1]}
        env.close()
    assert seen["training"] == {i.text for i in INSTRUCTIONS if not i.held_out}
    assert seen["held-out"] == {i.text for i in INSTRUCTIONS if i.held_out}
    assert seen["all"] == seen["training"] | seen["held-out"]
    words = {which: {word for text in texts for word in text.split()} for which, texts in seen.items()}
    assert words["held-out"] <= words["training"]


def test_an_instruction_set_may_be_a_whole_text_or_the_start_of_training_instructions() -> None:
    env = TaskEnv(BLIND, 20, threads=1, instruction_set="push the")
    env.reset(seed=0)
    assert len(set(asked(env))) > 3 and all(text.startswith("push the ") for text in asked(env))
    env.close()
    held_out = next(i.text for i in INSTRUCTIONS if i.held_out)
    texts = [(i.text, i.held_out) for i in INSTRUCTIONS]
    assert not any(INSTRUCTIONS[k].held_out for k in chosen("tabletop", texts, " ".join(held_out.split()[:2])))
    assert [INSTRUCTIONS[k].text for k in chosen("tabletop", texts, held_out)] == [held_out]
    with pytest.raises(ConfigError, match="no instruction of 'jump'; it has: touch the red cube, "):
        TaskEnv(BLIND, 1, instruction_set="jump")
    with pytest.raises(ConfigError, match="'panda-lift' has no instruction of 'held-out'"):
        TaskEnv("panda-lift", 1, instruction_set="held-out")


def test_observations_have_the_instruction_of_their_own_episode() -> None:
    env = TaskEnv(SHORT, 5, threads=1)
    observation, _ = env.reset(seed=1)
    seen: set[str] = set()
    for _ in range(12):
        env.observation_spec.check(observation)
        assert decode(observation[LANGUAGE]) == asked(env)
        seen |= set(asked(env))
        observation, *_ = env.step(torch.zeros(5, 4))
    assert len(seen) > 5, "later episodes have other instructions"
    env.close()


def test_instruction_and_layout_depend_on_the_seed_alone() -> None:
    many, single = TaskEnv(SHORT, 6, threads=1), TaskEnv(SHORT, 1, threads=1)
    many.reset(seed=3)
    single.reset(seed=7)
    for _ in range(3):
        assert asked(many)[4] == asked(single)[0]
        for name, pose in many.true.objects.items():
            assert torch.equal(pose[4], single.true.objects[name][0])
        for env in (many, single):
            for _ in range(5):  # to the next episode
                *_, infos = env.step(torch.zeros(env.num_envs, 4))
            assert "final_obs" in infos
    state, before = many.state_dict(), asked(many)
    many.reset(seed=50)
    many.load_state_dict(state)
    assert asked(many) == before
    many.close()
    single.close()


def test_an_instruction_may_change_during_an_episode(same: Any) -> None:
    env, still, changed = TaskEnv(BLIND, 20, threads=1, changes=0.5), torch.zeros(20, 4), torch.zeros(20).long()
    plain = TaskEnv(BLIND, 20, threads=1)
    env.reset(seed=0)
    plain.reset(seed=0)
    assert asked(env) == asked(plain) and same(env.true.objects, plain.true.objects), "nothing else is different"
    for step in range(1, 80):
        before = asked(env)
        observation, *_, infos = env.step(still)
        assert decode(observation[LANGUAGE]) == asked(env) == infos["instruction"]
        moved = torch.tensor([a != b for a, b in zip(before, asked(env), strict=True)])
        assert not moved.any() or 4 <= step < 64
        changed += moved
    assert changed.max() == 1 and 4 <= changed.sum() <= 16
    assert set(asked(env)) <= {i.text for i in INSTRUCTIONS if not i.held_out}
    saved, ahead = env.state_dict(), asked(env)
    env.reset(seed=9)
    env.load_state_dict(saved)
    assert asked(env) == ahead
    env.close()
    plain.close()
    with pytest.raises(ConfigError, match="no other instruction to change to; leave out --changes"):
        TaskEnv("panda-lift", 1, changes=0.5)
    with pytest.raises(ConfigError, match="no other instruction to change to"):
        TaskEnv(BLIND, 1, instruction_set="touch the red cube", changes=0.5)


def test_every_object_occurs_at_every_place_and_objects_do_not_overlap() -> None:
    env = TaskEnv(BLIND, 200, threads=1)
    env.reset(seed=0)
    positions = {name: pose[:, :2] for name, pose in env.true.objects.items()}
    places = torch.tensor(TASK.scene.places)
    for position in positions.values():
        assert torch.cdist(position, places).argmin(1).unique().numel() == len(places)
    names = list(positions)
    for k, name in enumerate(names):
        for other in names[k + 1 :]:
            gap = (positions[name] - positions[other]).norm(dim=1).min()
            assert gap > (0.083 if "tray" in (name, other) else 0.06)
    env.close()


def test_a_group_of_environments_has_equal_instructions_and_layouts() -> None:
    env = TaskEnv(BLIND, 6, threads=1)
    env.reset(seed=4, options={"group": 3})
    assert len(set(asked(env)[:3])) == 1 and len(set(asked(env)[3:])) == 1
    for pose in env.true.objects.values():
        assert torch.equal(pose[0], pose[2]) and torch.equal(pose[3], pose[5]) and not torch.equal(pose[2], pose[3])
    env.reset(seed=4)
    assert not torch.equal(env.true.objects["red_cube"][0], env.true.objects["red_cube"][1])
    env.close()


def test_the_demonstrator_follows_instructions_and_fails_by_others() -> None:
    env = TaskEnv(BLIND, 60, threads=2, instruction_set="all")
    env.reset(seed=0)
    texts, wrong = asked(env), []

    def judge(action: torch.Tensor) -> None:
        """Judge the present states by the other instructions."""
        others = [replace(env.true, instruction=(env.true.instruction + k) % 24) for k in range(1, 24)]
        wrong.append(torch.stack([env.pipeline.success(other) for other in others]).float().mean())  # type: ignore[misc]

    won, _ = demonstrate(env, make_expert(env, "STEADY", 0), judge)
    assert won.float().mean() > 0.85
    verbs = {verb: [bool(w) for w, text in zip(won, texts, strict=True) if text.startswith(verb)]
             for verb in ("touch", "lift", "push", "put")}  # fmt: skip
    assert all(sum(w) / len(w) > 0.7 for w in verbs.values()), verbs
    assert max(wrong) < 0.1
    env.close()


def test_the_demonstrator_follows_a_changed_instruction() -> None:
    env = TaskEnv(BLIND, 16, threads=2, changes=1.0)
    env.reset(seed=0)
    first = asked(env)
    won, last = demonstrate(env, make_expert(env, "STEADY", 0))
    changed = torch.tensor([a != b for a, b in zip(first, last, strict=True)])
    assert changed.float().mean() > 0.7 and won[changed].float().mean() > 0.8
    env.close()


def test_the_demonstrator_grasps_a_lost_object_again() -> None:
    env = TaskEnv(BLIND, 6, threads=1, instruction_set="lift the red cube")
    expert, slips = make_expert(env, "STEADY", 0), torch.zeros(6, dtype=torch.long)

    def slip(action: torch.Tensor) -> None:
        """Open the gripper for 8 steps while it carries."""
        slipping = (expert.expert.at == 3) & (slips < 8)
        action[slipping, -1] = 1.0
        slips.add_(slipping)

    env.reset(seed=3)
    won, _ = demonstrate(env, expert, slip)
    assert (slips >= 8).all() and won.all()
    env.close()


def test_frames_are_recorded_with_their_current_instruction(tmp_path: Path) -> None:
    words = ["collect", "tabletop", "--episodes", "6", "--num-envs", "6", "--skill", "STEADY", "--changes", "0.7"]
    assert main([*words, "--image-size", "0", "--keep-failures", "--out", str(tmp_path / "d")]) == 0
    data = Dataset(tmp_path / "d")
    labels = [data.tasks[int(k)] for k in data.column("task_index")]
    episodes, counts = load_episodes(tmp_path / "d", EnvInfo.of(Pipeline(TASK.interface)), successes=False), []
    for ours, stored in zip(episodes, data.episodes, strict=True):
        texts = decode(ours[LANGUAGE])
        assert texts == labels[stored.start : stored.start + stored.length] and texts[0] == stored.task
        counts.append(len(set(texts)))
    assert set(counts) == {1, 2}
    assert set(labels) <= {i.text for i in INSTRUCTIONS if not i.held_out}
    assert main(["dataset", "verify", str(tmp_path / "d")]) == 0


SMALL = ["--policy.encoder.width", "16", "--policy.encoder.layers", "1", "--policy.encoder.channels", "8", "8"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four episodes with camera images."""
    folder = tmp_path_factory.mktemp("data") / "d"
    words = ["--episodes", "4", "--num-envs", "4", "--skill", "STEADY", "--keep-failures"]
    assert main(["collect", "tabletop", *words, "--out", str(folder)]) == 0
    return str(folder)


@pytest.fixture(scope="module")
def tokens(data: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small policy of action tokens."""
    folder = tmp_path_factory.mktemp("tokens") / "base"
    train = ["train", "tabletop", "--recipe", "vla-tokens", "--dataset", data, "--training.demos", "all", *SMALL]
    assert main([*train, "--training.updates", "2", "--training.batch", "4", "--out", str(folder)]) == 0
    return str(folder)


def test_a_vla_is_trained_and_evaluated_by_instruction(data: str, tmp_path: Path, capsys: Any) -> None:
    run = tmp_path / "run"
    train = ["train", "tabletop", "--recipe", "vla-sft", "--dataset", data, "--training.demos", "all", *SMALL]
    assert main([*train, "--training.updates", "3", "--training.batch", "8", "--out", str(run)]) == 0
    assert {"cube", "touch", "tray"} <= set(load_bundle(run).policy.config.encoder.words)
    capsys.readouterr()
    for which, held_out in (("training", False), ("held-out", True)):
        evaluate = ["evaluate", str(run), "--episodes", "2", "--num-envs", "2", "--instructions", which, "--json"]
        assert main(evaluate) == 0
        results = json.loads(capsys.readouterr().out)["by_instruction"]
        assert sum(each["episodes"] for each in results.values()) == 2
        assert set(results) <= {i.text for i in INSTRUCTIONS if i.held_out is held_out}
    assert (run / "evaluation.json").exists() and (run / "evaluation-held-out.json").exists()


@pytest.mark.parametrize("recipe", ["srpo", "grape"])
def test_a_policy_of_action_tokens_is_improved_in_the_task(recipe: str, tokens: str, tmp_path: Path) -> None:
    words = ["--training.rounds", "1", "--training.num-envs", "2", "--training.group", "2"]
    assert main(["train", "tabletop", "--recipe", recipe, *words, "--base", tokens, "--out", str(tmp_path / "rl")]) == 0
    assert load_bundle(tmp_path / "rl").policy.config.encoder == load_bundle(tokens).policy.config.encoder


def test_rl_with_chosen_instructions_is_resumed(data: str, tokens: str, tmp_path: Path, capsys: Any) -> None:
    train = ["train", "tabletop", "--recipe", "vla-rl", "--base", tokens, "--training.num-envs", "2"]
    train += ["--training.rollout", "60", "--choose", "0.2", "--agent.progress", "0.5", "--out", str(tmp_path / "rl")]
    assert main([*train, "--dataset", "nothing", "--training.steps", "120"]) == 2
    assert "nothing does not exist" in capsys.readouterr().err
    for steps in ("120", "240"):
        assert main([*train, "--dataset", data, "--training.steps", steps, "--resume"]) == 0
    settings = json.loads((tmp_path / "rl" / "config.json").read_text())
    assert settings["choose"] == 0.2 and settings["config"]["agent"]["progress"] == 0.5
    assert load_bundle(tmp_path / "rl").policy.config.encoder == load_bundle(tokens).policy.config.encoder
    assert main(["train", "testbed:discs", "--recipe", "ppo", "--choose", "0.2", "--out", str(tmp_path / "no")]) == 2
    assert "no instructions that can be chosen; leave out --choose" in capsys.readouterr().err


def test_images_are_rendered_on_request_and_at_the_start_of_an_episode() -> None:
    short = replace(TASK, interface=replace(TASK.interface, horizon=5))
    every, some = TaskEnv(short, 3, threads=1), TaskEnv(short, 3, threads=1)
    first, key = [env.reset(seed=5)[0] for env in (every, some)], "observation.images.wrist"
    assert torch.equal(first[0][key], first[1][key])
    some.request_images(torch.tensor([False, True, False]))
    action = torch.full((3, 4), 0.8)
    (a, *_), (b, *_) = every.step(action), some.step(action)
    assert torch.equal(a["observation.state"], b["observation.state"])
    assert torch.equal(a[key][1], b[key][1]) and not torch.equal(a[key][1], first[0][key][1])
    assert torch.equal(b[key][[0, 2]], first[1][key][[0, 2]]), "the others keep their last image"
    some.request_images(None)
    (a, *_), (b, *_) = every.step(action), some.step(action)
    assert torch.equal(a[key], b[key])
    some.request_images(torch.zeros(3, dtype=torch.bool))
    for _ in range(3):
        (a, *_, infos), (b, *_) = every.step(action), some.step(action)
    assert infos["_final_obs"].all() and torch.equal(a[key], b[key])
    for env in (every, some):
        env.close()


def test_an_interface_with_instructions_survives_json_and_is_checked() -> None:
    assert Interface.from_json(json.loads(json.dumps(TASK.interface.to_json()))) == TASK.interface
    assert "instructions" not in tasks.get("panda-lift").interface.to_json()
    with pytest.raises(ValueError, match="each of the instructions has its own test"):
        replace(TASK.interface, success="lifted:tray:0.1")
    with pytest.raises(ValueError, match="'lift it' is given twice"):
        replace(TASK.interface, instructions=(Instruction("lift it", "lifted:tray:0.1"),) * 2)
    with pytest.raises(ValueError, match="4 places for 5 objects"):
        replace(TASK.scene, places=TASK.scene.places[:4])
