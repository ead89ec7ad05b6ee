"""LeRobot's policies as recipes: the split of the state, the process and its end, and a training by LeRobot itself."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from policies.base import Size
from policies.bundle import load_bundle, save_bundle
from robot_rl.bench.peers import lerobot_process, peers
from robot_rl.bench.peers.lerobot import (
    PYTHON,
    LeRobotACT,
    LeRobotConfig,
    LeRobotDiffusion,
    LeRobotPolicy,
    LeRobotTraining,
    find_python,
    own_fields,
    split,
    write_copy,
)
from robot_rl.cli.bench import Peers
from robot_rl.cli.collect import Collect
from robot_rl.cli.main import parse
from robot_rl.cli.train import Train
from robot_rl.data import Dataset
from robot_rl.interface.observation_spec import PRIVILEGED, STATE
from robot_rl.recipes import recipes
from robot_rl.recipes.job import Job
from robot_rl.training.run import Run, read_metrics
from robot_rl.util.errors import ConfigError, Interrupted, UserError
from sim.make import describe, make

LIFT, INSTALLED = "panda-lift", Path(__file__).parents[3] / ".venv-peers" / "bin" / "python"
FOREIGN = Path(os.environ.get(PYTHON, INSTALLED))
SHAPES = {"model.layer.weight": [3, 2], "stats/action/mean": [4]}

STANDIN = """
import json, sys
sys.path.insert(0, {folder!r})
import torch, lerobot_process as p
if sys.argv[1] == "train":
    for step in (1, 2):
        print(json.dumps(dict(steps=step, loss=1.0, grad_norm=1.0, lr=0.1, epochs=1.0)), flush=True)
    sys.exit({code})
settings, weights = json.loads(sys.argv[2]), p.receive(sys.stdin.buffer)
try:
    while True:
        asked = p.receive(sys.stdin.buffer)
        torch.manual_seed(int(asked["seed"]))
        rows = asked["observation.state"][:, :1] + weights["model.layer.weight"].sum()
        actions = torch.rand(len(rows), settings["options"]["n_action_steps"], 4) + rows[:, None]
        p.send(sys.stdout.buffer, dict(actions=actions * float('{scale}')))
except EOFError:
    pass
"""
"""A process with the messages of LeRobot's, whose actions tell what it was sent."""


def standin(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int = 0, scale: float = 0.1) -> None:
    """Put the stand-in in the place of LeRobot's Python."""
    script, program = folder / "standin.py", folder / "python"
    package = Path(lerobot_process.__file__).parent
    script.write_text(STANDIN.format(folder=str(package), code=code, scale=scale))
    program.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {script} "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv(PYTHON, str(program))


def job(task: str, folder: Path, data: Path = Path("nowhere")) -> Job:
    run = Run(folder / "run", {"task": task, "recipe": "peer", "seed": 0})
    return Job(describe(task), lambda count: make(task, count), run, 0, data, None, lambda *_: None)


def policy() -> LeRobotPolicy:
    info = describe(LIFT)
    config = LeRobotConfig("act", {"n_action_steps": 3}, own_fields(info), dict(SHAPES))
    return LeRobotPolicy(Size(info.observation, info.action), config)


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dataset of two episodes."""
    folder = tmp_path_factory.mktemp("lerobot") / "data"
    words = [LIFT, "--episodes", "2", "--num-envs", "2", "--image-size", "0", "--out", str(folder)]
    assert parse(Collect, words, "collect").run() == 0
    return folder


@pytest.mark.parametrize("name", ["lerobot-diffusion", "lerobot-act"])
def test_arms_have_valid_flags_and_equal_horizons(name: str) -> None:
    check = peers[name]
    ours: Any = parse(Train[recipes.get(check.method.recipe)], [LIFT, *check.method.flags], "train").config  # type: ignore[misc]
    theirs: Any = parse(Train[recipes.get(check.control.recipe)], [LIFT, *check.control.flags], "train").config  # type: ignore[misc]
    assert (ours.policy.horizon, ours.policy.execute) == (theirs.horizon, theirs.execute)
    assert check.parity and check.figure == "success" and "--episodes" in check.data


def test_objects_are_split_from_the_robot() -> None:
    info = describe(LIFT)
    own = own_fields(info)
    kinds = {info.state.names[k].split(".")[0] for k in own}
    assert kinds == {"joint_position", "tool_position", "gripper_width", "last_action"}
    state = torch.arange(2.0 * info.observation).view(2, -1)
    parts = split(state, own)
    assert parts[STATE].shape == (2, 15) and parts[PRIVILEGED].shape == (2, 6)
    assert parts[PRIVILEGED][0].tolist() == [k for k, n in enumerate(info.state.names) if n.startswith("cube")]
    with pytest.raises(ConfigError, match="take a task of a robot with objects, such as panda-lift"):
        own_fields(describe("testbed:swing"))


def test_copy_has_all_rows(episodes: Path, tmp_path: Path) -> None:
    work = job(LIFT, tmp_path, episodes)
    ours, own = work.demonstrations(), own_fields(work.info)
    write_copy(ours, own, work.info, tmp_path / "copy")
    copy = Dataset(tmp_path / "copy")
    rows = split(torch.cat([each[STATE] for each in ours]), own) | {"action": torch.cat([e["action"] for e in ours])}
    for name, values in rows.items():
        assert torch.equal(copy.column(name), values), name
    assert len(copy.episodes) == len(ours) == 2 and copy.fps == work.info.rate


def test_chunks_are_those_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, state and seed reach the process; the bundle starts it again; it ends with the policy."""
    standin(tmp_path, monkeypatch)
    acting, state = policy(), torch.zeros(5, 21)
    acting.weights()["model.layer.weight"].fill_(0.5)
    state[:, 0] = torch.arange(5.0)
    actions = acting.act({STATE: state}, torch.Generator().manual_seed(1))
    assert actions.shape == (5, 3, 4) and acting.horizon == acting.execute == 3
    low = (0.1 * (3 + state[:, 0])).clamp(max=1)[:, None, None]
    assert (actions >= low).all() and (actions <= low + 0.1).all()
    again = LeRobotPolicy.build(acting.describe())
    again.load_state_dict(acting.state_dict())
    assert torch.equal(again.act({STATE: state}, torch.Generator().manual_seed(1)), actions)
    assert not torch.equal(again.act({STATE: state}, torch.Generator().manual_seed(2)), actions)
    assert again.process is not None
    child = again.process.child
    again.process.close()
    assert child.returncode == 0


