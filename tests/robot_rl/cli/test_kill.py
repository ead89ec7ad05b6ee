"""kill -9 at several points of progress, then --resume: finished work is intact, and the end is the same.

Progress is what appears on disk. The processes are real; those of `collect` and `train` are forked from one server
that has the imports done, so that twenty of them fit into a test.
"""

from __future__ import annotations

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

from policies.base import Size
from policies.bundle import Bundle, load_bundle, save_bundle
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.cli.main import main
from robot_rl.data import Dataset, DatasetWriter, verify
from robot_rl.data.recording import features
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.pipeline import Pipeline
from robot_rl.training.checkpoint import load_state
from robot_rl.training.run import read_metrics
from sim.tasks import tasks

PROGRAM = [sys.executable, "-m", "robot_rl.cli.main"]
WAIT = 250.0
"""s for what takes seconds; a learner has only the processor time that nobody else wants."""
pytestmark = pytest.mark.timeout(600)
LIFT = tasks.get("panda-lift").interface
PIPELINE = Pipeline(LIFT)
SIZE = PIPELINE.observer.spec.size
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


# ---- processes ---------------------------------------------------------------------------------------------------
Server = Any


@pytest.fixture(scope="module")
def server() -> Server:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["torch", "diffusers.optimization", "diffusers.training_utils", "sim.collect", "sim.engines.mujoco",
         "torch.utils.tensorboard", "robot_rl.recipes.resfit", "robot_rl.cli.collect", "robot_rl.cli.train", "tyro"]
    )  # fmt: skip
    return context


@pytest.fixture
def start(server: Server) -> Iterator[Callable[..., Any]]:
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


def kill_when(process: Any, holds: Callable[[], Any]) -> bool:
    """SIGKILL as soon as `holds()`; False if the process was done before."""
    end = time.monotonic() + WAIT
    while not holds():
        if not process.is_alive():
            return False
        assert time.monotonic() < end
        time.sleep(0.001)
    process.kill()
    process.join()
    assert process.exitcode in (-signal.SIGKILL, 0)
    return process.exitcode != 0


def damage(dataset: Path) -> list[str]:
    """Problems besides what the next writer mends: files of an episode that was never committed, and statistics
    that are derived from the episodes and written after them."""
    mended = (
        "a writer was killed; DatasetWriter.append moves it aside",
        "of other episodes; DatasetWriter.append writes it",
    )
    return [problem for problem in verify(dataset) if not any(text in problem for text in mended)]


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def write_dataset(root: Path) -> Path:
    rng = torch.Generator().manual_seed(0)
    with DatasetWriter.create(root, fps=20, features=features(EnvInfo.of(PIPELINE)), robot_type="panda") as writer:
        for _ in range(3):
            last = torch.zeros(30, 1, dtype=torch.bool)
            last[-1] = True
            action = PIPELINE.actions.to_physical(2 * torch.rand(30, 4, generator=rng) - 1)
            columns = {
                "observation.state": PIPELINE.observer.spec.to_physical(2 * torch.rand(30, SIZE, generator=rng) - 1),
                "action": action,
                "action.policy": action, "next.reward": last.float(), "next.success": last, "next.done": last,
                "intervention": torch.zeros(30, 1, dtype=torch.bool),
            }  # fmt: skip
            writer.add_episode(columns, LIFT.instruction)
    return root


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("kill") / "demos")


@pytest.fixture(scope="module")
def base(demos: Path) -> Path:
    torch.manual_seed(0)
    config = DiffusionConfig(hidden=16, layers=1, train_steps=10, sample_steps=2)
    policy = DiffusionPolicy(Size(SIZE, 4), config)
    made = Bundle(policy, LIFT, PIPELINE.robot.fingerprint(), {"dataset": str(demos)})
    save_bundle(made, demos.parent / "base")
    return demos.parent / "base"


