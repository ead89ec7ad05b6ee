"""Signals during collect, train and finetune: finished work is intact, and --resume reaches the same end.

Files on disk time the kills. The processes of `collect` and `train` are forked from a server with preloaded imports,
which makes twenty processes per test affordable.
"""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from policies.bundle import Bundle, load_bundle, save_bundle
from robot_rl.cli.main import main
from robot_rl.data import Dataset, verify
from robot_rl.training.checkpoint import load_state
from robot_rl.training.run import read_metrics
from sim.tasks import tasks

PROGRAM = [sys.executable, "-m", "robot_rl.cli.main"]
WAIT = 250.0
"""Timeout, s; learners have low priority and are slow on a loaded machine."""
pytestmark = pytest.mark.timeout(600)
LIFT = tasks.get("panda-lift").interface
COLLECT = ["collect", "panda-lift", "--num-envs", "2", "--skill", "STEADY", "--keep-failures"]
CLONE = [
    "train", "panda-lift", "--recipe", "diffusion-bc", "--training.updates", "400", "--training.batch", "16",
    "--training.checkpoint-every", "50", "--training.log-every", "10", "--policy.hidden", "32", "--policy.layers", "1",
]  # fmt: skip
IMPROVE = [
    "train", "panda-lift", "--recipe", "resfit", "--training.steps", "640", "--training.num-envs", "4",
    "--training.batch", "16", "--training.checkpoint-every", "128", "--training.log-every", "32",
    "--training.warmup", "128", "--training.learning-starts", "64", "--training.capacity", "600",
    "--agent.hidden", "16", "16",
]  # fmt: skip
Start = Callable[..., Any]


# ---- processes ---------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def server() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["torch", "torch._dynamo", "sim.collect", "sim.engines.mujoco",
         "torch.utils.tensorboard", "robot_rl.recipes.resfit", "robot_rl.cli.collect", "robot_rl.cli.train", "tyro"]
    )  # fmt: skip
    return context


@pytest.fixture
def start(server: Any) -> Iterator[Start]:
    started = []

    def build(*argv: object) -> Any:
        process = server.Process(target=main, args=([str(a) for a in argv],))
        process.start()
        started.append(process)
        return process

    yield build
    for process in started:
        process.kill()
        process.join()


def finish(process: Any) -> None:
    process.join(WAIT)
    assert process.exitcode == 0


def wait_until(holds: Callable[[], Any], alive: Callable[[], bool]) -> bool:
    """Return True once `holds()`, False if the process ends before."""
    end = time.monotonic() + WAIT
    while not holds():
        if not alive():
            return False
        assert time.monotonic() < end
        time.sleep(0.001)
    return True


def kill_when(process: Any, holds: Callable[[], Any]) -> bool:
    """Send SIGKILL as soon as `holds()`; return False if the process ended before."""
    if not wait_until(holds, process.is_alive):
        return False
    process.kill()
    process.join()
    assert process.exitcode in (-signal.SIGKILL, 0)
    return process.exitcode != 0