def test_wrong_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standin(tmp_path, monkeypatch, scale=float("nan"))
    with pytest.raises(UserError, match="not finite"):
        policy().act({STATE: torch.zeros(2, 21)}, torch.Generator())
    standin(tmp_path, monkeypatch)
    wrong = policy()
    wrong.horizon = 2
    with pytest.raises(UserError, match=r"\(2, 3, 4\), and not \(2, 2, 4\)"):
        wrong.act({STATE: torch.zeros(2, 21)}, torch.Generator())


def test_process_ends_with_a_killed_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standin(tmp_path, monkeypatch)
    program = (
        "import torch; from tests.robot_rl.bench.test_lerobot import policy, STATE\n"
        "p = policy(); p.act({STATE: torch.zeros(1, 21)}, torch.Generator())\n"
        "print(p.process.child.pid, flush=True); import time; time.sleep(100)"
    )
    root = Path(__file__).parents[3]
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=root)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    os.kill(child, 0)
    parent.kill()
    parent.communicate()
    for _ in range(100):
        if not Path(f"/proc/{child}").exists():
            return
        time.sleep(0.1)
    raise AssertionError("the process outlives its parent")


def test_stop_signal_ends_the_training(episodes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standin(tmp_path, monkeypatch)
    with (work := job(LIFT, tmp_path, episodes)).opened as run, pytest.raises(Interrupted, match="starts again"):
        run.stop_signal = 15
        LeRobotACT().train(work)
    assert not list((tmp_path / "run").glob("tmp*")), "the copy of the dataset is gone"


def test_failed_training_is_told(episodes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standin(tmp_path, monkeypatch, code=3)
    with (work := job(LIFT, tmp_path, episodes)).opened, pytest.raises(UserError, match="ended with status 3"):
        LeRobotACT().train(work)
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [1, 2]


def test_missing_lerobot_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON, "/no/python")
    with pytest.raises(ConfigError, match="there is no /no/python: LeRobot has its own Python; run `make peers`"):
        Peers(only=("lerobot-act",)).run()
    monkeypatch.setenv(PYTHON, "/bin/false")
    with pytest.raises(UserError, match=r"/bin/false\) ended with status 1: without output"):
        policy().act({STATE: torch.zeros(1, 21)}, torch.Generator())


def test_dataset_of_another_task_is_refused(episodes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standin(tmp_path, monkeypatch)
    with (work := job("panda-insert", tmp_path, episodes)).opened, pytest.raises(ConfigError):
        LeRobotACT().train(work)


@pytest.mark.skipif(not FOREIGN.is_file(), reason="LeRobot is not installed: make peers")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("recipe", [
    LeRobotDiffusion(training=LeRobotTraining(2, 8, 1), down_dims=(8, 16), sample_steps=2),
    LeRobotACT(training=LeRobotTraining(2, 8, 1), dim_model=16, dim_feedforward=16),
], ids=lambda recipe: recipe.kind)  # fmt: skip
def test_lerobot_trains_and_acts(recipe: Any, episodes: Path, tmp_path: Path) -> None:
    """LeRobot's own policy, loaded from its checkpoint by its own loader, acts as the bundle."""
    kept: list[Path] = []

    class Kept(type(recipe)):  # type: ignore[misc]
        def policy_of(self, size: Any, own: Any, folder: Path) -> Any:
            kept.append(Path(os.path.realpath(folder)).rename(tmp_path / "theirs"))
            return super().policy_of(size, own, kept[0])

    with (work := job(LIFT, tmp_path, episodes)).opened:
        save_bundle(Kept(**vars(recipe)).train(work), tmp_path / "bundle")
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [1, 2]
    acting = load_bundle(tmp_path / "bundle").policy
    state = torch.cat([each[STATE] for each in work.demonstrations()])[:40:10]
    ours = acting.act({STATE: state}, torch.Generator().manual_seed(0))
    seed = torch.randint(2**62, (1,), generator=torch.Generator().manual_seed(0))
    assert isinstance(acting, LeRobotPolicy)
    save_file(split(state, acting.config.own) | {"seed": seed}, tmp_path / "asked.safetensors")
    script = Path(__file__).with_name("lerobot_reference.py")
    subprocess.run([find_python(), "-I", script, lerobot_process.__file__, kept[0], tmp_path], check=True, timeout=300)
    theirs = load_file(tmp_path / "actions.safetensors")["actions"].clamp(-1, 1)
    assert torch.allclose(ours, theirs, atol=1e-5) and ours.std() > 0