# ---- collect -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [0, 16], ids=["no pictures", "pictures"])
def test_collect(start: Callable[..., Any], tmp_path: Path, size: int) -> None:
    out = tmp_path / "set"
    words = [*COLLECT, "--episodes", 4, "--image-size", size, "--out", out, "--resume"]
    info = out / "meta" / "info.json"

    def episodes() -> int:
        try:
            return int(json.loads(info.read_text())["total_episodes"])
        except (OSError, ValueError):
            return 0

    points: list[Callable[[], Any]] = [
        out.exists,
        info.exists,
        lambda: any((out / "data").glob("**/*.parquet")),
        lambda: episodes() >= 2,
    ]
    kept: list[Any] = []
    for point in points:
        if not kill_when(start(*words), point):
            continue
        if not info.exists():
            continue
        assert damage(out) == [], "what had finished is sound, without any repair"
        data = Dataset(out)
        now = [(e.length, data.columns(["action"])["action"][e.start : e.start + e.length]) for e in data.episodes]
        for (length, action), (was_length, was_action) in zip(now, kept, strict=False):
            assert length == was_length and torch.equal(action, was_action), "and what was there before is untouched"
        assert len(now) >= len(kept)
        kept = now
    assert len(kept) >= 2
    finish(start(*words))
    assert verify(out) == []
    data = Dataset(out)
    assert data.num_episodes == 4
    starts = torch.stack([data.columns(["observation.state"])["observation.state"][e.start] for e in data.episodes])
    assert len(torch.unique(starts, dim=0)) == 4, "no episode twice: seeds go on"


# ---- train -------------------------------------------------------------------------------------------------------
def check_same(one: Path, two: Path, curve: str) -> None:
    """Weights and critics to the bit, and the same curve."""
    for name in ("policy.safetensors", "critic.safetensors"):
        assert (one / "bundle" / name).exists() == (two / "bundle" / name).exists()
        if (one / "bundle" / name).exists():
            left, right = (load_file(run / "bundle" / name) for run in (one, two))
            assert left.keys() == right.keys()
            assert all(torch.equal(left[k], right[k]) for k in left), name
    curves = [[(r["step"], r[curve]) for r in read_metrics(run) if curve in r] for run in (one, two)]
    assert curves[0] == curves[1] and len(curves[0]) > 5


def kill_and_resume(start: Callable[..., Any], words: list[object], out: Path, points: list[Callable[[], Any]]) -> int:
    killed = 0
    for point in points:
        process = start(*words, "--out", out, "--resume")
        if not kill_when(process, point):
            break
        killed += 1
        checkpoint = out / "checkpoint.safetensors"
        if checkpoint.exists():
            assert load_state(checkpoint)["step"] > 0, "the last checkpoint is whole"
        if (out / "bundle").exists():
            load_bundle(out / "bundle")
    finish(start(*words, "--out", out, "--resume"))
    return killed


def step_of(out: Path) -> int:
    try:
        return int(load_state(out / "checkpoint.safetensors")["step"])
    except Exception:
        return 0


def test_clone(start: Callable[..., Any], demos: Path, tmp_path: Path) -> None:
    words: list[object] = [*CLONE, "--dataset", demos]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(start(*words, "--out", whole))
    metrics = broken / "metrics.jsonl"
    points: list[Callable[[], Any]] = [
        broken.exists,  # nothing but a folder
        lambda: lines(metrics) >= 3,  # before the first checkpoint
        lambda: list(broken.glob(".checkpoint*.part")) or step_of(broken) >= 50,  # while it is written
        lambda: step_of(broken) >= 150,
        lambda: lines(metrics) >= 27,
        lambda: list(broken.glob(".bundle*.part")) or (broken / "bundle").exists(),  # while the bundle is written
    ]
    assert kill_and_resume(start, words, broken, points) >= 4
    check_same(whole, broken, "bc/loss")


def test_improve(start: Callable[..., Any], demos: Path, base: Path, tmp_path: Path) -> None:
    words: list[object] = [*IMPROVE, "--dataset", demos, "--base", base]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(start(*words, "--out", whole))
    metrics = broken / "metrics.jsonl"
    points: list[Callable[[], Any]] = [
        lambda: lines(metrics) >= 1,
        lambda: step_of(broken) >= 128,
        lambda: lines(metrics) >= 11 and step_of(broken) >= 256,
        lambda: list(broken.glob(".checkpoint*.part")) and step_of(broken) >= 384,
    ]
    assert kill_and_resume(start, words, broken, points) >= 3
    check_same(whole, broken, "critic/loss")