def damage(dataset: Path) -> list[str]:
    """Return the problems of a dataset that the next writer does not repair (uncommitted files, statistics)."""
    repaired = ("DatasetWriter.append moves it aside", "of other episodes; DatasetWriter.append writes it")
    return [problem for problem in verify(dataset) if not any(text in problem for text in repaired)]


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.fixture(scope="module")
def demos(write_demos: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demos(tmp_path_factory.mktemp("kill") / "demos", 3, 30)


@pytest.fixture(scope="module")
def base(save_policy: Callable[..., Path], demos: Path) -> Path:
    return save_policy(demos.parent / "base", demos)


# ---- collect -----------------------------------------------------------------------------------------------------
def test_killed_collect_keeps_finished_episodes(start: Start, tmp_path: Path) -> None:
    out = tmp_path / "set"
    words = [*COLLECT, "--episodes", 4, "--image-size", 16, "--out", out, "--resume"]
    info = out / "meta" / "info.json"

    def episodes() -> int:
        try:
            return int(json.loads(info.read_text())["total_episodes"])
        except (OSError, ValueError):
            return 0

    kept: list[Any] = []
    data_file = lambda: any((out / "data").glob("**/*.parquet"))  # noqa: E731
    for point in (out.exists, info.exists, data_file, lambda: episodes() >= 2):
        if not kill_when(start(*words), point) or not info.exists():
            continue
        assert damage(out) == []
        data = Dataset(out)
        now = [(e.length, data.columns(["action"])["action"][e.start : e.start + e.length]) for e in data.episodes]
        for (length, action), (old_length, old_action) in zip(now, kept, strict=False):
            assert length == old_length and torch.equal(action, old_action), "earlier episodes are unchanged"
        assert len(now) >= len(kept)
        kept = now
    assert len(kept) >= 2
    finish(start(*words))
    assert verify(out) == []
    data = Dataset(out)
    assert data.num_episodes == 4
    starts = torch.stack([data.columns(["observation.state"])["observation.state"][e.start] for e in data.episodes])
    assert len(torch.unique(starts, dim=0)) == 4, "seeds continue: no episode occurs twice"


# ---- train -------------------------------------------------------------------------------------------------------
def check_same(one: Path, two: Path, curve: str) -> None:
    """Check that weights and critics are bit-identical and the curves equal."""
    for name in ("policy.safetensors", "critic.safetensors"):
        assert (one / "bundle" / name).exists() == (two / "bundle" / name).exists()
        if (one / "bundle" / name).exists():
            left, right = (load_file(run / "bundle" / name) for run in (one, two))
            assert left.keys() == right.keys()
            assert all(torch.equal(left[k], right[k]) for k in left), name
    curves = [[(r["step"], r[curve]) for r in read_metrics(run) if curve in r] for run in (one, two)]
    assert curves[0] == curves[1] and len(curves[0]) > 5


def kill_and_resume(start: Start, words: list[object], out: Path, points: list[Callable[[], Any]]) -> int:
    """Resume a run and kill it at each point; return the number of kills before the run ended."""
    killed = 0
    for point in points:
        if not kill_when(start(*words, "--out", out, "--resume"), point):
            break
        killed += 1
        checkpoint = out / "checkpoint.safetensors"
        if checkpoint.exists():
            assert load_state(checkpoint)["step"] > 0
        if (out / "bundle").exists():
            load_bundle(out / "bundle")
    return killed


def step_of(out: Path) -> int:
    try:
        return int(load_state(out / "checkpoint.safetensors")["step"])
    except Exception:
        return 0


def interrupt(words: list[object], out: Path, number: signal.Signals) -> None:
    """Resume a run and send a signal after its first checkpoint; the run must save another checkpoint and end."""
    command = [*PROGRAM, *map(str, words), "--out", str(out), "--resume"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    before = step_of(out)
    assert wait_until(lambda: step_of(out) > before, lambda: process.poll() is None)
    process.send_signal(number)
    _, err = process.communicate(timeout=WAIT)
    assert process.returncode == 128 + number, err
    (line,) = [line for line in err.splitlines() if line.startswith("robot-rl: ")]
    assert f"stopped by {number.name} at step {step_of(out)}, which is saved" in line and "--resume" in line
    assert "Traceback" not in err and not (out / "bundle").exists()


def test_interrupted_cloning_resumes_bit_identically(start: Start, demos: Path, tmp_path: Path) -> None:
    words: list[object] = [*CLONE, "--dataset", demos]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(start(*words, "--out", whole))
    metrics = broken / "metrics.jsonl"
    # an empty folder; before the first checkpoint; after a signal; between checkpoints; while the bundle is written
    killed = kill_and_resume(start, words, broken, [broken.exists, lambda: lines(metrics) >= 3])
    interrupt(words, broken, signal.SIGINT)
    killed += kill_and_resume(start, words, broken, [
        lambda: list(broken.glob(".checkpoint*.part")) or step_of(broken) >= 150,
        lambda: lines(metrics) >= 27,
        lambda: list(broken.glob(".bundle*.part")) or (broken / "bundle").exists(),
    ])  # fmt: skip
    assert killed >= 3
    finish(start(*words, "--out", broken, "--resume"))
    check_same(whole, broken, "bc/loss")


def test_interrupted_off_policy_run_resumes_identically(start: Start, demos: Path, base: Path, tmp_path: Path) -> None:
    words: list[object] = [*IMPROVE, "--dataset", demos, "--base", base]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(start(*words, "--out", whole))
    metrics = broken / "metrics.jsonl"
    killed = kill_and_resume(start, words, broken, [lambda: lines(metrics) >= 1])
    interrupt(words, broken, signal.SIGTERM)
    killed += kill_and_resume(start, words, broken, [
        lambda: lines(metrics) >= 11 and step_of(broken) >= 256,
        lambda: list(broken.glob(".checkpoint*.part")) and step_of(broken) >= 384,
    ])  # fmt: skip
    assert killed >= 2
    finish(start(*words, "--out", broken, "--resume"))
    check_same(whole, broken, "critic/loss")


def test_resuming_a_finished_run_only_removes_leftovers(start: Start, demos: Path, tmp_path: Path) -> None:
    """A checkpoint with its replay buffer is large: partial files of killed runs must not accumulate."""
    words: list[object] = [*CLONE, "--dataset", demos, "--training.updates", 20, "--out", tmp_path / "r"]
    finish(start(*words))
    before = load_file(tmp_path / "r" / "bundle" / "policy.safetensors")
    left = [tmp_path / "r" / ".checkpoint.safetensors.12345.part", tmp_path / "r" / ".bundle.12345.part"]
    left[0].write_bytes(b"half a checkpoint")
    left[1].mkdir()
    finish(start(*words, "--resume"))
    assert not [path for path in left if path.exists()]
    after = load_file(tmp_path / "r" / "bundle" / "policy.safetensors")
    assert all(torch.equal(before[k], after[k]) for k in before)


# ---- finetune ----------------------------------------------------------------------------------------------------
@pytest.fixture
def graph() -> Iterator[dict[str, str]]:
    """Environment variables of a private loopback domain, in which a twin runs."""
    uri = (
        "<CycloneDDS><Domain><General><Interfaces><NetworkInterface name='lo' multicast='false'/></Interfaces>"
        "<AllowMulticast>false</AllowMulticast></General>"
        f"<Discovery><Tag>kill-{os.getpid()}</Tag><ParticipantIndex>auto</ParticipantIndex>"
        "<MaxAutoParticipantIndex>32</MaxAutoParticipantIndex><Peers><Peer address='127.0.0.1'/></Peers>"
        "<LeaseDuration>1s</LeaseDuration></Discovery></Domain></CycloneDDS>"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ROS_")} | {
        "ROS_DOMAIN_ID": str(random.SystemRandom().randint(100, 199)),
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
        "CYCLONEDDS_URI": uri,
    }
    command = [*PROGRAM, "twin", "panda", "--no-camera"]
    twin = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert twin.stderr is not None
    try:
        assert "twin of panda is up" in twin.stderr.readline()
        yield environment | {"TWIN": str(twin.pid)}
    finally:
        twin.kill()
        twin.communicate()


@pytest.fixture
def session(graph: Any, base: Path, demos: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start or resume a session with episodes of half a second in tmp_path/session."""
    made, short = load_bundle(base), tmp_path / "short"
    interface = LIFT.from_json(LIFT.to_json() | {"horizon": 10})
    save_bundle(Bundle(made.policy, interface, made.robot, made.provenance), short)
    words = [*PROGRAM, "finetune", short, "--dataset", demos, "--out", tmp_path / "session", "--json", "--no-camera"]
    words += ["--resume", "--agent.hidden", "16", "16", "--minutes"]

    def start(minutes: float = 5) -> subprocess.Popen[str]:
        argv = [str(word) for word in [*words, minutes]]
        process = subprocess.Popen(argv, env=graph, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    started: list[subprocess.Popen[str]] = []
    yield start
    for process in started:
        process.kill()
        process.wait()


def wait_for_episodes(process: subprocess.Popen[str], out: Path, count: int) -> None:
    """Wait until a session has `count` episodes and its learner has published weights."""
    ready = lambda: lines(out / "episodes.jsonl") >= count and (out / "weights.safetensors").exists()  # noqa: E731
    assert wait_until(ready, lambda: process.poll() is None), process.communicate()


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
def test_finetune_keeps_its_results_when_the_robot_dies_or_hangs(
    graph: dict[str, str], session: Callable[..., subprocess.Popen[str]], tmp_path: Path,
    learners: Callable[[Path], list[int]], number: signal.Signals,
) -> None:  # fmt: skip
    out = tmp_path / "session"
    process = session()
    wait_for_episodes(process, out, 2)
    os.kill(int(graph["TWIN"]), number)
    printed, err = process.communicate(timeout=WAIT)
    assert process.returncode == 1 and "Traceback" not in err, err
    (line,) = [line for line in err.splitlines() if line.startswith("robot-rl: ")]
    assert "no joint state for 0.5 s" in line and "--resume" in line
    assert "no joint state" in json.loads(printed)["ended"]
    load_bundle(out / "bundle")
    data = Dataset(out / "dataset")
    assert data.num_episodes == lines(out / "episodes.jsonl") and verify(data.root) == [] and not learners(out)
    assert "hold" in {json.loads(row)["event"] for row in (out / "events.jsonl").read_text().splitlines()}


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
def test_finetune_resumes_after_kill_and_signal_with_all_episodes(session: Any, tmp_path: Path, learners: Any) -> None:
    out = tmp_path / "session"
    rows = out / "episodes.jsonl"
    try:
        killed = session()
        wait_for_episodes(killed, out, 2)
        killed.kill()
        killed.wait()
        data = Dataset(out / "dataset")
        before = data.num_episodes
        assert before >= 1 and damage(data.root) == [], "at most the running episode is lost"
        load_state(out / "weights.safetensors")
        assert wait_until(lambda: not learners(out), lambda: True), "the learner ends when its parent is gone"
        killed.communicate()

        process = session()
        wait_for_episodes(process, out, before + 2)
        process.send_signal(signal.SIGTERM)
        printed, err = process.communicate(timeout=WAIT)
        assert process.returncode == 128 + signal.SIGTERM, err
        summary = json.loads(printed)
        (line,) = [line for line in err.splitlines() if line.startswith("robot-rl: ")]
        assert f"ended by SIGTERM after {summary['episodes']} episodes" in line and "--resume" in line
        assert "Traceback" not in err and not learners(out)
        data = Dataset(out / "dataset")
        assert data.num_episodes == before + summary["episodes"] == lines(rows) and verify(data.root) == []
        assert json.loads((out / "loop.json").read_text())["ticks"] > 0
        published = load_state(out / "weights.safetensors")["actor"]
        learned = load_bundle(out / "bundle").policy.actor.state_dict()
        assert all(torch.equal(learned[k], published[k]) for k in published), "the bundle has the newest weights"
        critic = load_state(out / "learner" / "checkpoint.safetensors")["state"]["agent"]["critic"]
        assert {v.shape[-1] for k, v in critic.items() if "weight" in k} == {16, 1}, "--agent.hidden took effect"
        (out / "bundle" / "policy.json").unlink()
        before = data.num_episodes

        process = session(0.04)
        printed, err = process.communicate(timeout=WAIT)
        assert process.returncode == 0, err
        data = Dataset(out / "dataset")
        assert data.num_episodes == before + json.loads(printed)["episodes"] > before and verify(data.root) == []
        load_bundle(out / "bundle")
        assert not learners(out)
    finally:
        for pid in learners(out):
            os.kill(pid, signal.SIGKILL)
