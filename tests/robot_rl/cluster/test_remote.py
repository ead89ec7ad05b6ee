"""`--ray`: seeds on a Ray cluster of two nodes of this computer, one of which is killed."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from robot_rl.bench.checks import EXPERT, Arm, Check
from robot_rl.bench.checks.check import flags
from robot_rl.bench.cluster import ClusterRunner
from robot_rl.bench.methods import Runner, run_check
from robot_rl.cli.main import main
from robot_rl.cli.seeds import _others
from robot_rl.training.run import read_metrics

pytestmark = pytest.mark.timeout(600)
CLONE = [
    "train", "testbed:fork", "--recipe", "flow-bc", "--policy.hidden", "64", "--training.updates", "600",
    "--training.checkpoint-every", "100", "--training.log-every", "20", "--seeds", "0..1", "--threads", "1",
]  # fmt: skip


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("demos") / "data"
    assert main(["collect", "testbed:fork", "--episodes", "6", "--skill", "STEADY", "--out", str(root)]) == 0
    return root


def start(*words: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "robot_rl.cli.main", *map(str, words)], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def wait_for(holds: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    """Wait until a condition holds or the process ends."""
    while not holds() and process.poll() is None:
        time.sleep(0.05)


def weights(run: Path) -> bytes:
    return (run / "bundle" / "policy.safetensors").read_bytes()


def test_seeds_survive_a_killed_node_and_equal_those_of_one_computer(ray: Any, demos: Path, tmp_path: Path) -> None:
    process = start(*CLONE, "--dataset", demos, "--out", tmp_path / "far", "--ray", ray.address)
    wait_for((tmp_path / "far" / "seed-0" / "checkpoint.safetensors").exists, process)
    ray.lose_node()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert main([*CLONE, "--dataset", str(demos), "--out", str(tmp_path / "near")]) == 0
    for seed in ("seed-0", "seed-1"):
        far, near = tmp_path / "far" / seed, tmp_path / "near" / seed
        assert weights(far) == weights(near)
        assert [row["bc/loss"] for row in read_metrics(far)] == [row["bc/loss"] for row in read_metrics(near)]
        assert str(demos) in (far / "config.json").read_text(), "paths are those of this computer"
        assert "/robot-rl-" not in (far / "config.json").read_text()


def test_checks_on_a_cluster_equal_those_of_one_computer(ray: Any, tmp_path: Path) -> None:
    few = flags("--policy.hidden 16 --training.updates 40 --training.checkpoint-every 20")
    check = Check(
        "A flow is cloned.", "testbed:fork", Arm("flow-bc", few), Arm(EXPERT, flags("--skill WEAK")),
        data=flags("--episodes 4"),
    )  # fmt: skip
    with closing(ClusterRunner(tmp_path / "far", ray.address)) as far, closing(Runner(tmp_path / "near")) as near:
        for runner in (far, near):
            assert run_check("fork", check, runner, range(1), 4, 1, lambda *_: None) == {}
    for arm in ("method", "control"):
        runs = [tmp_path / name / "fork" / arm / "seed-0" for name in ("far", "near")]
        results = [json.loads((run / "evaluation.json").read_text()) for run in runs]
        assert results[0]["per_episode"] == results[1]["per_episode"]
        assert arm == "control" or weights(runs[0]) == weights(runs[1])


def test_ctrl_c_brings_the_checkpoints_back(ray: Any, demos: Path, tmp_path: Path) -> None:
    words = [*CLONE, "--training.updates", "100000", "--dataset", demos, "--out", tmp_path / "runs"]
    process = start(*words, "--ray", ray.address)
    wait_for(lambda: any((tmp_path / "runs").glob("seed-*/metrics.jsonl")), process)  # one node: the other seed waits
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130 and "--seeds 0..1 --resume --out" in output, output
    assert len(list((tmp_path / "runs").glob("seed-*/checkpoint.safetensors"))) >= 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ray", "127.0.0.1:1"], "no Ray cluster answers at 127.0.0.1:1 (Connection refused); start one: ray start"),
        (["--ray", "nowhere"], "--ray nowhere: give HOST:6379"),
    ],
)
def test_no_cluster(words: list[str], said: str, demos: Path, tmp_path: Path, capfd: Any) -> None:
    assert main([*CLONE, "--dataset", str(demos), "--out", str(tmp_path / "runs"), *words]) == 2
    assert said in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["testbed:fork", "--recipe", "bc", "--seeds", "0..1"], ["--recipe", "bc"]),
        (["--recipe=bc", "testbed:fork", "--seeds=0..1", "--json"], ["--recipe=bc"]),
        (["--policy.hidden", "16", "16", "--out", "x", "--resume"], ["--policy.hidden", "16", "16"]),
        (["testbed:fork", "--training.no-keep-successes", "--dataset", "d"], ["--training.no-keep-successes"]),
    ],
)
def test_a_seed_gets_the_other_words_of_the_command(words: list[str], kept: list[str]) -> None:
    assert _others(words, "testbed:fork") == kept