def end_and_resume(start: Callable[..., Any], words: list[object], out: Path, number: signal.Signals) -> None:
    """Let `number` end a run after its first rows of metrics, then resume it."""
    process = subprocess.Popen([*PROGRAM, *map(str, words), "--out", str(out)], stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + WAIT
    while lines(out / "metrics.jsonl") < 2:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.001)
    process.send_signal(number)
    _, said = process.communicate(timeout=WAIT)
    assert process.returncode == 128 + number, said
    (line,) = [line for line in said.splitlines() if line.startswith("robot-rl: ")]
    assert f"stopped by {number.name} at step {step_of(out)}, which is saved" in line and "--resume" in line
    assert "Traceback" not in said and step_of(out) > 0 and not (out / "bundle").exists()
    finish(start(*words, "--out", out, "--resume"))


def test_ctrl_c_of_clone(start: Callable[..., Any], demos: Path, tmp_path: Path) -> None:
    words: list[object] = [*CLONE, "--dataset", demos]
    finish(start(*words, "--out", tmp_path / "whole"))
    end_and_resume(start, words, tmp_path / "broken", signal.SIGINT)
    check_same(tmp_path / "whole", tmp_path / "broken", "bc/loss")


def test_sigterm_of_improve(start: Callable[..., Any], demos: Path, base: Path, tmp_path: Path) -> None:
    words: list[object] = [*IMPROVE, "--dataset", demos, "--base", base]
    finish(start(*words, "--out", tmp_path / "whole"))
    end_and_resume(start, words, tmp_path / "broken", signal.SIGTERM)
    check_same(tmp_path / "whole", tmp_path / "broken", "critic/loss")


def test_resume_clears_what_a_kill_left_behind(start: Callable[..., Any], demos: Path, tmp_path: Path) -> None:
    """A checkpoint with its replay is large: one half-written file for each kill must not pile up."""
    words: list[object] = [*CLONE, "--dataset", demos, "--training.updates", 20, "--out", tmp_path / "r"]
    finish(start(*words))
    left = [tmp_path / "r" / ".checkpoint.safetensors.12345.part", tmp_path / "r" / ".bundle.12345.part"]
    left[0].write_bytes(b"half a checkpoint")
    left[1].mkdir()
    finish(start(*words, "--resume"))
    assert not [path for path in left if path.exists()]


def test_resuming_what_is_done_changes_nothing(start: Callable[..., Any], demos: Path, tmp_path: Path) -> None:
    words: list[object] = [*CLONE, "--dataset", demos, "--training.updates", 20, "--out", tmp_path / "r"]
    finish(start(*words))
    before = load_file(tmp_path / "r" / "bundle" / "policy.safetensors")
    finish(start(*words, "--resume"))
    after = load_file(tmp_path / "r" / "bundle" / "policy.safetensors")
    assert all(torch.equal(before[k], after[k]) for k in before)


# ---- finetune ----------------------------------------------------------------------------------------------------
@pytest.fixture
def graph() -> Iterator[dict[str, str]]:
    """A loopback domain of this test alone, and a twin in it."""
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
    twin = subprocess.Popen(
        [*PROGRAM, "twin", "panda", "--no-camera"], env=environment, stderr=subprocess.PIPE, text=True
    )
    assert twin.stderr is not None
    try:
        assert "twin of panda is up" in twin.stderr.readline()
        yield environment | {"TWIN": str(twin.pid)}
    finally:
        twin.kill()
        twin.communicate()


