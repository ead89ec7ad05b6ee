"""Bad input to every command: one sentence that names the file or setting, and nothing overwritten or half-written."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch

from policies.base import Size
from policies.bundle import Bundle, load_bundle, save_bundle
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from robot_rl.cli import main as cli
from robot_rl.cli.deploy import Deploy
from robot_rl.cli.evaluate import _caption
from robot_rl.cli.finetune import Finetune
from robot_rl.cli.train import Train
from robot_rl.data import Dataset, DatasetWriter, Feature, verify
from robot_rl.data.recording import features
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.pipeline import Pipeline
from robot_rl.learning.parts.critics import Critic
from robot_rl.learning.parts.heads import Scalar
from robot_rl.recipes import recipes
from robot_rl.robots import panda as panda_module
from robot_rl.robots import robots
from robot_rl.training.run import Run as RunFolder
from sim.scenes import robot_model
from sim.tasks import task_of, tasks

Run = Callable[..., tuple[int, str, str]]
PROGRAM = [sys.executable, "-m", "robot_rl.cli.main"]
LIFT = tasks.get("panda-lift").interface
PIPELINE = Pipeline(LIFT)
SIZE = PIPELINE.observer.spec.size
COLLECT = ["collect", "panda-lift", "--episodes", "2", "--num-envs", "2", "--skill", "STEADY", "--image-size", "0"]
TRAIN = ["train", "panda-lift", "--training.updates", "4", "--training.batch", "8", "--policy.hidden", "16"]
TRAIN += ["--policy.layers", "1"]
PPO = ["train", "go2-velocity", "--training.num-envs", "2", "--training.rollout", "4", "--training.steps", "8"]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)  # the defaults write to runs/ and datasets/ here

    def call(*argv: object) -> tuple[int, str, str]:
        try:
            code = cli.main([str(a) for a in argv])
        except SystemExit as end:  # tyro's way
            code = end.code if isinstance(end.code, int) else 1
        finally:
            torch.set_num_threads(1)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def write_dataset(root: Path, episodes: int = 3, steps: int = 12) -> Path:
    rng = torch.Generator().manual_seed(0)
    with DatasetWriter.create(root, fps=20, features=features(EnvInfo.of(PIPELINE)), robot_type="panda") as writer:
        for _ in range(episodes):
            last = torch.zeros(steps, 1, dtype=torch.bool)
            last[-1] = True
            action = PIPELINE.actions.to_physical(2 * torch.rand(steps, 4, generator=rng) - 1)
            state = PIPELINE.observer.spec.to_physical(2 * torch.rand(steps, SIZE, generator=rng) - 1)
            columns = {
                "observation.state": state, "action": action,
                "action.policy": action, "next.reward": last.float(), "next.success": last, "next.done": last,
                "intervention": torch.zeros(steps, 1, dtype=torch.bool),
            }  # fmt: skip
            writer.add_episode(columns, LIFT.instruction)
    return root


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "demos")


@pytest.fixture
def bundle(tmp_path: Path, dataset: Path) -> Path:
    config = DiffusionConfig(hidden=16, layers=1, train_steps=10, sample_steps=2)
    policy = DiffusionPolicy(Size(SIZE, 4), config)
    made = Bundle(policy, LIFT, PIPELINE.robot.fingerprint(), {"dataset": str(dataset)})
    save_bundle(made, tmp_path / "bundle")
    return tmp_path / "bundle"


def sentence(code: int, out: str, err: str, *words: object, status: int = 1) -> None:
    """The error is for the user; status 2: the input is wrong."""
    assert code == status, (code, out, err)
    assert err.startswith("robot-rl: ") and "Traceback" not in err and "(a defect" not in err, err
    assert err.count("\n") == 1, err
    for word in words:
        assert str(word) in err, err


def edit(bundle: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    file = bundle / "policy.json"
    meta = json.loads(file.read_text())
    change(meta)
    file.write_text(json.dumps(meta))


# ---- names -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["collect", "panda-lfit"], "unknown task 'panda-lfit'; did you mean panda-lift"),
        (["collect", "panda-lift", "--skill", "CLUMSEY"], "did you mean CLUMSY"),
        (["collect", "panda-lift", "--engine", "mujuco"], "did you mean mujoco?"),
        (["train", "panda-lfit"], "did you mean panda-lift"),
        (["train", "go2-velocity", "--engine", "mujuco"], "unknown engine 'mujuco'; did you mean mujoco?"),
        (["train", "panda-lift", "--recipe", "difusion-bc"], "unknown recipe 'difusion-bc'; did you mean diffusion-bc"),
        (["train", "panda-lift", "--recipe=resfitt"], "did you mean resfit"),
        (["evaluate", "random:panda-lfit"], "did you mean panda-lift"),
        (["deploy", "BUNDLE", "--robot", "pandaa"], "unknown robot 'pandaa'; did you mean panda"),
        (["twin", "pandaa"], "unknown robot 'pandaa'; did you mean panda"),
        (["twin", "panda", "--task", "panda-lfit"], "did you mean panda-lift"),
        (["finetune", "BUNDLE", "--robot", "pandaa"], "did you mean panda"),
        (["finetune", "BUNDLE", "--recipe", "hil-sarl"], "did you mean hil-serl"),
        (["demo", "panda-lfit"], "did you mean panda-lift"),
        (["bench", "loop", "go3"], "unknown robot 'go3'; did you mean go2?"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(run: Run, bundle: Path, words: list[str], near: str) -> None:
    before = sorted(bundle.parent.iterdir())
    code, out, err = run(*[str(bundle) if w == "BUNDLE" else w for w in words])
    assert code == 2 and out == "" and near in err, err
    assert err.count("\n") == 1
    assert sorted(bundle.parent.iterdir()) == before, "and nothing was made"


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["collect", "panda-lift", "--episods", "3"], "--episodes"),
        (["train", "panda-lift", "--trainig.updates", "3"], "--training.updates"),
        (["train", "panda-lift", "--recipe", "resfit", "--trainig.steps", "3"], "--training.steps"),
        (["evaluate", "b", "--episods", "3"], "--episodes"),
        (["twin", "panda", "--sed", "3"], "--seed"),
        (["deploy", "b", "--dryrun"], "--dry-run"),
        (["finetune", "b", "--minuts", "3"], "--minutes"),
        (["report", "r", "--oot", "x"], "--out"),
    ],
)
def test_an_unknown_flag_suggests_the_nearest(run: Run, words: list[str], near: str) -> None:
    code, out, err = run(*words)
    assert code == 2 and out == "" and near in err


@pytest.mark.parametrize(
    "words",
    [["collect"], ["collect", "panda-lift", "--episodes", "many"], ["evaluate"], ["bench", "loop", "--seconds", "nan"]],
)
def test_a_missing_or_malformed_value_is_wrong_usage(run: Run, words: list[str]) -> None:
    code, out, err = run(*words)
    assert code == 2 and out == "" and "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["--device", "cuda"], "use --engine genesis for a GPU"),
        (["--device", "cuda", "--engine", "genesis"], "use --device cpu"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_with_the_remedy(
    run: Run, words: list[str], remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for command in (["collect", "panda-lift"], ["evaluate", "random:panda-lift"]):
        sentence(*run(*command, *words), remedy, status=2)


@pytest.mark.parametrize("engine", ["mujoco", "genesis"])
def test_an_unknown_device_suggests_the_nearest(run: Run, engine: str) -> None:
    for command in (["collect", "panda-lift"], ["evaluate", "random:panda-lift"], ["train", "go2-velocity"]):
        said = run(*command, "--engine", engine, "--device", "cud")
        sentence(*said, "unknown device 'cud'; did you mean cuda", status=2)


def test_a_task_that_nobody_can_demonstrate_is_not_told_to_record_a_dataset(run: Run) -> None:
    words = ["train", "go2-velocity", "--recipe", "diffusion-bc", "--out", "r"]
    sentence(*run(*words), "datasets/go2-velocity does not exist", "no scripted demonstrator", "ppo", status=2)
    assert not Path("r").exists()
    code, _, err = run("train", "panda-lift", "--out", "r")
    assert code == 2 and "robot-rl collect" in err, "a task that can be demonstrated"


@pytest.mark.timeout(600)  # Genesis compiles first
def test_genesis_evaluates_the_lift_as_it_is_and_says_what_it_keeps(run: Run, tmp_path: Path) -> None:
    words = ["--engine", "genesis", "--device", "cpu", "--episodes", "2", "--num-envs", "2", "--threads", "1"]
    code, out, err = run("evaluate", "random:panda-lift", *words, "--json", "--out", tmp_path / "evaluation.json")
    assert code == 0, err
    assert "engine 'genesis' cannot randomize cube.size: kept at the nominal value in every episode\n" in err
    for result in (json.loads(out), json.loads((tmp_path / "evaluation.json").read_text())):
        assert result["engine"] == "genesis" and result["without"] == ["cube.size"]


def test_the_controller_alone_is_evaluated_like_a_policy(run: Run) -> None:
    words = ["evaluate", "zero:panda-lift", "--episodes", "2", "--num-envs", "2"]
    code, out, _ = run(*words, "--json")
    result = json.loads(out)
    assert code == 0 and result["episodes"] == 2 and result["action_change"] == 0
    sentence(*run(*words, "--runtime", "onnx"), "zero actions need no runtime", status=2)


def test_a_demonstrator_is_evaluated_like_a_policy(run: Run, tmp_path: Path) -> None:
    words = ["evaluate", "expert:panda-lift", "--episodes", "6", "--num-envs", "6", "--json"]
    steady = ["--skill", "STEADY", "--video", tmp_path / "expert.mp4", "--video-episodes", "1"]
    results = []
    for options in ([], [], steady):
        code, out, err = run(*words, *options)
        assert code == 0, err
        results.append({k: v for k, v in json.loads(out).items() if k != "seconds"})
    first, again, steady_result = results
    assert first == again and (first["skill"], steady_result["skill"]) == ("CLUMSY", "STEADY")
    assert steady_result["success"] == 1.0 > first["success"]
    assert (tmp_path / "expert.mp4").stat().st_size > 10_000
    code, out, _ = run("evaluate", "expert:panda-lift-cameras", *words[2:], "--skill", "STEADY")
    assert code == 0 and json.loads(out)["success"] == 1.0, "one that sees more than the policy"
    sentence(*run("evaluate", "expert:go2-velocity"), "has no scripted demonstrator", status=2)
    sentence(*run("evaluate", "expert:panda-lift", "--inference-delay", "50"), "takes no --execution", status=2)
    sentence(*run("evaluate", "expert:panda-lift", "--interval", "8"), "or --interval", status=2)


def test_what_was_left_out_stands_beside_the_result(run: Run, tmp_path: Path) -> None:
    words = ["--episodes", "2", "--without", "cube.size", "cube.mass", "--json", "--out", tmp_path / "evaluation.json"]
    code, out, _ = run("evaluate", "random:panda-lift", *words)
    said, written = json.loads(out), json.loads((tmp_path / "evaluation.json").read_text())
    assert code == 0
    for result in (said, written):
        assert result["engine"] == "mujoco" and result["device"] == "cpu"
        assert result["without"] == ["cube.size", "cube.mass"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["collect", "panda-lift", "--episodes", "-3"], "--episodes is -3; it must be "),
        (["collect", "panda-lift", "--image-size", "-5"], "--image-size is -5; it must be "),
        (["train", "panda-lift", "--training.updates", "-5"], "--training.updates is -5; it must be "),
        (["train", "panda-lift", "--training.batch", "0"], "--training.batch is 0"),
        (["train", "panda-lift", "--recipe", "ppo", "--policy.hidden", "16", "0"], "--policy.hidden is 0"),
        (
            ["train", "panda-lift", "--recipe", "ppo", "--policy.history", "0"],
            "--policy.history is 0; it must be ",
        ),
        (
            ["train", "panda-lift", "--recipe", "ppo", "--agent.target-kl", "-1"],
            "--agent.target-kl is -1; it must be ",
        ),
        (["evaluate", "random:panda-lift", "--episodes", "0"], "--episodes is 0"),
        (["evaluate", "random:panda-lift", "--num-envs", "0"], "--num-envs is 0"),
        (["finetune", "b", "--training.demo-share", "nan"], "is nan; it must be "),
        (["finetune", "b", "--minutes", "-1", "--ros-args"], "--minutes is -1"),
        (["bench", "loop", "go2", "--seconds", "0.5"], "--seconds is 0.5"),
    ],
)
def test_a_number_out_of_its_range_is_wrong_usage(run: Run, tmp_path: Path, words: list[str], said: str) -> None:
    sentence(*run(*words), said, status=2)
    assert not list(tmp_path.iterdir()), "and nothing was made"


def helpless(kind: Any) -> Iterator[str]:
    """Fields of a dataclass type, nested ones included, without a text beneath them for --help."""
    if not is_dataclass(kind):
        return
    (body,) = (node.body for node in ast.parse(inspect.getsource(kind)).body if isinstance(node, ast.ClassDef))
    hints = get_type_hints(kind)
    for field, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            name = field.target.id
            if "ClassVar" in ast.unparse(field.annotation):
                continue
            if not is_dataclass(hints[name]) and not (
                isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            ):
                yield f"{kind.__name__}.{name}"
            yield from helpless(hints[name])


@pytest.mark.parametrize("recipe", list(recipes))
def test_every_setting_of_a_recipe_has_a_help_text(recipe: str) -> None:
    assert list(helpless(recipes.get(recipe))) == []


def numbers(kind: Any) -> Iterator[tuple[str, Any]]:
    """Names and types of the numbers in a dataclass type's fields, nested ones included."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if is_dataclass(hint):
            yield from ((f"{name}.{inner}", found) for inner, found in numbers(hint))
        elif re.search(r"\b(int|float)\b", str(hint)):
            yield name, hint


