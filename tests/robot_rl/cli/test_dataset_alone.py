"""Training on a dataset without a task: cloning, comparison with simple baselines, export, serving, resume."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from policies.bundle import load_bundle
from policies.remote.contract import read
from policies.remote.packing import pack, unpack
from policies.remote.server import PolicyServer, PolicySession
from robot_rl.data import Dataset, DatasetWriter, Feature, verify
from robot_rl.data.recording import features
from robot_rl.recipes import recipes
from robot_rl.recipes.job import open_job
from robot_rl.training.run import Run, configured, learning_floats
from sim.make import describe

Call = Callable[..., tuple[int, str, str]]
STATE = ["shoulder.pos", "elbow.pos", "gripper.pos"]
ACTION = ["shoulder.pos", "elbow.pos"]
GAIN, OFFSET = np.array([[1.0, -2.0], [0.5, 1.0], [0.0, 3.0]]), np.array([50.0, -20.0])
WRIST, HAND = "observation.images.wrist", "observation.images.hand"
BC = ["--recipe", "bc", "--policy.hidden", "64", "--training.batch", "64", "--threads", "1"]
FEW = ["--training.updates", "2", "--training.batch", "4", "--threads", "1"]


def write(
    root: Path, episodes: int = 20, camera: bool = False, instructions: Sequence[str] = ("pick",), seed: int = 0,
    names: Sequence[str] | None = ACTION, start: int = 0,
) -> Path:  # fmt: skip
    """Write or extend a dataset at 15 Hz; the state is noise, the action a linear function of the state."""
    columns = {"observation.state": Feature("float32", (3,), STATE)}
    columns["action"] = Feature("float32", (2,), None if names is None else list(names))
    columns |= {WRIST: Feature("video", (48, 64, 3), ["height", "width", "channels"])} if camera else {}
    made = DatasetWriter.append(root) if start else DatasetWriter.create(root, fps=15, features=columns)
    with made as writer:
        for k in range(start, start + episodes):
            rng = np.random.default_rng([seed, k])
            state = rng.normal(size=(20 + k % 3, 3)).astype(np.float32)
            frames = {WRIST: rng.integers(0, 255, (len(state), 48, 64, 3), np.uint8)} if camera else {}
            episode = {"observation.state": state, "action": (state @ GAIN + OFFSET).astype(np.float32)} | frames
            writer.add_episode(episode, instructions[k % len(instructions)])
    return root


@pytest.fixture
def refused(run: Call, check_error: Callable[..., str]) -> Callable[..., str]:
    """Check the result of a refused command, see `check_error`."""
    return lambda said, *words: check_error(*said, *words, one_line=False)


def config(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(folder, "config.json").read_text())
    return found


def weights(folder: str) -> bytes:
    return Path(folder, "bundle/policy.safetensors").read_bytes()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("so100") / "plain")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("so100") / "seen", 4, camera=True, instructions=("pick", "place"))


# ---- a known answer ---------------------------------------------------------------------------------------------
def test_clone_of_a_linear_dataset_beats_simple_baselines(run: Call, plain: Path) -> None:
    code, _, err = run("train", "--dataset", plain, *BC, "--agent.lr", "1e-2", "--training.updates", 300, "--out", "r")
    assert code == 0, err
    data = Dataset(plain)
    first = data.episodes[18].start
    learned, held = data.column("action")[:first].double(), data.column("action")[first:].double()
    info = load_bundle("r").info
    assert (info.state.names, info.actions.names, info.rate, info.task) == (STATE, ACTION, 15.0, "dataset:plain")
    assert torch.equal(info.actions.low, learned.amin(0).float())
    assert torch.equal(info.actions.high, learned.amax(0).float())

    code, out, err = run("evaluate", "r", "--dataset", plain, "--json")
    found = json.loads(out)
    assert code == 0 and found["episodes"] == 2 and found["held_out"] and found["frames"] == len(held), err
    cuts = [held[: data.episodes[18].length], held[data.episodes[18].length :]]
    for k, name in enumerate(ACTION):
        row = found["by_number"][name]
        mean = np.mean([(part[:, k] - learned[:, k].mean()).abs().mean() for part in cuts])
        last = [torch.cat([learned[:, k].mean()[None], part[:-1, k]]) for part in cuts]
        hold = np.mean([(part[:, k] - before).abs().mean() for part, before in zip(cuts, last, strict=True)])
        assert row["mean"]["mean"] == pytest.approx(mean, rel=1e-4)
        assert row["hold"]["mean"] == pytest.approx(hold, rel=1e-4)
        assert row["action"]["mean"] < 0.25 * min(mean, hold)
    spread = (info.actions.high - info.actions.low).tolist()
    shares = [found["by_number"][name]["action"]["mean"] / width for name, width in zip(ACTION, spread, strict=True)]
    assert found["action_error"]["mean"] == pytest.approx(np.mean(shares), rel=1e-4)
    kept = json.loads(Path("r/evaluation.json").read_text())
    assert kept["action_error"] == found["action_error"] and len(kept["per_episode"]["action_error"]) == 2

    everything = json.loads(run("evaluate", "r", "--dataset", plain, "--json", "--all-episodes")[1])
    assert everything["episodes"] == 20 and not everything["held_out"]
    shutil.copytree(plain, "elsewhere/copy")
    write(Path("elsewhere/copy"), 3, start=20)
    grown = json.loads(run("evaluate", "r", "--dataset", "elsewhere/copy", "--json")[1])
    assert grown["episodes"] == 5, "held-out and new episodes of a copy"
    other = json.loads(run("evaluate", "r", "--dataset", write(Path("other"), 3, seed=1), "--json")[1])
    assert other["episodes"] == 3 and not other["held_out"]
    code, out, _ = run("evaluate", "r", "--dataset", plain)
    assert code == 0 and all(name in out for name in ACTION)


def test_exported_and_served_policy_uses_the_units_of_the_dataset(run: Call, plain: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    assert run("train", "--dataset", plain, "--recipe", "flow-bc", *FEW, "--out", "r")[0] == 0
    code, out, err = run("export", "r", "--calls", 2, "--json")
    assert code == 0 and json.loads(out)["difference"] < 1e-4, err
    both = [run("evaluate", "r", "--dataset", plain, "--runtime", name, "--json")[1] for name in ("torch", "onnx")]
    errors = [json.loads(out)["action_error"]["mean"] for out in both]
    assert errors[0] == pytest.approx(errors[1], rel=1e-3)

    bundle = load_bundle("r")
    request = pack({"observation.state": np.zeros(3, np.float32)})
    answer = unpack(PolicySession(bundle, torch.device("cpu")).answer(request))
    terms = read(unpack(PolicyServer(bundle, "0").metadata), "here")
    assert terms is not None and terms.described == bundle.info
    assert terms.learned["inputs"] == config("r")["inputs"]
    low, high = bundle.info.actions.low.numpy(), bundle.info.actions.high.numpy()
    assert (low <= answer["actions"]).all() and (answer["actions"] <= high).all() and answer["actions"][0, 0] > 1


def test_policy_for_a_task_is_compared_with_a_dataset(run: Call, refused: Callable[..., str]) -> None:
    info = describe("testbed:reach")
    rng = np.random.default_rng(0)
    with DatasetWriter.create("demos", fps=round(info.rate), features=features(info)) as writer:
        for _ in range(4):
            flag = np.arange(9)[:, None] == 8
            state = rng.normal(size=(9, info.observation)).astype(np.float32)
            action = rng.uniform(-1, 1, (9, info.action)).astype(np.float32)
            row = {"observation.state": state, "action": action, "action.policy": action, "intervention": flag & False}
            row |= {"next.reward": flag.astype(np.float32), "next.success": flag, "next.done": flag}
            writer.add_episode(row, "reach")
    words = ["train", "testbed:reach", "--dataset", "demos", *BC, "--training.updates", 2]
    assert run(*words, "--out", "r")[0] == 0 and run(*words, "--held-out", 0.25, "--out", "held")[0] == 0
    refused(run("evaluate", "r", "--dataset", "demos"), "learned from all 4 episodes", "--all-episodes", "--held-out")
    for words, count in ((["r", "--all-episodes"], 4), (["held"], 1)):
        code, out, err = run("evaluate", *words, "--dataset", "demos", "--json")
        assert code == 0 and json.loads(out)["episodes"] == count, err
        assert json.loads(Path(words[0], "evaluation-dataset.json").read_text())["task"] == "testbed:reach"
    refused(run("evaluate", "r", "--dataset", "demos", "--engine", "genesis"), "--engine does nothing")
    refused(run("evaluate", "r", "--all-episodes"), "is for --dataset")
    refused(run("train", "testbed:reach", "--dataset", "demos", *BC, "--held-out", 1), "--held-out 1 leaves")
    shutil.rmtree("demos")
    assert run("bundle", "r")[0] == 0, "a bundle for a task needs no dataset"


# ---- recipes -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("recipe", ["bc", "diffusion-bc", "flow-bc", "vla-sft", "vla-tokens"])
def test_every_cloning_recipe_supports_pictures_and_instructions(run: Call, seen: Path, recipe: str) -> None:
    code, _, err = run("train", "--dataset", seen, "--recipe", recipe, *FEW, "--out", "r", "--image-size", 32)
    assert code == 0, err
    info = load_bundle("r").info
    assert info.extra_inputs.pictures == {WRIST: (32, 32, 3)} and "observation.language" in info.extra_inputs
    code, out, err = run("evaluate", "r", "--dataset", seen, "--json")
    assert code == 0 and json.loads(out)["episodes"] == 1, err


def test_single_instruction_is_read_only_by_vla_policies(run: Call, refused: Any, plain: Path, tmp_path: Path) -> None:
    one = write(tmp_path / "one", 2, camera=True)
    for recipe, reads in (("bc", False), ("vla-sft", True)):
        assert run("train", "--dataset", one, "--recipe", recipe, *FEW, "--out", recipe)[0] == 0
        assert ("observation.language" in load_bundle(recipe).info.extra_inputs) == reads
    refused(run("train", "--dataset", plain, "--recipe", "vla-sft", *FEW), "pictures")


def test_distilled_policy_keeps_the_units_of_its_base(run: Call, plain: Path, tmp_path: Path) -> None:
    assert run("train", "--dataset", plain, "--recipe", "flow-bc", *FEW, "--out", "base")[0] == 0
    part = write(tmp_path / "part", 3, seed=5)
    words = ["train", "--dataset", part, "--recipe", "consistency", "--base", "base", *FEW, "--out", "r"]
    assert run(*words)[0] == 0
    ranges = [load_bundle(name).info.actions for name in ("base", "r")]
    assert torch.equal(ranges[0].low, ranges[1].low) and torch.equal(ranges[0].high, ranges[1].high)


@pytest.mark.parametrize("recipe", ["sac", "resfit", "iql"])
def test_reinforcement_learning_needs_a_task(run: Call, refused: Any, plain: Path, recipe: str, tmp_path: Path) -> None:
    refused(run("train", "--dataset", plain, "--recipe", recipe), f"recipe {recipe} practises", "diffusion-bc")
    assert not list(tmp_path.glob("runs/*"))


def test_commands_that_need_a_task_or_dataset_are_refused(run: Call, refused: Any, plain: Path, tmp_path: Path) -> None:
    refused(run("train", "--recipe", "bc"), "name a task", "--dataset")
    refused(run("train", "dataset:plain", "--recipe", "bc"), "--dataset")
    refused(run("train", "--dataset", "nowhere", "--recipe", "bc"), "nowhere does not exist")
    assert run("train", "--dataset", plain, *BC, "--training.updates", 2, "--out", "r")[0] == 0
    refused(run("evaluate", "r"), "--dataset DIR")
    refused(run("view", "r"), "cannot draw")
    refused(run("collect", "dataset:plain"), "is a dataset")
    with DatasetWriter.create(tmp_path / "odd", fps=15, features={"qpos": Feature("float32", (3,))}) as writer:
        writer.add_episode({"qpos": np.zeros((3, 3), np.float32)}, "hold still")
    refused(run("train", "--dataset", "odd", *BC), "no observation.state", "qpos", "--rename COLUMN=observation.state")


def test_constant_and_unnamed_dimensions_are_supported(run: Call, tmp_path: Path) -> None:
    columns = {"observation.state": Feature("float32", (2,)), "action": Feature("float32", (2,))}
    with DatasetWriter.create(tmp_path / "d", fps=15, features=columns) as writer:
        state = np.linspace(0, 1, 12, dtype=np.float32).reshape(6, 2)
        for _ in range(2):
            writer.add_episode({"observation.state": state, "action": state * [1, 0] + [0, 7]} | {}, "wave")
    assert run("train", "--dataset", "d", *BC, "--training.updates", 2, "--out", "r")[0] == 0
    actions = load_bundle("r").info.actions
    assert actions.names == ["action.0", "action.1"] and actions.low[1] < 7 < actions.high[1]
    code, out, err = run("evaluate", "r", "--dataset", "d", "--json")
    assert code == 0 and json.loads(out)["by_number"]["action.1"]["action"]["mean"] < 0.01, err


# ---- other names ------------------------------------------------------------------------------------------------
def test_renamed_columns_are_kept_for_resume_and_evaluate(run: Call, refused: Callable[..., str], seen: Path) -> None:
    names = ["--rename", f"{WRIST}={HAND}", "--rename", "action/elbow.pos=forearm.pos"]
    words = ["train", "--dataset", seen, "--recipe", "bc", *FEW, "--image-size", 32, "--out", "r"]
    assert run(*words, *names)[0] == 0
    info = load_bundle("r").info
    assert list(info.extra_inputs.pictures) == [HAND] and info.actions.names == ["shoulder.pos", "forearm.pos"]
    before = config("r")
    assert before["rename"] == names[1::2]
    shutil.rmtree("r/bundle")
    code, _, err = run(*words, "--resume")
    assert code == 0 and config("r") == before and load_bundle("r").info.to_json() == info.to_json(), err
    refused(run(*words, "--resume", "--rename", f"{WRIST}=observation.images.other"), "rename")
    code, out, err = run("evaluate", "r", "--dataset", seen, "--json")
    assert code == 0 and list(json.loads(out)["by_number"]) == info.actions.names, err
    named = write(Path("named"), 2, camera=True, names=info.actions.names)
    code, out, err = run("evaluate", "r", "--dataset", named, "--json")
    assert code == 0 and list(json.loads(out)["by_number"]) == info.actions.names


def test_view_swaps_columns_and_shrinks_pictures(seen: Path) -> None:
    from robot_rl.data.view import DatasetView

    swap = DatasetView(("observation.state=action", "action=observation.state"), 2, 32)
    data, whole = Dataset(seen, swap), Dataset(seen)
    count = data.num_frames
    assert (data.num_episodes, count) == (2, whole.episodes[2].start)
    assert torch.equal(data.column("action"), whole.column("observation.state")[:count])
    assert torch.equal(data.column("observation.state"), whole.column("action")[:count])
    small, large = data.frames(WRIST, [3, 1]), whole.frames(WRIST, [3, 1])
    assert small.shape == (2, 32, 32, 3) and data.features[WRIST].shape == (32, 32, 3)
    assert (small.float().mean((1, 2)) - large.float().mean((1, 2))).abs().max() < 3


@pytest.mark.parametrize(("pairs", "said"), [
    (["a"], "OLD=NEW"),
    (["observation.stat=x"], "did you mean observation.state"),
    (["observation.state=action"], "column 'action' already"),
    (["action=a", "observation.state=a"], "twice"),
    (["action/elbow=x"], "did you mean elbow.pos"),
    (["action/elbow.pos=shoulder.pos"], "already"),
])  # fmt: skip
def test_invalid_rename_is_refused(run: Call, refused: Any, plain: Path, pairs: list[str], said: str) -> None:
    refused(run("train", "--dataset", plain, *BC, *(word for pair in pairs for word in ("--rename", pair))), said)


def test_table_of_differences_suggests_renames(run: Call, refused: Callable[..., str], seen: Path) -> None:
    assert run("train", "--dataset", seen, "--recipe", "bc", *FEW, "--out", "r")[0] == 0
    columns = {"observation.state": Feature("float32", (3,), STATE), HAND: Feature("video", (48, 64, 3))}
    columns |= {"goal": Feature("float32", (2,), ["shoulder.pos", "main_elbow"])}
    with DatasetWriter.create("other", fps=30, features=columns) as writer:
        zeros = {"observation.state": np.zeros((4, 3)), "goal": np.zeros((4, 2))}
        writer.add_episode(zeros | {HAND: np.zeros((4, 48, 64, 3), np.uint8)}, "pick")
    said = run("evaluate", "r", "--dataset", "other")
    refused(said, f"--rename {HAND}={WRIST}", "--rename goal=action", "30 Hz", "15 Hz")
    assert "robot-rl collect" not in said[2], "no task of ours has this robot"
    said = run("evaluate", "r", "--dataset", "other", "--rename", f"{HAND}={WRIST}", "--rename", "goal=action")
    refused(said, "--rename action/main_elbow=elbow.pos")


# ---- resume ------------------------------------------------------------------------------------------------------
class Killed(BaseException):
    """Stands in for SIGKILL."""


def begin(folder: str, whole: str, stop: int) -> None:
    """Start a run with the settings of the run `whole` and end it after `stop` updates."""
    settings = config(whole)
    recipe = configured(recipes.get(settings["recipe"])(), settings["config"])

    def progress(what: str, done: int, total: int, metrics: dict[str, float]) -> None:
        if done >= stop:
            raise Killed

    with pytest.raises(Killed), Run(Path(folder), settings) as run, learning_floats(settings["precision"]):
        recipe.train(open_job(settings, run, progress, began=settings["inputs"]))


MIDWAY = ["--training.updates", "20", "--training.checkpoint-every", "10", "--training.log-every", "5"]


def test_resumed_run_ignores_episodes_recorded_since(run: Call, tmp_path: Path) -> None:
    data = write(tmp_path / "d", 6, camera=True, instructions=("pick", "place"))
    words = ["train", "--dataset", data, "--recipe", "diffusion-bc", "--policy.hidden", 16, *FEW[2:], *MIDWAY]
    assert run(*words, "--out", "whole")[0] == 0
    assert config("whole")["inputs"]["dataset"]["episodes"] == 5
    begin("broken", "whole", 15)
    write(data, 6, camera=True, instructions=("fold",), start=6)
    assert verify(data) == []
    code, _, err = run(*words, "--out", "broken", "--resume")
    assert code == 0 and "6 episodes more than the 6" in err, err
    assert weights("broken") == weights("whole") and config("broken") == config("whole")
    assert json.loads(Path("broken/dataset.json").read_text())["episodes"] == 5
    assert run(*words, "--out", "anew")[0] == 0 and config("anew")["inputs"]["dataset"]["of"] == 12


def test_resume_with_other_episodes_or_pictures_is_refused(run: Call, refused: Any, tmp_path: Path) -> None:
    data = write(tmp_path / "d", 3, camera=True)
    words = ["train", "--dataset", data, "--recipe", "bc", *FEW, "--out", "r"]
    assert run(*words)[0] == 0
    before = weights("r")
    for change in (lambda: repaint(write(data, 3, camera=True)), lambda: write(data, 3, camera=True, seed=1)):
        shutil.rmtree(data)
        change()
        refused(run(*words, "--resume"), "the first 2 episodes of", "not what this run began with", "--out")
    refused(run("bundle", "r"), "what policies of dataset:d see", "not what this run began with")
    assert weights("r") == before


def repaint(root: Path) -> None:
    """Replace the pictures of a dataset by their negatives; the numbers stay unchanged."""
    from robot_rl.data.video import encode_video

    for path in root.rglob("*.mp4"):
        frames = Dataset(root).frames(WRIST, range(20)).numpy()
        path.write_bytes(encode_video(255 - frames, 15))


def test_retrained_base_is_refused(run: Call, refused: Callable[..., str], plain: Path) -> None:
    train = ["train", "--dataset", plain, *FEW]
    assert run(*train, "--recipe", "flow-bc", "--out", "base")[0] == 0
    words = [*train, "--recipe", "consistency", "--base", "base", "--out", "r"]
    assert run(*words)[0] == 0 and run(*words, "--resume")[0] == 0
    assert run("bundle", "base")[0] == 0 and run(*words, "--resume")[0] == 0, "the same weights, written again"
    shutil.rmtree("base")
    assert run(*train, "--recipe", "flow-bc", "--seed", 1, "--out", "base")[0] == 0
    for again in ([*words, "--resume"], ["bundle", "r"]):
        refused(run(*again), "the policy in base is not what this run began with")


def test_all_seeds_of_a_folder_use_the_same_episodes(run: Call, tmp_path: Path) -> None:
    data = write(tmp_path / "d", 6)
    words = ["train", "--dataset", data, *BC, "--training.updates", 2, "--out", "s"]
    assert run(*words, "--seeds", "0")[0] == 0
    write(data, 6, start=6)
    assert run(*words, "--seeds", "0..1", "--resume")[0] == 0
    inputs = [config(f"s/seed-{k}")["inputs"] for k in (0, 1)]
    assert inputs[0] == inputs[1] and inputs[0]["dataset"]["of"] == 6
    words[2] = write(tmp_path / "other" / "d", 3, seed=1)
    assert run(*words, "--seeds", "2", "--resume")[0] == 0 and config("s/seed-2")["inputs"]["dataset"]["of"] == 3


TASK = """
from dataclasses import replace
from sim.tasks.ur5e_reach import TASK as OURS
TASK = replace(OURS, interface=replace(OURS.interface, task="mine"))
"""


def test_edited_task_is_refused(run: Call, refused: Callable[..., str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ROBOT_RL_IMPORTS", "edited_task")
    file = tmp_path / "edited_task.py"
    file.write_text(TASK)
    words = ["train", "edited_task:TASK", "--recipe", "ppo", "--training.num-envs", 2, "--training.rollout", 4]
    words += ["--training.steps", 8, "--threads", 1, "--out", "r"]
    assert run(*words)[0] == 0 and run(*words, "--resume")[0] == 0
    file.write_text(TASK + "# and something else\n")
    refused(run(*words, "--resume"), "the code of edited_task:TASK", "not what this run began with")
    assert run("bundle", "r", "--out", "b")[0] == 0
