"""`train --seeds`, `evaluate` of several runs, and `compare`, on a testbed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_rl.cli.main import main
from robot_rl.training.run import has_ended, seed_runs
from robot_rl.util.errors import ConfigError
from robot_rl.util.seeds import seed_list
from robot_rl.util.statistics import wilson

Call = Callable[..., tuple[int, str, str]]
CLONE = ["train", "testbed:fork", "--recipe", "bc", "--policy.hidden", "16", "--training.updates", "40"]
CLONE += ["--training.log-every", "10", "--training.checkpoint-every", "10", "--dataset"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset, and evaluated runs of two seeds each in a/ and b/."""
    root = tmp_path_factory.mktemp("seeds")
    commands = [
        ["collect", "testbed:fork", "--episodes", "6", "--skill", "STEADY", "--out", root / "data"],
        [*CLONE, root / "data", "--seeds", "0..1", "--out", root / "a"],
        [*CLONE, root / "data", "--seeds", "0,1", "--out", root / "b", "--training.batch", "32"],
        ["evaluate", root / "a", root / "b", "--episodes", "12", "--num-envs", "5"],
    ]
    for words in commands:
        assert main([str(word) for word in words]) == 0
    torch.set_num_threads(1)
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A copy of the folder that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "copy"))


@pytest.fixture
def clone(made: Path) -> list[object]:
    """The command that trained the runs, with their dataset."""
    return [*CLONE, made / "data"]


def weights(run: Path) -> bytes:
    return (run / "bundle" / "policy.safetensors").read_bytes()


def evaluation(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "evaluation.json").read_text())
    return found


def edit(run: Path, **values: Any) -> None:
    (run / "evaluation.json").write_text(json.dumps(evaluation(run) | values))


# ---- seeds --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("text", "seeds"), [("0..1", [0, 1]), ("0,2,5", [0, 2, 5]), ("7", [7]), ("3..3, 1", [3, 1])])
def test_seeds_are_parsed_from_a_range_or_a_list(text: str, seeds: list[int]) -> None:
    assert seed_list(text) == seeds


@pytest.mark.parametrize("text", ["4..0", "a", "1,", "1,1", "0..2,1", "-1", "0..5000", ".."])
def test_invalid_seeds_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--seeds"):
        seed_list(text)


# ---- train --seeds ------------------------------------------------------------------------------------------------
def test_each_seed_equals_a_single_run_with_this_seed(run: Call, root: Path, clone: list[object]) -> None:
    assert [folder.name for folder in seed_runs(root / "a")] == ["seed-0", "seed-1"]
    assert not seed_runs(root / "a" / "seed-0")
    assert run(*clone, "--seed", 1, "--out", "alone")[0] == 0
    assert weights(Path("alone")) == weights(root / "a" / "seed-1") != weights(root / "a" / "seed-0")


def test_unsuitable_folders_and_settings_of_seeds_are_refused(run: Call, root: Path, clone: list[object]) -> None:
    for words, said in (
        (["--seeds", "4", "--out", root / "a" / "seed-0"], "is a run itself"),
        (["--seeds", "0..1", "--seed", 3], "leave out --seed"),
        (["--seeds", "0..1", "--out", root / "a", "--resume", "--training.batch", "7"],
         "seed-0 was started with different settings (config): config was training batch 256"),
    ):  # fmt: skip
        code, _, err = run(*clone, *words)
        assert code == 2 and said in err, err
    assert not (root / "a" / "seed-0" / "seed-4").exists() and not Path("runs").exists()


def test_resume_skips_finished_seeds_and_continues_others(run: Call, root: Path, clone: list[object]) -> None:
    words = [*clone, "--seeds", "0..2", "--out", root / "a"]
    code, out, err = run(*words)
    assert code == 2 and "seed-0 holds a run already; continue with --resume" in err
    assert not (root / "a/seed-2").exists()
    whole, before = weights(root / "a" / "seed-1"), (root / "a/seed-0/bundle/policy.json").stat().st_mtime_ns
    shutil.rmtree(root / "a" / "seed-1" / "bundle")
    assert not has_ended(root / "a" / "seed-1")
    code, out, err = run(*words, "--resume", "--json")
    assert code == 0, err
    assert "seed 1, 2 of 3" in err and "seed 0, " not in err
    assert weights(root / "a" / "seed-1") == whole and has_ended(root / "a" / "seed-2")
    assert (root / "a/seed-0/bundle/policy.json").stat().st_mtime_ns == before
    found = json.loads(out)
    assert [row["seed"] for row in found["runs"]] == [0, 1, 2] and found["out"] == str(root / "a")
    assert found["mean"]["loss"] == pytest.approx(sum(row["loss"] for row in found["runs"]) / 3)


def test_resume_without_out_continues_the_latest_folder_of_seeds(run: Call, root: Path, clone: list[object]) -> None:
    words = [*clone, "--seeds", "0..1"]
    assert run(*words)[0] == 0
    (folder,) = Path("runs").iterdir()
    shutil.rmtree(folder / "seed-1")
    assert run(*words, "--resume")[0] == 0 and has_ended(folder / "seed-1") and len(list(Path("runs").iterdir())) == 1


def test_bundle_from_a_checkpoint_does_not_end_the_run(run: Call, root: Path) -> None:
    folder = root / "a" / "seed-0"
    assert run("bundle", folder)[0] == 0 and not has_ended(folder)


def test_diverged_seed_is_reported_and_the_next_continues(run: Call, root: Path, clone: list[object]) -> None:
    words = [*clone, "--seeds", "0..1", "--out", "wild", "--agent.lr", "1e30", "--json"]
    code, out, _ = run(*words)
    assert code == 1 and [row["seed"] for row in json.loads(out)["runs"]] == [0, 1]
    assert all("NaN" in row["error"] or "infinite" in row["error"] for row in json.loads(out)["runs"])