def test_every_number_that_can_be_set_says_its_range() -> None:
    found = {}
    for name, (path, _) in cli.COMMANDS.items():
        module, attribute = path.split(":")
        kind: Any = getattr(importlib.import_module(module), attribute)
        kind = {"train": Train, "finetune": Finetune}.get(name, kind)
        if isinstance(kind, type):
            found |= {f"{name} {n}": h for n, h in numbers(kind)}
    for name in recipes:
        found |= {f"{name} {n}": h for n, h in numbers(recipes.get(name))}
    free = {"value_low", "value_high", "target_entropy", "entropy_per_action"}
    assert {
        n for n, h in found.items() if not re.search(r"\b(Gt|Ge|Interval)\(", str(h)) and n.split(".")[-1] not in free
    } == set()
    assert len(found) > 80


def test_a_recipe_for_the_other_command_says_which(run: Run, bundle: Path) -> None:
    sentence(*run("finetune", bundle, "--recipe", "resfit"), "robot-rl train", status=2)


# ---- bundles -----------------------------------------------------------------------------------------------------
USES = [["evaluate", "--episodes", "2", "--num-envs", "2"], ["deploy"], ["finetune"]]


@pytest.mark.parametrize("use", USES, ids=lambda use: use[0])
@pytest.mark.parametrize("damage", ["missing", "truncated json", "foreign json", "truncated weights", "no weights"])
def test_a_bundle_that_is_none(run: Run, bundle: Path, use: list[str], damage: str) -> None:
    json_file, weights = bundle / "policy.json", bundle / "policy.safetensors"
    named: Path = json_file
    if damage == "missing":
        shutil.rmtree(bundle)
        named = bundle
    elif damage == "truncated json":
        json_file.write_bytes(json_file.read_bytes()[:200])
    elif damage == "foreign json":
        json_file.write_text('{"model_type": "llama", "format": 1}')
    elif damage == "truncated weights":
        weights.write_bytes(weights.read_bytes()[:-100])
        named = weights
    else:
        weights.unlink()
        named = weights
    before = sorted(bundle.parent.iterdir())
    sentence(*run(use[0], bundle, *use[1:]), named, status=2)
    assert sorted(bundle.parent.iterdir()) == before