@pytest.fixture
def short(base: Path, tmp_path: Path) -> Path:
    """The base with episodes of half a second."""
    made = load_bundle(base)
    short = Bundle(made.policy, LIFT.from_json(LIFT.to_json() | {"horizon": 10}), made.robot, made.provenance)
    save_bundle(short, tmp_path / "short")
    return tmp_path / "short"


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
def test_finetune_keeps_what_was_learned_when_its_robot_dies_or_hangs(
    graph: dict[str, str],
    demos: Path,
    short: Path,
    tmp_path: Path,
    learners: Callable[[Path], list[int]],
    number: signal.Signals,
) -> None:
    out = tmp_path / "session"
    words = [*PROGRAM, "finetune", short, "--dataset", demos, "--out", out, "--json", "--no-camera", "--minutes", 5]
    process = subprocess.Popen(
        [str(w) for w in [*words, "--agent.hidden", "16", "16"]],
        env=graph, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    end = time.monotonic() + WAIT
    while not (lines(out / "episodes.jsonl") >= 2 and (out / "weights.safetensors").exists()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)
    os.kill(int(graph["TWIN"]), number)
    printed, said = process.communicate(timeout=WAIT)
    assert process.returncode == 1 and "Traceback" not in said, said
    (line,) = [line for line in said.splitlines() if line.startswith("robot-rl: ")]
    assert "no joint state for 0.5 s" in line and "--resume" in line
    assert "no joint state" in json.loads(printed)["ended"]
    load_bundle(out / "bundle")
    data = Dataset(out / "dataset")
    assert data.num_episodes == lines(out / "episodes.jsonl") and verify(data.root) == [] and not learners(out)
    events = [json.loads(row) for row in (out / "events.jsonl").read_text().splitlines()]
    assert {"event": "hold", "what": "stale state"}.items() <= events[-1].items() or "hold" in {
        event["event"] for event in events
    }


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
def test_finetune(
    graph: dict[str, str], demos: Path, short: Path, tmp_path: Path, learners: Callable[[Path], list[int]]
) -> None:
    """A session is killed, interrupted, told to end, comes to its end, and goes on each time: no episode is lost."""
    out = tmp_path / "session"
    words = [*PROGRAM, "finetune", short, "--dataset", demos, "--out", out, "--resume", "--json", "--no-camera"]
    words += ["--agent.hidden", "16", "16"]
    rows = out / "episodes.jsonl"

    def work(done: int) -> subprocess.Popen[str]:
        """A session with some episodes beyond those, and a learner that has published."""
        process = subprocess.Popen(
            [str(w) for w in [*words, "--minutes", 5]],
            env=graph, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        end = time.monotonic() + WAIT
        while not (lines(rows) >= done + 2 and (out / "weights.safetensors").exists()):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.005)
        return process

    try:
        killed = work(0)
        killed.kill()
        killed.wait()
        data = Dataset(out / "dataset")
        before = data.num_episodes
        assert before >= 1 and damage(data.root) == [], "each finished episode but at most the one in hand"
        load_state(out / "weights.safetensors")
        end = time.monotonic() + WAIT
        while learners(out):  # it notices that its robot is gone, and lets the folder go
            assert time.monotonic() < end, "the learner outlives its robot"
            time.sleep(0.02)
        killed.communicate()

        for number in (signal.SIGINT, signal.SIGTERM):
            process = work(before)
            process.send_signal(number)
            printed, said = process.communicate(timeout=WAIT)
            assert process.returncode == 128 + number, said
            summary = json.loads(printed)
            (line,) = [line for line in said.splitlines() if line.startswith("robot-rl: ")]
            assert f"ended by {number.name} after {summary['episodes']} episodes" in line and "--resume" in line
            assert "Traceback" not in said and not learners(out)
            data = Dataset(out / "dataset")
            assert data.num_episodes == before + summary["episodes"] == lines(rows) and verify(data.root) == []
            assert json.loads((out / "loop.json").read_text())["ticks"] > 0
            published = load_state(out / "weights.safetensors")["actor"]
            learned = load_bundle(out / "bundle").policy.actor.state_dict()
            assert all(torch.equal(learned[k], published[k]) for k in published), "the newest weights"
            critic = load_state(out / "learner" / "checkpoint.safetensors")["state"]["agent"]["critic"]
            assert {v.shape[-1] for k, v in critic.items() if "weight" in k} == {16, 1}, "the flag arrived"
            (out / "bundle" / "policy.json").unlink()
            (out / "loop.json").unlink()
            before = data.num_episodes

        ended = subprocess.run(
            [str(w) for w in [*words, "--minutes", 0.04]], env=graph, capture_output=True, text=True, timeout=WAIT
        )
        assert ended.returncode == 0, ended.stderr
        summary = json.loads(ended.stdout)
        data = Dataset(out / "dataset")
        assert data.num_episodes == before + summary["episodes"] > before and verify(data.root) == []
        load_bundle(out / "bundle")
        assert not learners(out)
    finally:
        for pid in learners(out):
            os.kill(pid, signal.SIGKILL)