# ---- evaluate -----------------------------------------------------------------------------------------------------
def test_every_run_stores_the_outcome_of_each_episode(run: Call, root: Path) -> None:
    for folder in (*seed_runs(root / "a"), *seed_runs(root / "b")):
        found = evaluation(folder)
        assert found["task"] == "testbed:fork" and len(found["per_episode"]["success"]) == 12
        assert sum(found["per_episode"]["success"]) == round(12 * found["success"])
        assert sum(found["per_episode"]["return"]) == pytest.approx(12 * found["return"]["mean"], rel=1e-4)
        assert (folder / "evaluation.json").read_text().count("\n") < 40
    first = evaluation(root / "a" / "seed-0")["per_episode"]
    code, out, _ = run("evaluate", root / "a" / "seed-0", "--episodes", 12, "--json", "--out", "e.json")
    assert code == 0 and "per_episode" not in json.loads(out)
    assert json.loads(Path("e.json").read_text())["per_episode"] == first, "for any --num-envs"


def test_several_policies_share_a_table_but_no_file(run: Call, root: Path) -> None:
    code, out, _ = run("evaluate", root / "a", "random:testbed:fork", "--episodes", 3, "--num-envs", 3, "--json")
    found = json.loads(out)
    assert code == 0 and len(found["runs"]) == 3 and found["mean"]["episodes"] == 3
    code, _, err = run("evaluate", root / "a", "--out", "e.json")
    assert code == 2 and "--out is for one policy, and these are 2" in err


# ---- compare ------------------------------------------------------------------------------------------------------
def test_arms_are_compared_with_the_first_arm(run: Call, root: Path) -> None:
    for k, (arm, won) in enumerate((arm, won) for arm, won in (("a", 3), ("b", 9)) for _ in range(2)):
        edit(root / arm / f"seed-{k % 2}", per_episode={"success": [int(i < won) for i in range(12)]})
    code, out, err = run("compare", root / "a", root / "b", "--json")
    assert code == 0, err
    found = json.loads(out)
    first, second = found["arms"]
    assert found["figure"] == "success" and found["notes"] == [] and first["mean"] == 0.25 and second["mean"] == 0.75
    assert first["seeds"] == ["0", "1"] and first["episodes"] == 24 and first["low"] <= wilson(6, 24)[0]
    gap = second["difference"]
    assert gap["mean"] == 0.5 and gap["paired"] and gap["decided"] and gap["says"] == "higher"
    assert "difference" not in first
    code, out, _ = run("compare", root / "b", root / "a", "--out", "compare.html")
    assert code == 0 and "lower, paired" in out and "75" in out
    page = Path("compare.html").read_text()
    assert "Behaviour cloning loss" in page and '"minutes"' in page and page.count('"fill": "toself"') >= 2
    code, out, _ = run("compare", root / "a" / "seed-0", root / "b" / "seed-1", "--json")
    found = json.loads(out)
    assert found["arms"][1]["difference"]["paired"], "single runs share their episodes"
    assert "say nothing about other seeds" in found["notes"][0]
    assert (found["arms"][0]["low"], found["arms"][0]["high"]) == pytest.approx(wilson(3, 12))


def test_figure_option_selects_the_compared_figure(run: Call, root: Path) -> None:
    code, out, _ = run("compare", root / "a", root / "b", "--figure", "return", "--json")
    assert code == 0 and json.loads(out)["figure"] == "return"
    code, _, err = run("compare", root / "a", root / "b", "--figure", "power")
    assert code == 2 and "has no figure 'power'; it measured success, return" in err


@pytest.mark.parametrize(("change", "said"), [
    ({"seed": 5}, "evaluated on other episodes, by another --seed"),
    ({"episodes": 11, "per_episode": {"success": [1] * 11}}, "on different numbers of episodes"),
])  # fmt: skip
def test_arms_with_other_episodes_are_not_paired(run: Call, root: Path, change: dict[str, Any], said: str) -> None:
    edit(root / "b" / "seed-1", **change)
    code, out, _ = run("compare", root / "a", root / "b", "--json")
    found = json.loads(out)
    assert code == 0 and said in found["notes"][0] and not found["arms"][1]["difference"]["paired"]


def test_arms_with_other_seeds_are_not_paired(run: Call, root: Path) -> None:
    (root / "b" / "seed-1").rename(root / "b" / "seed-2")
    settings = root / "b" / "seed-2" / "config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"seed": 2}))
    _, out, _ = run("compare", root / "a", root / "b", "--json")
    assert "their seeds differ: 0, 1 and 0, 2" in json.loads(out)["notes"][0]


def test_unsuitable_runs_are_refused(run: Call, root: Path) -> None:
    edit(root / "b" / "seed-0", per_episode=None)
    (root / "b" / "seed-1" / "evaluation.json").unlink()
    code, _, err = run("compare", root / "a", root / "b")
    assert code == 2 and f"`robot-rl evaluate {root / 'b' / 'seed-0'} {root / 'b' / 'seed-1'}`" in err
    for folder in seed_runs(root / "a"):
        settings = folder / "config.json"
        settings.write_text(json.dumps(json.loads(settings.read_text()) | {"task": "testbed:push"}))
    code, _, err = run("compare", root / "a", root / "b" / "seed-0")
    assert code == 2 and "has no evaluation.json" in err
    shutil.copy(root / "a" / "seed-0" / "evaluation.json", root / "b" / "seed-0")
    code, _, err = run("compare", root / "a", root / "b" / "seed-0")
    assert code == 2 and "runs of different tasks" in err