@pytest.mark.parametrize("use", USES, ids=lambda use: use[0])
def test_a_bundle_for_another_robot_names_what_differs(run: Run, bundle: Path, use: list[str]) -> None:
    edit(bundle, lambda meta: meta["robot"].update(name="fr3", home=[0.0] * 7))
    sentence(*run(use[0], bundle, *use[1:]), "'fr3'", "'panda'", "name, home differ", status=2)


def test_a_base_for_another_robot_is_not_improved(run: Run, bundle: Path) -> None:
    edit(bundle, lambda meta: meta["robot"].update(home=[0.0] * 7))
    said = run("train", "panda-lift", "--recipe", "resfit", "--base", bundle, "--out", "r")
    sentence(*said, "home differ", status=2)
    assert not Path("r").exists()


def swap(names: list[str]) -> None:
    names[0], names[1] = names[1], names[0]


@pytest.mark.parametrize("use", USES, ids=lambda use: use[0])
def test_a_bundle_for_another_order_of_joints_names_it(run: Run, bundle: Path, use: list[str]) -> None:
    edit(bundle, lambda meta: swap(meta["robot"]["joint_names"]))
    sentence(*run(use[0], bundle, *use[1:]), "joint_names differ", "['joint2', 'joint1',", status=2)


@pytest.mark.parametrize("use", USES, ids=lambda use: use[0])
def test_a_bundle_whose_interface_names_another_robot(run: Run, bundle: Path, use: list[str]) -> None:
    edit(bundle, lambda meta: meta["interface"].update(robot="ur5e"))
    sentence(*run(use[0], bundle, *use[1:]), "panda", "ur5e", status=2)


@pytest.mark.parametrize("use", USES, ids=lambda use: use[0])
def test_a_bundle_whose_policy_reads_other_observations(run: Run, bundle: Path, use: list[str]) -> None:
    """What the robot would find out in the first control period."""
    edit(bundle, lambda meta: meta["interface"]["observations"].append("joint_velocity"))
    said = "trained for other observations" if use[0] == "evaluate" else f"reads {SIZE} numbers"
    sentence(*run(use[0], bundle, *use[1:]), said, status=2)


def test_a_policy_that_is_never_finite_is_reported(run: Run, bundle: Path) -> None:
    """Finite weights that overflow: the bundle loads, and every action is refused."""
    loaded = load_bundle(bundle)
    for value in loaded.policy.parameters():
        value.data.fill_(3e38)
    save_bundle(loaded, bundle)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    words = ["--episodes", "3", "--num-envs", "2", "--out", "run/evaluation.json", "--json"]
    code, out, err = run("evaluate", bundle, *words)
    assert code == 0, err
    for text in (out, Path("run/evaluation.json").read_text()):
        result = json.loads(text, parse_constant=refuse)
        assert result["nonfinite"] == round(3 * result["steps"]) > 0
        assert result["success"] == result["action_change"] == 0, "the arm stands still"
    assert run("report", "run", "--out", "page.html")[0] == 0
    page = Path("page.html").read_text()
    assert "Refused actions" in page and ">nan<" not in page.lower()


def test_a_task_that_has_changed_since_training_is_not_evaluated(run: Run, bundle: Path) -> None:
    """The sizes agree; only the order of the observations does not."""
    edit(bundle, lambda meta: swap(meta["interface"]["observations"]))
    sentence(*run("evaluate", bundle, "--episodes", "2"), "other observations", "'panda-lift'", status=2)


