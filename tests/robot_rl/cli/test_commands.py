"""Wrong input to every command gives one sentence that names the file or setting, and changes no file."""

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
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from robot_rl.cli import main as cli
from robot_rl.cli.deploy import limited, slowed
from robot_rl.cli.finetune import Finetune
from robot_rl.cli.train import Train
from robot_rl.data import Dataset, DatasetWriter, Feature, verify
from robot_rl.data.recording import features
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.pipeline import Pipeline
from robot_rl.interface.shield import JointShield
from robot_rl.learning.parts.critics import Critic
from robot_rl.learning.parts.heads import Scalar
from robot_rl.recipes import recipes
from robot_rl.robots import panda as panda_module
from robot_rl.robots import robots
from robot_rl.training.run import Run as RunFolder
from robot_rl.util.errors import ConfigError
from sim.scenes import robot_model
from sim.tasks import task_of, tasks

Run = Callable[..., tuple[int, str, str]]
Fails = Callable[..., str]
LIFT = tasks.get("panda-lift").interface
PIPELINE = Pipeline(LIFT)
SIZE = PIPELINE.observer.spec.size
COLLECT = ["collect", "panda-lift", "--episodes", "2", "--num-envs", "2", "--skill", "STEADY", "--image-size", "0"]
TRAIN = ["train", "panda-lift", "--training.updates", "4", "--training.batch", "8", "--policy.hidden", "16"]
TRAIN += ["--policy.layers", "1"]
PPO = ["train", "go2-velocity", "--training.num-envs", "2", "--training.rollout", "4", "--training.steps", "8"]


@pytest.fixture
def dataset(write_demos: Callable[..., Path], tmp_path: Path) -> Path:
    return write_demos(tmp_path / "demos")


@pytest.fixture
def bundle(save_policy: Callable[..., Path], tmp_path: Path, dataset: Path) -> Path:
    return save_policy(tmp_path / "bundle", dataset)