# ---- tasks and robots of one's own -------------------------------------------------------------------------------
TASK = """
from dataclasses import replace
from sim.randomization import Randomize
from sim.scenes import Object
from sim.tasks.panda_lift import TASK as LIFT
"""


@pytest.mark.parametrize("engine", ["mujoco", "genesis"])
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("randomization=(Randomize('cube.mass', 0.3, 0.1, 'kg'),)", ["cube.mass: low 0.3 is above high 0.1"]),
        ("randomization=(Randomize('cube.mass', -0.1, 0.1, 'kg'),)", ["cube.mass: cannot be negative", "-0.1 kg"]),
        ("scene=replace(LIFT.scene, objects=(Object('cube', 0.02, -0.1),))", ["object 'cube': mass -0.1 kg"]),
        ("scene=replace(LIFT.scene, objects=(Object('cube', 0.0, 0.1),))", ["object 'cube': size 0.0 m"]),
        ("scene=", ["invalid syntax"]),
    ],
)
def test_a_task_file_with_impossible_numbers_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, words: list[str], engine: str
) -> None:
    file = tmp_path / "impossible_task.py"
    file.write_text(f"{TASK}TASK = replace(LIFT, {line})\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(tasks.entries, "mine", ("impossible_task:TASK", "of one's own"))
    for command in (["collect", "mine"], ["evaluate", "random:mine"], ["train", "mine", "--recipe", "ppo"]):
        sentence(*run(*command, "--engine", engine), f"task 'mine' in {file}", *words, status=2)


def test_a_misspelt_parameter_suggests_the_nearest(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "misspelt_task.py").write_text(
        f"{TASK}TASK = replace(LIFT, randomization=(Randomize('cube.mas', 0.1, 0.3, 'kg'),))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(tasks.entries, "mine", ("misspelt_task:TASK", "of one's own"))
    sentence(*run("collect", "mine"), "cannot randomize cube.mas;", "did you mean cube.mass", status=2)


def test_a_joint_that_the_robot_lacks_suggests_the_nearest(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    panda = robots.get("panda")
    joints = tuple(replace(j, name=j.name.replace("joint7", "jiont7")) for j in panda.joints)
    monkeypatch.setattr(panda_module, "PANDA", replace(panda, joints=joints))
    words = ("panda.xml: it lacks the joints ['jiont7'] of robot 'panda'", "did you mean joint7")
    sentence(*run("evaluate", "random:panda-lift"), *words, status=2)


def test_a_bundle_whose_policy_has_another_size(run: Run, bundle: Path) -> None:
    edit(bundle, lambda meta: meta["policy"]["config"].update(hidden=32))
    said = "policy.safetensors holds the weights of another policy", " is (16,", "not (32,", "more differ"
    sentence(*run("evaluate", bundle, "--episodes", "2"), *said, status=2)


@pytest.mark.parametrize("text", ['{"model_type": "llama"}', "[1, 2]", '"words"'])
def test_a_policy_json_of_somebody_else_is_called_that(run: Run, bundle: Path, text: str) -> None:
    (bundle / "policy.json").write_text(text)
    sentence(*run("evaluate", bundle), f"{bundle / 'policy.json'} is foreign: no `robot-rl train` wrote it", status=2)


def test_a_bundle_of_the_future(run: Run, bundle: Path) -> None:
    edit(bundle, lambda meta: meta.update(format=99))
    sentence(*run("evaluate", bundle), "format 99", "update robot-rl", status=2)


def test_resfit_wants_a_base_of_its_task(run: Run, bundle: Path, dataset: Path) -> None:
    train = ["train", "panda-lift", "--recipe", "resfit", "--dataset", dataset]
    sentence(*run(*train, "--out", "a"), "--base", status=2)
    edit(bundle, lambda meta: meta["interface"].update(task="panda-stack"))
    sentence(*run(*train, "--base", bundle, "--out", "b"), "panda-stack", "panda-lift", status=2)


# ---- datasets ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated info", "truncated data", "foreign"])
def test_a_dataset_that_is_none(run: Run, dataset: Path, damage: str) -> None:
    if damage == "missing":
        shutil.rmtree(dataset)
    elif damage == "empty":
        shutil.rmtree(dataset)
        DatasetWriter.create(dataset, fps=20, features=features(EnvInfo.of(PIPELINE)), robot_type="panda").close()
    elif damage == "truncated info":
        info = dataset / "meta" / "info.json"
        info.write_bytes(info.read_bytes()[:100])
    elif damage == "truncated data":
        file = next(dataset.glob("data/**/*.parquet"))
        file.write_bytes(file.read_bytes()[:-50])
    else:
        shutil.rmtree(dataset)
        other = {"action": Feature("float32", (6,))}
        with DatasetWriter.create(dataset, fps=30, features=other, robot_type="so100") as writer:
            writer.add_episode({"action": torch.zeros(5, 6)}, "pick")
    code, out, err = run(*TRAIN, "--dataset", dataset, "--out", "r")
    assert (
        code == (1 if "truncated" in damage else 2)
        and err.startswith("robot-rl: ")
        and "Traceback" not in err
        and "(a defect" not in err
    ), err
    assert str(dataset) in err or "the dataset does not fit task 'panda-lift'" in err
    assert not Path("r/bundle").exists()


def test_a_file_is_no_dataset(run: Run) -> None:
    Path("README.md").write_text("words")
    for command, status in (("info", 2), ("verify", 1)):
        code, out, err = run("dataset", command, "README.md")
        assert code == status and "README.md is a file; name the folder that holds meta/" in out + err


def test_after_a_mistyped_dataset_the_corrected_command_works(run: Run, dataset: Path) -> None:
    """A run that never began leaves no run folder behind."""
    sentence(*run(*TRAIN, "--dataset", "demoz", "--out", "r"), "demoz", status=2)
    assert not Path("r").exists()
    code, out, err = run(*TRAIN, "--dataset", dataset, "--out", "r")
    assert code == 0, err
    assert Path("r/bundle/policy.json").is_file()


def test_finetune_without_demonstrations_says_which_flag(run: Run, bundle: Path, dataset: Path) -> None:
    shutil.rmtree(dataset)
    sentence(*run("finetune", bundle), str(dataset), "--dataset", status=2)
    sentence(*run("finetune", bundle, "--dataset", "nowhere"), "nowhere", "--dataset", status=2)


def test_finetune_resumes_the_latest_session(run: Run, bundle: Path) -> None:
    none = "nothing to resume: no run of panda-lift with hil-serl"
    sentence(*run("finetune", bundle, "--resume"), none, "--out", status=2)
    for day in ("20260101", "20260102"):
        folder = Path("runs", f"{day}-000000-panda-lift-hil-serl")
        folder.mkdir(parents=True)
        (folder / "episodes.jsonl").touch()
    # Somebody else's folder: it gets as far as looking into it.
    sentence(*run("finetune", bundle, "--resume"), "20260102-000000-panda-lift-hil-serl", status=2)


@pytest.mark.parametrize(
    ("began", "said"),
    [
        ({"base": "0"}, "the policy in"),
        ({"dataset": {"episodes": 2, "of": 2, "numbers": "0", "pictures": "0"}}, "the first 2 episodes of"),
    ],
)
def test_a_session_goes_on_only_with_what_it_began_with(
    run: Run, bundle: Path, began: dict[str, Any], said: str
) -> None:
    Path("session").mkdir()
    Path("session/config.json").write_text(json.dumps({"task": "panda-lift", "inputs": began}))
    sentence(*run("finetune", bundle, "--out", "session", "--resume"), said, "began with", status=2)


def test_finetune_refuses_a_policy_that_walks_before_it_looks_for_demonstrations(run: Run, tmp_path: Path) -> None:
    pipeline = Pipeline(tasks.get("go2-velocity").interface)
    policy = FeedforwardPolicy(Size(pipeline.observer.spec.size, 12), FeedforwardConfig(hidden=(8,)))
    provenance = {"dataset": "/nowhere/demos"}
    save_bundle(Bundle(policy, pipeline.interface, pipeline.robot.fingerprint(), provenance), tmp_path / "walk")
    words = ["finetune", tmp_path / "walk", "--robot", "go2"]
    sentence(*run(*words), "a feedforward policy cannot be corrected", status=2)


def test_finetune_refuses_other_critics_than_the_bundles_before_it_looks_for_demonstrations(
    run: Run, bundle: Path
) -> None:
    made = load_bundle(bundle)
    critic = Critic(SIZE, 4, 3, (8, 16), Scalar(0.0, 1.0)).state_dict()
    changed = {
        "critic": critic,
        "agent": {"critics": 3, "hidden": [8, 16]},
        "provenance": {"dataset": "/nowhere/demos"},
    }
    save_bundle(replace(made, **changed), bundle)
    sentence(*run("finetune", bundle), "critics 3, not 2; pass --agent.critics 3 to continue", status=2)
    sentence(*run("finetune", bundle, "--agent.critics", "3"), "--agent.hidden 8 16", status=2)
    sentence(*run("finetune", bundle, "--agent.critics", "3", "--agent.hidden", "8", "16"), "/nowhere/demos", status=2)


@pytest.mark.parametrize(
    ("recipe", "option"),
    [
        ("ppo", ["--base", "b"]),
        ("ppo", ["--dataset", "d"]),
        ("diffusion-bc", ["--base", "b"]),
        ("diffusion-bc", ["--engine", "genesis"]),
        ("diffusion-bc", ["--without", "cube.mas"]),
    ],
)
def test_train_refuses_what_the_recipe_would_not_look_at(run: Run, recipe: str, option: list[str]) -> None:
    said = f"recipe {recipe} does nothing with {option[0]}; leave it out"
    sentence(*run("train", "panda-lift", "--recipe", recipe, *option), said, status=2)
    assert not Path("runs").exists()


def test_the_table_of_train_says_how_far_it_came(run: Run, dataset: Path) -> None:
    code, out, err = run(*TRAIN, "--dataset", dataset, "--out", "bc", "--json")
    result = json.loads(out)
    assert code == 0 and result["steps"] == 4 and result["loss"] > 0 and "return" not in result, err
    words = ["--training.num-envs", "32", "--training.rollout", "50", "--training.steps", "1600"]
    code, out, err = run("train", "go2-velocity", *words, "--out", "ppo")
    rows = dict(line.split() for line in out.splitlines()[1:])
    last = json.loads(Path("ppo/metrics.jsonl").read_text().splitlines()[-1])
    assert code == 0 and rows["steps"] == "1600", err
    assert float(rows["return"]) == pytest.approx(last["train/return"], rel=1e-3)


def test_a_schedule_over_the_whole_run_is_not_prolonged(run: Run, dataset: Path) -> None:
    """The learning rate of diffusion-bc falls to 0 at its end: there is no exact longer run."""
    words = [*TRAIN, "--dataset", dataset, "--out", "r"]
    assert run(*words)[0] == 0
    sentence(
        *run(*words, "--training.updates", "8", "--resume"), "training updates 4", "resume with the same", status=2
    )


def test_the_default_recipe_is_one_that_the_task_can_be_learned_with(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(Train, "run", lambda self: ran.append(f"{self.recipe} {type(self.config).__name__}") or 0)
    for words in (["panda-lift"], ["go2-velocity"], ["--seed", "1", "go2-velocity"], ["ur5e-reach"],
                  ["go2-velocity", "--recipe", "diffusion-bc"]):  # fmt: skip
        assert run("train", *words)[0] == 0
    bc, ppo = "diffusion-bc DiffusionBC", "ppo ProximalPolicy"
    assert ran == [bc, ppo, ppo, bc, bc]


def test_the_task_of_a_robot_that_is_named_alone(run: Run) -> None:
    assert [task_of(name).name for name in ("go2", "panda", "ur5e")] == ["go2-velocity", "panda-lift", "ur5e-reach"]
    sentence(*run("twin", "go2", "--task", "panda-lift"), "'panda-lift' is for robot 'panda', not 'go2'", status=2)
    words = ["teleop", "scripted", "--robot", "ur5e", "--task", "panda-lift"]
    sentence(*run(*words), "'panda-lift' is for robot 'panda', not 'ur5e'", status=2)


def test_finetune_reads_its_demonstrations_before_the_robot_moves(run: Run, bundle: Path, dataset: Path) -> None:
    file = next(dataset.glob("data/**/*.parquet"))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    sentence(*run("finetune", bundle, "--out", "r"), file)
    assert not Path("r").exists()


# ---- where results go --------------------------------------------------------------------------------------------
def test_out_that_cannot_be_written(run: Run, dataset: Path) -> None:
    Path("file").write_text("mine")
    sentence(*run(*TRAIN, "--dataset", dataset, "--out", "file/run"), "file/run", "--out")
    sentence(*run(*COLLECT, "--out", "file/set"), "file/set")
    assert Path("file").read_text() == "mine"


def test_a_run_folder_that_is_in_use(run: Run, dataset: Path) -> None:
    with RunFolder(Path("r"), {}):
        for more in ([], ["--resume"]):
            sentence(*run(*TRAIN, "--dataset", dataset, "--out", "r", *more), "r is in use", "--out")


def test_a_run_or_dataset_that_exists_is_not_overwritten(run: Run, dataset: Path) -> None:
    code, _, err = run(*TRAIN, "--dataset", dataset, "--out", "r")
    assert code == 0, err
    files = {p: p.read_bytes() for p in Path("r").rglob("*") if p.is_file()}
    sentence(*run(*TRAIN, "--dataset", dataset, "--out", "r"), "r holds a run already", "--resume", status=2)
    assert {p: p.read_bytes() for p in Path("r").rglob("*") if p.is_file()} == files
    episodes = {p: p.read_bytes() for p in dataset.rglob("*") if p.is_file()}
    code, out, err = run(*COLLECT, "--out", dataset)
    sentence(code, out, err, dataset, "holds a dataset already; go on with --resume, or choose another --out", status=2)
    assert "DatasetWriter" not in err
    assert {p: p.read_bytes() for p in dataset.rglob("*") if p.is_file()} == episodes


@pytest.mark.parametrize("use", ["train", "deploy", "finetune"])
def test_a_folder_of_somebody_else_is_left_as_it_is(run: Run, bundle: Path, dataset: Path, use: str) -> None:
    """A name that our own files have as well, and one that looks like what a kill leaves."""
    mine = Path("mine")
    (mine / ".thesis.part").mkdir(parents=True)
    (mine / ".thesis.part" / "one").write_text("all there is")
    (mine / "config.json").write_text('{"precious": 1}')
    words = [*TRAIN, "--dataset", dataset] if use == "train" else [use, bundle]
    for more in ([], ["--resume"]) if use != "deploy" else ([],):
        sentence(*run(*words, "--out", mine, *more), "mine is not a run folder", "--out", status=2)
    assert (mine / ".thesis.part" / "one").read_text() == "all there is"
    assert (mine / "config.json").read_text() == '{"precious": 1}' and len(list(mine.iterdir())) == 2


@pytest.mark.parametrize("checkpoint", [0, 1])
def test_a_learning_rate_that_diverges_is_no_defect(run: Run, dataset: Path, checkpoint: int) -> None:
    words = ["--dataset", dataset, "--out", "r", "--agent.lr", "1e30", "--agent.warmup", "0"]
    words += ["--training.checkpoint-every", 1 if checkpoint else 99, "--training.log-every", 99]
    left = "the last checkpoint is intact" if checkpoint else "no checkpoint had been written"
    words = [*TRAIN, "--training.updates", 9, *words]
    sentence(*run(*words), "bc/loss became", "at step", left, "smaller learning rate", status=2)
    assert Path("r/checkpoint.safetensors").exists() == bool(checkpoint)


@pytest.mark.parametrize(("learn", "more"), [(PPO, ["--mjcf", "same.xml"]), (TRAIN, ["--precision", "highest"])])
def test_all_that_changes_results_is_on_record(run: Run, dataset: Path, learn: list[str], more: list[str]) -> None:
    words = [*learn, "--out", "r"] + (["--dataset", str(dataset)] if learn is TRAIN else [])
    assert run(*words)[0] == 0
    name = more[0][2:]
    config = json.loads(Path("r/config.json").read_text())
    assert config.keys() >= {name, "threads", "engine", "device", "without", "seed"}
    assert load_bundle(Path("r")).provenance[name] == config[name]
    sentence(*run(*words, "--resume", *more), f"different settings ({name})", status=2)


@pytest.mark.parametrize(("more", "cores", "used"), [([], 3, 3), ([], 64, 4), (["--threads", "2"], 3, 2)])
def test_a_learner_that_has_the_cores_to_itself_takes_them(
    run: Run, dataset: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], cores: int, used: int
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
    seen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    assert run(*TRAIN, "--dataset", dataset, "--out", "r", *more)[0] == 0
    assert seen[0] == used == json.loads(Path("r/config.json").read_text())["threads"]


def test_a_demo_overwrites_nothing(run: Run) -> None:
    Path("mine").mkdir()
    sentence(*run("demo", "--out", "mine"), "mine exists; choose another --out", status=2)
    assert not list(Path("mine").iterdir())


def test_json_that_is_no_dataset_is_not_told_to_be_converted(run: Run) -> None:
    Path("mine/meta").mkdir(parents=True)
    Path("mine/meta/info.json").write_text('{"hello": 1}')
    sentence(*run("dataset", "info", "mine"), "mine is no LeRobot dataset", status=2)


def test_a_report_says_which_folder_it_made_and_why_it_could_not_be_written(run: Run, dataset: Path) -> None:
    assert run(*TRAIN, "--dataset", dataset, "--out", "r")[0] == 0
    for said in ("written: new/dir/r.html, in the new folder new\n", "written: new/dir/r.html\n"):
        code, out, err = run("report", "r", "--out", "new/dir/r.html")
        assert code == 0 and out.endswith(said), err
    code, out, err = run("report", "r", "--out", "/proc/r.html")
    sentence(code, out, err, "cannot write /proc/r.html", "choose another --out")
    assert "space" not in err


def test_a_dataset_of_another_robot_is_refused_with_a_table_of_the_differences(run: Run, dataset: Path) -> None:
    code, _, err = run("train", "ur5e-reach", "--dataset", dataset, "--out", "r")
    assert code == 2 and "does not fit task 'ur5e-reach'" in err and "robot-rl collect ur5e-reach" in err
    first, head, *rows = err.splitlines()
    assert str(dataset) in first and head.endswith("in the task") and not Path("r").exists()
    columns = head.index("in the dataset"), head.index("in the task")
    assert [row.split()[0] for row in rows] == ["observation.state", "action"]
    assert all(row[at - 2 : at] == "  " and row[at] != " " for row in rows for at in columns)
    assert f"{SIZE} numbers, alone" in rows[0] and "and" in rows[0]


def test_nothing_to_resume(run: Run) -> None:
    sentence(*run("train", "panda-lift", "--resume"), "nothing to resume", "--out", status=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("report", "name at least one run folder"),
        ("report nowhere", "nowhere does not exist"),
        ("report file", "file is a file"),
        ("report empty", "empty is not a run folder"),
        ("report run --out empty", "empty is a folder; name a file with --out"),
        ("report run --out file", "file exists and was not written by robot-rl report"),
        ("compare", "name at least two runs"),
        ("compare run nowhere", "nowhere does not exist"),
        ("compare run other", "run has no evaluation.json"),
        ("compare run other ./run", "a folder is named twice"),
        ("dataset info nowhere", "nowhere does not exist"),
        ("dataset info empty", "empty is not a LeRobot v3.0 dataset"),
        ("train panda-lift --recipe bc --dataset nowhere", "nowhere does not exist"),
        ("replay-nan nowhere", "nowhere does not exist"),
        ("teleop keyboard --rate 5", "--rate is 5 Hz"),
    ],
)
def test_what_is_not_there_is_wrong_input(run: Run, words: str, said: str) -> None:
    Path("file").touch()
    Path("empty").mkdir()
    for name in ("run", "other"):
        Path(name).mkdir()
        Path(name, "config.json").write_text("{}")
    sentence(*run(*words.split()), said, status=2)


def test_json_is_one_object_on_stdout(run: Run, dataset: Path) -> None:
    code, out, err = run(*TRAIN, "--dataset", dataset, "--out", "r", "--json")
    assert code == 0 and json.loads(out)["bundle"] == "r/bundle", err
    code, out, _ = run("evaluate", "r", "--episodes", "2", "--num-envs", "2", "--json", "--out", "r/evaluation.json")
    result = json.loads(out)
    assert code == 0 and result["episodes"] == 2 and 0 <= result["success_low"] <= result["success_high"] <= 1
    kept = json.loads(Path("r/evaluation.json").read_text())
    assert {name: value for name, value in kept.items() if name in result} == result


# ---- collect -----------------------------------------------------------------------------------------------------
def test_collect_counts_what_it_did(run: Run) -> None:
    code, out, err = run(*COLLECT, "--out", "set", "--json", "--log", "log")
    assert code == 0, err
    first = json.loads(out)
    assert first["episodes"] == 2 and verify(Path("set")) == []
    code, out, err = run(*COLLECT[:3], "4", *COLLECT[4:], "--out", "set", "--json", "--log", "log", "--resume")
    assert code == 0, err
    facts = json.loads(Path("log/dataset.json").read_text())
    assert facts["episodes"] == 4 and verify(Path("set")) == []
    assert facts["success_of_demonstrator"] <= 1, "earlier episodes do not count as successes"
    assert facts["frames"] == Dataset("set").num_frames > first["frames"], "totals are of the dataset"
    assert (facts["new_episodes"], facts["new_attempts"] >= 2) == (2, True), "and what is new is named so"
    assert run(*COLLECT[:3], "4", *COLLECT[4:], "--out", "set", "--log", "log", "--resume")[0] == 0
    facts = json.loads(Path("log/dataset.json").read_text())
    assert "success_of_demonstrator" not in facts, "nothing was tried: a rate of 0 would be a lie"


@pytest.mark.parametrize("option", ["--seed 1", "--skill CLUMSY", "--without cube.mass", "--image-size 16"])
def test_a_resumed_dataset_has_one_kind_of_demonstrations(run: Run, option: str) -> None:
    assert run(*COLLECT, "--out", "set")[0] == 0
    more = ["--episodes", "3", "--out", "set", "--resume"]
    name = option.split()[0][2:].replace("-", "_")
    sentence(*run(*COLLECT, *more, *option.split()), "set was started with different settings", f"({name})", status=2)
    sentence(
        *run("collect", "ur5e-reach", *COLLECT[2:], *more), "different settings (task)", 'was "panda-lift"', status=2
    )
    assert Dataset("set").num_episodes == 2
    assert run(*COLLECT, *more)[0] == 0 and Dataset("set").num_episodes == 3


def test_a_dataset_that_nobody_says_how_it_was_recorded_is_not_resumed(run: Run) -> None:
    assert run(*COLLECT, "--out", "set")[0] == 0
    Path("set/meta/collect.json").unlink()
    sentence(*run(*COLLECT, "--out", "set", "--resume"), "set does not say with which settings", "--out")


# ---- the machine -------------------------------------------------------------------------------------------------
def shell(*argv: object, **environment: str) -> tuple[int, str, str]:
    ours = {k: v for k, v in os.environ.items() if k != "PYOPENGL_PLATFORM"}  # MuJoCo set it in this process
    done = subprocess.run(
        [*PROGRAM, *map(str, argv)], capture_output=True, text=True, env=ours | environment, timeout=110
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_an_unknown_gl_library_is_named(tmp_path: Path) -> None:
    words = [*COLLECT[:-1], "16", "--out", tmp_path / "set"]
    sentence(*shell(*words, MUJOCO_GL="wgl"), "MUJOCO_GL", "'wgl'", "egl, osmesa, glfw", status=2)
    assert not (tmp_path / "set").exists()


def test_a_variable_that_asks_for_another_gl_library_is_named(tmp_path: Path) -> None:
    words = [*COLLECT[:-1], "16", "--out", tmp_path / "set"]
    code, out, err = shell(*words, MUJOCO_GL="egl", PYOPENGL_PLATFORM="glx")
    sentence(code, out, err, "unset PYOPENGL_PLATFORM, which is 'glx'", "--image-size 0")
    assert "{!r}" not in err and "apt-get" not in err
    code, out, err = shell(*words, MUJOCO_GL="egl", MUJOCO_EGL_DEVICE_ID="77")
    sentence(code, out, err, "MUJOCO_EGL_DEVICE_ID, which is '77'")
    assert "apt-get" not in err


def test_packages_of_mujoco_that_do_not_fit_are_named(tmp_path: Path) -> None:
    (tmp_path / "mujoco").mkdir()
    (tmp_path / "mujoco" / "__init__.py").write_text("raise ImportError('mujoco 4.0.0 and mujoco-core 3.9.0 differ')")
    words = [*COLLECT, "--out", tmp_path / "set"]
    sentence(*shell(*words, PYTHONPATH=str(tmp_path)), "mujoco-core 3.9.0", "--force-reinstall", "mujoco-studio")


@pytest.mark.parametrize("flag", ["--out", "--video"])
def test_a_file_that_does_not_fit_on_the_disk_is_named_and_not_left(tmp_path: Path, flag: str) -> None:
    """A limit of this process stands in for the disk: 100 bytes of any file, which fits what is printed."""
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); "
    limited += "from robot_rl.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = ["evaluate", "random:panda-lift", "--episodes", "1", "--num-envs", "1", "--video-episodes", "1"]
    file = tmp_path / "new" / ("e.json" if flag == "--out" else "v.mp4")
    argv = [sys.executable, "-B", "-c", limited, *words, flag, str(file), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=110)
    assert json.loads(done.stdout)["episodes"] == 1, "the result is not lost"
    sentence(done.returncode, done.stdout, done.stderr, file)
    assert list(file.parent.iterdir()) == []


@pytest.mark.parametrize(("seconds", "steps"), [(0.0, LIFT.horizon), (1e-3, 1), (5.0, round(5 * LIFT.controller.rate))])
def test_the_seconds_of_an_episode_are_control_periods(seconds: float, steps: int) -> None:
    assert Deploy(Path("b"), seconds=seconds)._timed(LIFT).horizon == steps


def test_damaged_captions_do_not_cost_a_film(tmp_path: Path) -> None:
    (tmp_path / "captions.json").write_text('{"other.mp4": ')
    _caption(tmp_path / "v.mp4", "legged")
    assert json.loads((tmp_path / "captions.json").read_text()) == {"v.mp4": "legged"}


def test_a_display_that_is_not_there_leaves_nothing_behind(tmp_path: Path) -> None:
    """GLFW without an X server: the corrected command must not find a dataset that never was."""
    words = [*COLLECT[:-1], "16", "--out", tmp_path / "set"]
    code, out, err = shell(*words, MUJOCO_GL="glfw", DISPLAY=":9999", WAYLAND_DISPLAY="")
    assert code == 1 and "Traceback" not in err and "(a defect" not in err, err
    (line,) = err.strip().splitlines()
    assert line.startswith("robot-rl: ") and "MUJOCO_GL=glfw" in line and "no display answers at ':9999'" in line
    assert not (tmp_path / "set" / "meta" / "info.json").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="EGL and OSMesa are Linux's")
@pytest.mark.parametrize(("backend", "remedy"), [("egl", "libegl1"), ("osmesa", "libosmesa6"), ("disable", "unset")])
def test_without_a_gl_library_all_but_pictures_works(tmp_path: Path, backend: str, remedy: str) -> None:
    for name in ("libEGL.so", "libEGL.so.1", "libOSMesa.so", "libOSMesa.so.8"):
        (tmp_path / name).write_text("no library")
    without = {"MUJOCO_GL": backend, "LD_LIBRARY_PATH": str(tmp_path)}
    code, out, err = shell(*COLLECT, "--out", tmp_path / "set", "--json", **without)
    assert code == 0 and json.loads(out)["episodes"] == 2, err
    words = [*COLLECT[:-1], "16", "--out", tmp_path / "other"]
    sentence(*shell(*words, **without), f"MUJOCO_GL={backend}", remedy, "--image-size 0")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("words", [COLLECT, ["evaluate", "random:panda-lift"], ["twin", "panda", "--no-camera"]])
@pytest.mark.parametrize("damage", ["missing", "a folder", "truncated", "foreign", "no meshes"])
def test_a_robot_model_that_is_none(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], damage: str
) -> None:
    model = tmp_path / "mine.xml"
    text = robot_model(PIPELINE.robot).read_text()
    if damage == "a folder":
        model.mkdir()
    elif damage != "missing":
        model.write_text({"truncated": text[:-200], "foreign": "<mujoco/>", "no meshes": text}[damage])
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    sentence(*run(*words, "--mjcf", model), "mine.xml", status=2)
    assert not (tmp_path / "datasets").exists()


def test_a_copy_of_the_robot_model_is_as_good(run: Run, tmp_path: Path) -> None:
    model = robot_model(PIPELINE.robot)
    (tmp_path / "mine.xml").write_bytes(model.read_bytes())
    (tmp_path / "assets").symlink_to(model.parent / "assets")
    words = ["evaluate", "random:panda-lift", "--episodes", "2", "--num-envs", "2", "--json"]
    said = []
    for arguments in ([], ["--mjcf", tmp_path / "mine.xml"]):
        code, out, err = run(*words, *arguments)
        assert code == 0, err
        said.append(json.loads(out) | {"seconds": 0})
    assert said[0] == said[1] and said[0]["episodes"] == 2


@pytest.mark.parametrize("domain", ["500", "-1", "seven"])
@pytest.mark.parametrize("command", ["twin", "deploy"])
def test_a_domain_out_of_range_is_named(
    run: Run, bundle: Path, monkeypatch: pytest.MonkeyPatch, domain: str, command: str
) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", domain)
    words = ["twin", "panda", "--no-camera", "--seconds", "0.1"] if command == "twin" else ["deploy", bundle]
    sentence(*run(*words), "ROS_DOMAIN_ID", domain, status=2)


def test_a_deployment_that_never_began_does_not_refuse_the_next_try(
    run: Run, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`deploy` has no --resume: a folder left by a mistake in the settings must not refuse every later try."""
    monkeypatch.setenv("ROS_DOMAIN_ID", "500")
    for _ in range(2):
        sentence(*run("deploy", bundle, "--out", "d"), "ROS_DOMAIN_ID", status=2)


def test_the_results_of_a_deployment_are_not_overwritten(
    run: Run, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", "500")  # it would fail anyway, but later
    with RunFolder(Path("d"), {}) as folder:
        folder.write("evaluation.json", {"success": 1.0})
    sentence(*run("deploy", bundle, "--out", "d"), "d holds a run already", status=2)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], capture_output=True
    )  # fmt: skip
    if not mounted or mounted.returncode:
        pytest.skip("mounting is not permitted")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_disk_that_is_full_while_collecting_keeps_what_was_finished(run: Run, small_disk: Path) -> None:
    words = ["collect", "panda-lift", "--episodes", "500", "--num-envs", "2", "--skill", "STEADY", "--image-size", "0"]
    out = small_disk / "set"
    sentence(*run(*words, "--out", out), "space")
    assert verify(out) == [], "episodes that were finished are sound, and of the one that was not nothing is left"
    assert not list(out.rglob("*.part"))


def test_a_disk_that_is_full_while_training(small_disk: Path, tmp_path: Path) -> None:
    """Filled while it trains: the sentence, no bundle, and the checkpoint of before is whole."""
    dataset = write_dataset(tmp_path / "demos")
    words = [*TRAIN, "--dataset", dataset, "--training.updates", "400", "--training.checkpoint-every", "4"]
    words += ["--training.log-every", "1", "--policy.hidden", "64", "--out", small_disk / "r"]
    code, out, err = shell(*words)
    assert code == 1 and "Traceback" not in err and "(a defect" not in err, err
    last = err.strip().splitlines()[-1]
    assert last.startswith("robot-rl: ") and "space" in last
    assert not (small_disk / "r" / "bundle").exists()
    assert not list((small_disk / "r").glob(".*.part"))