def edit(bundle: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    file = bundle / "policy.json"
    meta = json.loads(file.read_text())
    change(meta)
    file.write_text(json.dumps(meta))


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- wrong words -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("words", "message"), [
    # unknown names
    ("collect panda-lfit", "unknown task 'panda-lfit'; did you mean panda-lift"),
    ("collect panda-lift --skill CLUMSEY", "did you mean CLUMSY"),
    ("collect panda-lift --engine mujuco", "unknown engine 'mujuco'; did you mean mujoco?"),
    ("collect panda-lift --device cud", "unknown device 'cud'; did you mean cuda"),
    ("train panda-lift --recipe=resfitt", "unknown recipe 'resfitt'; did you mean resfit"),
    ("train go2-velocity --engine genesis --device cud", "unknown device 'cud'; did you mean cuda"),
    ("evaluate random:panda-lfit", "did you mean panda-lift"),
    ("deploy BUNDLE --robot pandaa", "unknown robot 'pandaa'; did you mean panda"),
    ("twin panda --task panda-lfit", "did you mean panda-lift"),
    ("finetune BUNDLE --recipe hil-sarl", "did you mean hil-serl"),
    ("demo panda-lfit", "did you mean panda-lift"),
    ("bench loop go3", "unknown robot 'go3'; did you mean go2?"),
    # numbers out of range
    ("collect panda-lift --episodes -3", "--episodes is -3; it must be "),
    ("train panda-lift --training.updates -5", "--training.updates is -5; it must be "),
    ("train panda-lift --recipe ppo --policy.hidden 16 0", "--policy.hidden is 0"),
    ("finetune b --training.demo-share nan", "is nan; it must be "),
    ("finetune b --minutes -1 --ros-args", "--minutes is -1"),
    ("teleop keyboard --rate 5", "--rate is 5 Hz"),
    # files and folders
    ("report", "name at least one run folder"),
    ("report run --out empty", "empty is a folder; name a file with --out"),
    ("compare run", "name at least two runs"),
    ("compare run other", "run has no evaluation.json"),
    ("compare run other ./run", "a folder is named twice"),
    ("dataset info nowhere", "nowhere does not exist"),
    ("dataset info file", "file is a file; name the folder that holds meta/"),
    ("dataset info empty", "empty is not a LeRobot v3.0 dataset"),
    ("dataset info foreign", "foreign is no LeRobot dataset"),
    ("train panda-lift --recipe bc --dataset nowhere", "nowhere does not exist"),
    ("train panda-lift", "robot-rl collect"),
    ("train go2-velocity --recipe diffusion-bc", "no scripted demonstrator"),
    ("train panda-lift --resume", "nothing to resume"),
    ("replay-nan nowhere", "nowhere does not exist"),
    ("demo --out empty", "empty exists; choose another --out"),
    ("finetune BUNDLE --dataset nowhere", "--dataset"),
    ("finetune BUNDLE --resume", "nothing to resume: no run of panda-lift with hil-serl"),
    # options that do not apply
    ("collect panda-lift --device cuda", "use --engine warp or genesis for a GPU"),
    ("evaluate random:panda-lift --device cuda --engine genesis", "use --device cpu"),
    ("evaluate zero:panda-lift --runtime onnx", "zero actions need no runtime"),
    ("evaluate expert:go2-velocity", "has no scripted demonstrator"),
    ("evaluate zero:panda-lift --out empty", "empty is a folder; name a file with --out"),
    ("train panda-lift --recipe ppo --out file", "cannot write to run folder file: File exists"),
    ("collect panda-lift --out file", "file; check the path"),
    ("evaluate expert:panda-lift --inference-delay 50", "takes no --execution"),
    ("evaluate zero:panda-lift --video x.gif", "x.gif: videos are written as mp4"),
    ("finetune BUNDLE --recipe resfit", "robot-rl train"),
    ("train panda-lift --recipe ppo --base b", "recipe ppo does nothing with --base; leave it out"),
    ("train panda-lift --recipe ppo --dataset d", "recipe ppo does nothing with --dataset; leave it out"),
    ("train panda-lift --engine genesis", "recipe diffusion-bc does nothing with --engine; leave it out"),
    ("twin go2 --task panda-lift", "'panda-lift' is for robot 'panda', not 'go2'"),
    ("teleop scripted --robot ur5e --task panda-lift", "'panda-lift' is for robot 'panda', not 'ur5e'"),
])  # fmt: skip
def test_wrong_input_is_one_sentence_and_changes_nothing(
    fails: Fails, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str,
    message: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if "BUNDLE" in words:
        words = words.replace("BUNDLE", str(request.getfixturevalue("bundle")))
    (tmp_path / "file").touch()
    for name in ("empty", "run", "other", "foreign/meta"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "foreign/meta/info.json").write_text('{"hello": 1}')
    for name in ("run", "other"):
        (tmp_path / name / "config.json").write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    fails(words.split(), message)
    assert sorted(tmp_path.rglob("*")) == before


# ---- settings ----------------------------------------------------------------------------------------------------
def undocumented(kind: Any) -> Iterator[str]:
    """Fields of a dataclass, nested dataclasses included, without an attribute docstring for --help."""
    if not is_dataclass(kind):
        return
    (body,) = (node.body for node in ast.parse(inspect.getsource(kind)).body if isinstance(node, ast.ClassDef))
    hints = get_type_hints(kind)
    for field, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            name = field.target.id
            if "ClassVar" in ast.unparse(field.annotation):
                continue
            documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if not is_dataclass(hints[name]) and not documented:
                yield f"{kind.__name__}.{name}"
            yield from undocumented(hints[name])


@pytest.mark.parametrize("recipe", list(recipes))
def test_every_setting_of_a_recipe_has_help(recipe: str) -> None:
    assert list(undocumented(recipes.get(recipe))) == []


def numbers(kind: Any) -> Iterator[tuple[str, Any]]:
    """Names and types of the numeric fields of a dataclass, nested dataclasses included."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if is_dataclass(hint):
            yield from ((f"{name}.{inner}", found) for inner, found in numbers(hint))
        elif re.search(r"\b(int|float)\b", str(hint)):
            yield name, hint


def test_every_numeric_setting_has_a_range() -> None:
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
    unlimited = {n for n, h in found.items() if not re.search(r"\b(Gt|Ge|Interval)\(", str(h))}
    assert {n for n in unlimited if n.split(".")[-1] not in free} == set()
    assert len(found) > 80


def test_default_recipe_fits_the_task(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(Train, "run", lambda self: ran.append(f"{self.recipe} {type(self.config).__name__}") or 0)
    for words in (["panda-lift"], ["go2-velocity"], ["--seed", "1", "go2-velocity"], ["ur5e-reach"],
                  ["go2-velocity", "--recipe", "diffusion-bc"]):  # fmt: skip
        assert run("train", *words)[0] == 0
    bc, ppo = "diffusion-bc DiffusionBC", "ppo ProximalPolicy"
    assert ran == [bc, ppo, ppo, bc, bc]
    assert [task_of(name).name for name in ("go2", "panda", "ur5e")] == ["go2-velocity", "panda-lift", "ur5e-reach"]


@pytest.mark.parametrize(("more", "cores", "used"), [([], 3, 3), ([], 64, 4), (["--threads", "2"], 3, 2)])
def test_learner_without_simulation_uses_all_cores(
    run: Run, dataset: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], cores: int, used: int
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
    seen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    assert run(*TRAIN, "--dataset", dataset, "--out", "r", *more)[0] == 0
    assert seen[0] == used == json.loads(Path("r/config.json").read_text())["threads"]


@pytest.mark.parametrize(("learn", "more"), [(PPO, ["--mjcf", "same.xml"]), (TRAIN, ["--precision", "highest"])])
def test_settings_with_an_effect_are_recorded(run: Run, fails: Fails, dataset: Path, learn: Any, more: Any) -> None:
    words = [*learn, "--out", "r"] + (["--dataset", dataset] if learn is TRAIN else [])
    assert run(*words)[0] == 0
    name = more[0][2:]
    config = json.loads(Path("r/config.json").read_text())
    assert config.keys() >= {name, "threads", "engine", "device", "without", "seed"}
    of_tasks = {"instructions", "changes", "choose", "episode_steps", "classifier", "reward"}
    assert learn is TRAIN or config.keys() >= of_tasks
    assert load_bundle(Path("r")).provenance[name] == config[name]
    fails([*words, "--resume", *more], f"different settings ({name})")


@pytest.mark.parametrize(("seconds", "steps"), [(0.0, LIFT.horizon), (1e-3, 1), (5.0, round(5 * LIFT.controller.rate))])
def test_episode_seconds_become_control_periods(seconds: float, steps: int) -> None:
    assert limited(LIFT, seconds).horizon == steps


def test_a_first_run_is_slow() -> None:
    """At --speed 0.05 no command exceeds a twentieth of the policy's speed."""
    panda = robots.get("panda")
    full, slow = (JointShield(panda, slowed(LIFT, panda, share).shield) for share in (1.0, 0.05))
    home = torch.tensor([panda.home])
    goal = home + 0.5
    speeds = []
    for shield in (full, slow):
        command, velocity, fastest = home, torch.zeros_like(home), torch.zeros_like(home)
        for _ in range(100):
            command, velocity = shield.follow(command, velocity, goal, torch.zeros_like(home), 0.005)
            fastest = fastest.maximum(velocity)
        speeds.append(fastest)
    assert (speeds[1] <= 0.05 * 0.5 * panda.limit("velocity") + 1e-6).all() and speeds[1].max() > 0
    assert (speeds[0] > 5 * speeds[1]).all()
    with pytest.raises(ConfigError, match="would fall"):
        slowed(LIFT, robots.get("go2"), 0.05)


# ---- bundles -----------------------------------------------------------------------------------------------------
USES = {"evaluate": ["--episodes", "2", "--num-envs", "2"], "deploy": [], "finetune": []}


def swap(names: list[str]) -> None:
    names[0], names[1] = names[1], names[0]


@pytest.mark.parametrize(("use", "change", "words"), [
    *((use, lambda m: m["robot"].update(name="fr3", home=[0.0] * 7), ["'fr3'", "'panda'", "name, home differ"])
      for use in USES),
    ("deploy", lambda m: swap(m["robot"]["joint_names"]), ["joint_names differ", "['joint2', 'joint1',"]),
    ("evaluate", lambda m: m["interface"].update(robot="ur5e"), ["panda", "ur5e"]),
    ("evaluate", lambda m: swap(m["interface"]["observations"]), ["other observations", "'panda-lift'"]),
    ("deploy", lambda m: m["interface"]["observations"].append("joint_velocity"), [f"reads {SIZE} numbers"]),
    ("evaluate", lambda m: m["policy"]["config"].update(hidden=32), ["policy.safetensors holds the weights of"]),
    ("evaluate", lambda m: m.update(format=99), ["format 99", "update robot-rl"]),
])  # fmt: skip
def test_bundle_that_does_not_fit_is_refused(fails: Fails, bundle: Path, use: str, change: Any, words: Any) -> None:
    edit(bundle, change)
    fails([use, bundle, *USES[use]], *words)


def test_resfit_needs_a_base_for_its_robot_and_task(fails: Fails, bundle: Path, dataset: Path) -> None:
    train = ["train", "panda-lift", "--recipe", "resfit", "--dataset", dataset, "--out", "r"]
    fails(train, "--base")
    edit(bundle, lambda meta: meta["robot"].update(home=[0.0] * 7))
    fails([*train, "--base", bundle], "home differ")
    edit(bundle, lambda meta: meta["robot"].update(home=list(PIPELINE.robot.home)))
    edit(bundle, lambda meta: meta["interface"].update(task="panda-stack"))
    fails([*train, "--base", bundle], "panda-stack", "panda-lift")
    assert not Path("r").exists()


def test_nonfinite_policy_is_reported(run: Run, bundle: Path) -> None:
    """Finite weights that overflow: the bundle loads, every action is refused, and no NaN reaches JSON or report."""
    loaded = load_bundle(bundle)
    for value in loaded.policy.parameters():
        value.data.fill_(3e38)
    save_bundle(loaded, bundle)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    words = ["--episodes", "2", "--num-envs", "2", "--out", "run/evaluation.json", "--json"]
    code, out, err = run("evaluate", bundle, *words)
    assert code == 0, err
    for text in (out, Path("run/evaluation.json").read_text()):
        result = json.loads(text, parse_constant=refuse)
        assert result["nonfinite"] == round(2 * result["steps"]) > 0
        assert result["success"] == result["action_change"] == 0, "the arm stands still"
    assert run("report", "run", "--out", "page.html")[0] == 0
    page = Path("page.html").read_text()
    assert "Refused actions" in page and ">nan<" not in page.lower()


# ---- evaluate ----------------------------------------------------------------------------------------------------
def test_parameters_that_an_engine_cannot_randomize_are_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo simulates instead of Genesis: only the command is under test."""
    from sim.make import make

    def genesis(*words: Any, engine: str, **options: Any) -> Any:
        assert engine == "genesis"
        env: Any = make(*words, engine="mujoco", **options)
        env.simulation |= {"engine": engine, "without": ["cube.size"]}
        return env

    monkeypatch.setattr("sim.make.make", genesis)
    words = ["--engine", "genesis", "--episodes", "2", "--num-envs", "2", "--json", "--out", "evaluation.json"]
    code, out, err = run("evaluate", "random:panda-lift", *words)
    assert code == 0, err
    assert "engine 'genesis' cannot randomize cube.size: kept at the nominal value in every episode\n" in err
    for result in (json.loads(out), json.loads(Path("evaluation.json").read_text())):
        assert result["engine"] == "genesis" and result["without"] == ["cube.size"]


def test_zero_actions_and_excluded_parameters(run: Run) -> None:
    words = ["--episodes", "2", "--num-envs", "2", "--without", "cube.size", "cube.mass", "--json"]
    code, out, _ = run("evaluate", "zero:panda-lift", *words, "--out", "evaluation.json")
    assert code == 0
    for result in (json.loads(out), json.loads(Path("evaluation.json").read_text())):
        assert result["episodes"] == 2 and result["action_change"] == 0
        assert (result["engine"], result["device"]) == ("mujoco", "cpu")
        assert result["without"] == ["cube.size", "cube.mass"]


def test_demonstrator_is_evaluated_like_a_policy(run: Run, tmp_path: Path) -> None:
    words = ["--episodes", "4", "--num-envs", "4", "--json"]
    steady = ["--skill", "STEADY", "--video", tmp_path / "expert.mp4", "--video-episodes", "1"]
    results = []
    for task, options in (("panda-lift", []), ("panda-lift", steady), ("panda-lift-cameras", steady[:2])):
        code, out, err = run("evaluate", f"expert:{task}", *words, *options)
        assert code == 0, err
        results.append(json.loads(out))
    assert [result["skill"] for result in results] == ["CLUMSY", "STEADY", "STEADY"]
    assert [result["success"] for result in results[1:]] == [1.0, 1.0], "also if the policy sees less than the expert"
    assert (tmp_path / "expert.mp4").stat().st_size > 10_000


# ---- task files and robot models ---------------------------------------------------------------------------------
TASK = """
from dataclasses import replace
from sim.randomization import Randomize
from sim.objects import Box
from sim.tasks.panda_lift import TASK as LIFT
"""


@pytest.mark.parametrize(("command", "line", "words"), [
    ("collect", "randomization=(Randomize('cube.mass', 0.3, 0.1),)", "cube.mass: low 0.3 is above high 0.1"),
    ("collect", "randomization=(Randomize('cube.mass', -0.1, 0.1),)", "cube.mass: cannot be negative"),
    ("evaluate", "scene=replace(LIFT.scene, objects=(Box('cube', 0.02, -0.1),))", "object 'cube': mass -0.1 kg"),
    ("train", "scene=replace(LIFT.scene, objects=(Box('cube', 0.0, 0.1),))", "object 'cube': size 0.0 m"),
    ("collect", "scene=", "invalid syntax"),
    ("collect", "randomization=(Randomize('cube.mas', 0.1, 0.3),)", "did you mean cube.mass"),
])  # fmt: skip
def test_task_file_with_impossible_values_is_named(
    fails: Fails, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, line: str, words: str
) -> None:
    file = tmp_path / "impossible_task.py"
    file.write_text(f"{TASK}TASK = replace(LIFT, {line})\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(tasks.entries, "mine", ("impossible_task:TASK", "a user's task"))
    argv = {"evaluate": ["evaluate", "random:mine"], "train": ["train", "mine", "--recipe", "ppo"]}
    where = [] if "mas'" in line else [f"task 'mine' in {file}"]
    fails(argv.get(command, ["collect", "mine"]), words, *where)


def test_joint_missing_in_the_model_suggests_the_nearest(fails: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    panda = robots.get("panda")
    joints = tuple(replace(j, name=j.name.replace("joint7", "jiont7")) for j in panda.joints)
    monkeypatch.setattr(panda_module, "PANDA", replace(panda, joints=joints))
    words = ("panda.xml: it lacks the joints ['jiont7'] of robot 'panda'", "did you mean joint7")
    fails(["evaluate", "random:panda-lift"], *words)


@pytest.mark.parametrize(("damage", "words"), [
    *((damage, COLLECT) for damage in ("missing", "a folder", "truncated", "foreign", "no meshes")),
    ("foreign", ["evaluate", "random:panda-lift"]), ("foreign", ["twin", "panda", "--no-camera"]),
])  # fmt: skip
def test_damaged_robot_model_is_named(fails: Fails, monkeypatch: Any, tmp_path: Path, words: Any, damage: str) -> None:
    model = tmp_path / "mine.xml"
    text = robot_model(PIPELINE.robot).read_text()
    if damage == "a folder":
        model.mkdir()
    elif damage != "missing":
        model.write_text({"truncated": text[:-200], "foreign": "<mujoco/>", "no meshes": text}[damage])
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    fails([*words, "--mjcf", model], "mine.xml")
    assert not (tmp_path / "datasets").exists()


# ---- datasets ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("damage", ["empty", "truncated info", "truncated data", "foreign"])
def test_dataset_that_cannot_be_used_is_named(fails: Fails, dataset: Path, damage: str) -> None:
    if damage.startswith("truncated"):
        file = dataset / "meta" / "info.json" if "info" in damage else next(dataset.glob("data/**/*.parquet"))
        file.write_bytes(file.read_bytes()[:-50])
    else:
        shutil.rmtree(dataset)
        foreign = {"action": Feature("float32", (6,))}
        columns = foreign if damage == "foreign" else features(EnvInfo.of(PIPELINE))
        with DatasetWriter.create(dataset, fps=20, features=columns, robot_type="panda") as writer:
            if damage == "foreign":
                writer.add_episode({"action": torch.zeros(5, 6)}, "pick")
    status = 1 if "truncated" in damage else 2
    err = fails([*TRAIN, "--dataset", dataset, "--out", "r"], status=status, one_line=False)
    assert str(dataset) in err or "the dataset does not fit task 'panda-lift'" in err
    assert not Path("r/bundle").exists()


def test_dataset_of_another_robot_gives_a_table_of_differences(fails: Fails, dataset: Path) -> None:
    words = ["does not fit task 'ur5e-reach'", "robot-rl collect ur5e-reach"]
    err = fails(["train", "ur5e-reach", "--dataset", dataset, "--out", "r"], *words, one_line=False)
    first, head, *rows = err.splitlines()
    assert str(dataset) in first and head.endswith("in the task") and not Path("r").exists()
    columns = head.index("in the dataset"), head.index("in the task")
    assert [row.split()[0] for row in rows] == ["observation.state", "action"]
    assert all(row[at - 2 : at] == "  " and row[at] != " " for row in rows for at in columns)
    assert f"{SIZE} numbers, alone" in rows[0] and "and" in rows[0]


# ---- finetune ----------------------------------------------------------------------------------------------------
def test_finetune_resumes_the_latest_session(fails: Fails, bundle: Path) -> None:
    for day in ("20260101", "20260102"):
        folder = Path("runs", f"{day}-000000-panda-lift-hil-serl")
        folder.mkdir(parents=True)
        (folder / "episodes.jsonl").touch()
    fails(["finetune", bundle, "--resume"], "20260102-000000-panda-lift-hil-serl")


@pytest.mark.parametrize(("began", "message"), [
    ({"base": "0"}, "the policy in"),
    ({"dataset": {"episodes": 2, "of": 2, "numbers": "0", "pictures": "0"}}, "the first 2 episodes of"),
])  # fmt: skip
def test_resumed_session_needs_its_original_inputs(fails: Fails, bundle: Path, began: Any, message: str) -> None:
    Path("session").mkdir()
    Path("session/config.json").write_text(json.dumps({"task": "panda-lift", "inputs": began}))
    fails(["finetune", bundle, "--out", "session", "--resume"], message, "began with")


def test_finetune_checks_the_policy_before_the_demonstrations(fails: Fails, bundle: Path, tmp_path: Path) -> None:
    pipeline = Pipeline(tasks.get("go2-velocity").interface)
    policy = FeedforwardPolicy(Size(pipeline.observer.spec.size, 12), FeedforwardConfig(hidden=(8,)))
    provenance = {"dataset": "/nowhere/demos"}
    save_bundle(Bundle(policy, pipeline.interface, pipeline.robot.fingerprint(), provenance), tmp_path / "walk")
    fails(["finetune", tmp_path / "walk", "--robot", "go2"], "a feedforward policy cannot be corrected")
    critic = Critic(SIZE, 4, 3, (8, 16), Scalar(0.0, 1.0)).state_dict()
    changed = {"critic": critic, "agent": {"critics": 3, "hidden": [8, 16]}, "provenance": provenance}
    save_bundle(replace(load_bundle(bundle), **changed), bundle)
    options = ["--agent.critics", "3", "--agent.hidden", "8", "16"]
    fails(["finetune", bundle], "critics 3, not 2; pass --agent.critics 3 to continue")
    fails(["finetune", bundle, *options[:2]], "--agent.hidden 8 16")
    fails(["finetune", bundle, *options], "/nowhere/demos")


def test_finetune_reads_the_demonstrations_before_the_robot_moves(fails: Fails, bundle: Path, dataset: Path) -> None:
    file = next(dataset.glob("data/**/*.parquet"))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    fails(["finetune", bundle, "--out", "r"], file, status=1)
    shutil.rmtree(dataset)
    fails(["finetune", bundle, "--out", "r"], dataset, "--dataset")
    assert not Path("r").exists()


# ---- results of training -----------------------------------------------------------------------------------------
def test_train_evaluate_and_report_of_one_run(run: Run, fails: Fails, dataset: Path) -> None:
    words = [*TRAIN, "--dataset", dataset, "--out", "r"]
    fails([*TRAIN, "--dataset", "demoz", "--out", "r"], "demoz")
    assert not Path("r").exists()
    code, out, err = run(*words, "--json")
    result = json.loads(out)
    assert code == 0 and result["bundle"] == "r/bundle", err
    assert result["steps"] == 4 and result["loss"] > 0 and "return" not in result
    files, episodes = contents(Path("r")), contents(dataset)
    fails(words, "r holds a run already", "--resume")
    fails([*COLLECT, "--out", dataset], dataset, "holds a dataset already; go on with --resume")
    # The learning rate of diffusion-bc falls to 0 at the end of the run: no exact longer run exists.
    fails([*words, "--training.updates", "8", "--resume"], "training updates 4", "resume with the same")
    assert contents(Path("r")) == files and contents(dataset) == episodes
    code, out, _ = run("evaluate", "r", "--episodes", "2", "--num-envs", "2", "--json", "--out", "r/evaluation.json")
    result, kept = json.loads(out), json.loads(Path("r/evaluation.json").read_text())
    assert code == 0 and result["episodes"] == 2 and 0 <= result["success_low"] <= result["success_high"] <= 1
    assert {name: value for name, value in kept.items() if name in result} == result
    for message in ("written: new/dir/r.html, in the new folder new\n", "written: new/dir/r.html\n"):
        code, out, err = run("report", "r", "--out", "new/dir/r.html")
        assert code == 0 and out.endswith(message), err
    assert "space" not in fails(["report", "r", "--out", "/proc/r.html"], "cannot write /proc/r.html", status=1)


def test_train_prints_the_last_row_of_metrics(run: Run) -> None:
    words = ["--training.num-envs", "32", "--training.rollout", "50", "--training.steps", "1600"]
    code, out, err = run("train", "go2-velocity", *words, "--out", "ppo")
    rows = dict(line.split() for line in out.splitlines()[1:])
    last = json.loads(Path("ppo/metrics.jsonl").read_text().splitlines()[-1])
    assert code == 0 and rows["steps"] == "1600", err
    assert float(rows["return"]) == pytest.approx(last["train/return"], rel=1e-3)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_divergence_is_a_user_error(fails: Fails, dataset: Path, checkpoint: bool) -> None:
    words = [*TRAIN, "--training.updates", 9, "--dataset", dataset, "--out", "r", "--agent.lr", "1e30"]
    words += ["--agent.warmup", "0", "--training.checkpoint-every", 1 if checkpoint else 99, "--training.log-every", 99]
    left = "the last checkpoint is intact" if checkpoint else "no checkpoint had been written"
    fails(words, "bc/loss became", "at step", left, "smaller learning rate")
    assert Path("r/checkpoint.safetensors").exists() == checkpoint


def test_unwritable_output_is_named(fails: Fails, dataset: Path) -> None:
    Path("file").write_text("mine")
    fails([*TRAIN, "--dataset", dataset, "--out", "file/run"], "file/run", "--out")
    fails([*COLLECT, "--out", "file/set"], "file/set")
    assert Path("file").read_text() == "mine"


@pytest.mark.parametrize("use", ["train", "deploy", "finetune"])
def test_foreign_folder_is_left_unchanged(fails: Fails, bundle: Path, dataset: Path, use: str) -> None:
    """The folder has a config.json, like a run, and a name like the leftover of a killed process."""
    mine = Path("mine")
    (mine / ".thesis.part").mkdir(parents=True)
    (mine / ".thesis.part" / "one").write_text("all there is")
    (mine / "config.json").write_text('{"precious": 1}')
    before = contents(mine)
    words = [*TRAIN, "--dataset", dataset] if use == "train" else [use, bundle]
    for more in ([], ["--resume"]) if use != "deploy" else ([],):
        fails([*words, "--out", mine, *more], "mine is not a run folder", "--out")
    assert contents(mine) == before and len(list(mine.iterdir())) == 2


# ---- collect -----------------------------------------------------------------------------------------------------
def test_collect_reports_totals_and_new_episodes(run: Run) -> None:
    code, out, err = run(*COLLECT, "--out", "set", "--json", "--log", "log")
    assert code == 0, err
    first = json.loads(out)
    assert first["episodes"] == 2 and verify(Path("set")) == []
    more = [*COLLECT[:3], "4", *COLLECT[4:], "--out", "set", "--log", "log", "--resume"]
    assert run(*more)[0] == 0
    facts = json.loads(Path("log/dataset.json").read_text())
    assert facts["episodes"] == 4 and verify(Path("set")) == []
    assert facts["success_of_demonstrator"] <= 1, "earlier episodes do not count as successes"
    assert facts["frames"] == Dataset("set").num_frames > first["frames"], "totals are the dataset's"
    assert (facts["new_episodes"], facts["new_attempts"] >= 2) == (2, True)
    assert run(*more)[0] == 0
    assert "success_of_demonstrator" not in json.loads(Path("log/dataset.json").read_text()), "without attempts"


def test_resumed_dataset_needs_its_original_settings(run: Run, fails: Fails) -> None:
    assert run(*COLLECT, "--out", "set")[0] == 0
    more = ["--episodes", "3", "--out", "set", "--resume"]
    for name, value in (("seed", "1"), ("without", "cube.mass"), ("image-size", "16")):
        message = f"({name.replace('-', '_')})"
        fails([*COLLECT, *more, f"--{name}", value], "set was started with different settings", message)
    fails(["collect", "ur5e-reach", *COLLECT[2:], *more], "different settings (task)", 'was "panda-lift"')
    assert Dataset("set").num_episodes == 2
    assert run(*COLLECT, *more)[0] == 0 and Dataset("set").num_episodes == 3
    Path("set/meta/collect.json").unlink()
    fails([*COLLECT, *more], "set does not say with which settings", "--out", status=1)


# ---- the machine -------------------------------------------------------------------------------------------------
def shell(*argv: object, **environment: str) -> tuple[int, str, str]:
    ours = {k: v for k, v in os.environ.items() if k != "PYOPENGL_PLATFORM"}  # MuJoCo set the variable in this process
    command = [sys.executable, "-m", "robot_rl.cli.main", *map(str, argv)]
    done = subprocess.run(command, capture_output=True, text=True, env=ours | environment, timeout=110)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(("variables", "status", "words"), [
    ({"MUJOCO_GL": "wgl"}, 2, ["MUJOCO_GL", "'wgl'", "egl, osmesa, glfw"]),
    ({"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "glx"}, 1, ["unset PYOPENGL_PLATFORM, which is 'glx'"]),
    ({"MUJOCO_GL": "egl", "MUJOCO_EGL_DEVICE_ID": "77"}, 1, ["MUJOCO_EGL_DEVICE_ID, which is '77'"]),
    ({"MUJOCO_GL": "glfw", "DISPLAY": ":9999", "WAYLAND_DISPLAY": ""}, 1, ["no display answers at ':9999'"]),
])  # fmt: skip
def test_wrong_gl_setting_is_named(check_error: Fails, tmp_path: Path, variables: Any, status: int, words: Any) -> None:
    said = shell(*COLLECT[:-1], "16", "--out", tmp_path / "set", **variables)
    assert "apt-get" not in check_error(*said, *words, status=status)
    assert not (tmp_path / "set" / "meta" / "info.json").exists()


def test_mismatched_mujoco_packages_are_named(check_error: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "mujoco").mkdir()
    (tmp_path / "mujoco" / "__init__.py").write_text("raise ImportError('mujoco 4.0.0 and mujoco-core 3.9.0 differ')")
    said = shell(*COLLECT, "--out", tmp_path / "set", PYTHONPATH=str(tmp_path))
    check_error(*said, "mujoco-core 3.9.0", "--force-reinstall", "mujoco-studio", status=1)


@pytest.mark.skipif(sys.platform != "linux", reason="EGL and OSMesa exist on Linux only")
@pytest.mark.parametrize(("backend", "remedy"), [("egl", "libegl1"), ("osmesa", "libosmesa6"), ("disable", "unset")])
def test_commands_without_images_work_without_gl(check_error: Fails, tmp_path: Path, backend: str, remedy: str) -> None:
    for name in ("libEGL.so", "libEGL.so.1", "libOSMesa.so", "libOSMesa.so.8"):
        (tmp_path / name).write_text("no library")
    without = {"MUJOCO_GL": backend, "LD_LIBRARY_PATH": str(tmp_path)}
    if backend == "egl":
        code, out, err = shell(*COLLECT, "--out", tmp_path / "set", "--json", **without)
        assert code == 0 and json.loads(out)["episodes"] == 2, err
    said = shell(*COLLECT[:-1], "16", "--out", tmp_path / "other", **without)
    check_error(*said, f"MUJOCO_GL={backend}", remedy, "--image-size 0", status=1)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("flag", ["--out", "--video"])
def test_result_is_printed_if_its_file_cannot_be_written(check_error: Fails, tmp_path: Path, flag: str) -> None:
    """A file size limit of 100 bytes stands in for a full disk."""
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); "
    limited += "from robot_rl.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = ["evaluate", "random:panda-lift", "--episodes", "1", "--num-envs", "1", "--video-episodes", "1"]
    file = tmp_path / "new" / ("e.json" if flag == "--out" else "v.mp4")
    argv = [sys.executable, "-B", "-c", limited, *words, flag, str(file), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=110)
    assert json.loads(done.stdout)["episodes"] == 1
    check_error(done.returncode, done.stdout, done.stderr, file, status=1)
    assert list(file.parent.iterdir()) == []


@pytest.mark.parametrize("domain", ["500", "-1", "seven"])
def test_ros_domain_out_of_range_is_named(fails: Fails, bundle: Path, monkeypatch: Any, domain: str) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", domain)
    fails(["twin", "panda", "--no-camera", "--seconds", "0.1"], "ROS_DOMAIN_ID", domain)
    for _ in range(2):  # a deployment that never began leaves no folder that would refuse the next try
        fails(["deploy", bundle, "--out", "d"], "ROS_DOMAIN_ID", domain)


def test_results_of_a_deployment_are_not_overwritten(fails: Fails, bundle: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", "500")  # would fail too, but later
    with RunFolder(Path("d"), {}) as folder:
        folder.write("evaluation.json", {"success": 1.0})
    fails(["deploy", bundle, "--out", "d"], "d holds a run already")
