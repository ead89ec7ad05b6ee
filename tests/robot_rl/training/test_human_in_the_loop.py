"""The learner beside the robot: what it reads, how much it learns, what it publishes, and how it comes back."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.bundle import Bundle, save_bundle
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from policies.networks.encoder import EncoderConfig
from policies.networks.gaussian import GaussianConfig
from robot_rl.data import DatasetWriter
from robot_rl.data.recording import features, load_episodes
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.observation_spec import ObservationSpec, picture_field
from robot_rl.interface.pipeline import Pipeline
from robot_rl.recipes.hil_serl import HilSerl
from robot_rl.training.checkpoint import load_state, save_state
from robot_rl.training.human_in_the_loop import (
    WEIGHTS,
    HumanInTheLoopConfig,
    Learner,
    corrections,
    fetch,
)
from robot_rl.training.human_in_the_loop import publish as publish_agent
from robot_rl.training.metrics import Diverged
from robot_rl.training.off_policy import demo_replay
from robot_rl.training.run import read_metrics
from robot_rl.util.errors import ConfigError
from sim.tasks import tasks

Build = Callable[..., Any]
WAIT = 300.0
"""Timeout of steps that take seconds, s: the learner runs at idle priority."""
PATIENT = pytest.mark.timeout(600)
LIFT = tasks.get("panda-lift").interface
PIPELINE = Pipeline(LIFT)
SIZE = PIPELINE.observer.spec.size
TINY = HumanInTheLoopConfig(
    updates_per_step=4.0, batch=16, critic_only=30, publish_every=5, checkpoint_every=20, capacity=2000
)


def record(root: Path, flags: list[bool], success: bool = True, seed: int = 0) -> None:
    """Append one episode to the robot's dataset, as `real.recording.recorder` does."""
    n, rng = len(flags), torch.Generator().manual_seed(seed)
    last = torch.zeros(n, 1, dtype=torch.bool)
    last[-1] = True
    action = PIPELINE.actions.to_physical(2 * torch.rand(n, 4, generator=rng) - 1)
    columns = {
        "observation.state": PIPELINE.observer.spec.to_physical(2 * torch.rand(n, SIZE, generator=rng) - 1),
        "action": action,
        "action.policy": action,
        "next.reward": (last & success).float(),
        "next.success": last & success,
        "next.done": last,
        "intervention": torch.tensor(flags)[:, None],
    }
    if (root / "meta" / "info.json").exists():
        writer = DatasetWriter.append(root)
    else:
        writer = DatasetWriter.create(root, fps=20, features=features(EnvInfo.of(PIPELINE)), robot_type="panda")
    with writer:
        writer.add_episode(columns, LIFT.instruction)


@pytest.fixture
def learner(agent: Build, residual: Build, tmp_path: Path) -> Build:
    def build(config: HumanInTheLoopConfig = TINY, name: str = "session", seed: int = 0) -> Learner:
        record(tmp_path / f"demos-{name}", [False] * 40)
        torch.manual_seed(0)
        policy = residual(SIZE, 4, std=None)
        rng = torch.Generator().manual_seed(0)
        made = agent(policy, seed=seed)
        demos = demo_replay(made, load_episodes(tmp_path / f"demos-{name}", EnvInfo.of(PIPELINE)), rng, config.capacity)
        (tmp_path / name).mkdir()
        return Learner(made, EnvInfo.of(PIPELINE), demos, config, tmp_path / name, seed)

    return build


def publish(folder: Path, policy: Any, version: int) -> None:
    """Publish a policy's actor as a learner that averaged it does."""
    publish_agent(folder, SimpleNamespace(updates=SimpleNamespace(critic=version), average=policy.actor, policy=policy))


# ---- corrections -------------------------------------------------------------------------------------------------
@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_corrections_are_the_stretches_that_a_person_executed(flags: list[bool]) -> None:
    n = len(flags)
    episode = {
        "row": torch.arange(n),
        "action": torch.zeros(n, 1),
        "observation.state": torch.arange(n)[:, None],
        "reward": torch.linspace(0, 1, n),
        "intervention": torch.tensor(flags),
    }
    parts = corrections(episode)
    together = torch.cat([p["row"] for p in parts]) if parts else torch.zeros(0, dtype=torch.long)
    assert torch.equal(together, torch.tensor(flags).nonzero().squeeze(-1)), "each corrected step once, in order"
    for part in parts:
        rows = part["row"]
        assert bool(part["intervention"].all()) and len(rows) > 0
        assert torch.equal(rows, torch.arange(int(rows[0]), int(rows[-1]) + 1)), "without gaps"
        assert torch.equal(part["reward"], episode["reward"][rows])
        following = int(rows[-1]) + 1
        final = part.get("final.observation.state")
        assert (final is not None) == (following < n), "and the state that it led to, where the episode goes on"
        assert final is None or final.tolist() == [[following]]
    for a, b in zip(parts[:-1], parts[1:], strict=True):
        assert b["row"][0] - a["row"][-1] > 1, "as long as they go: the policy acted in between"


# ---- absorbing ---------------------------------------------------------------------------------------------------
def test_new_episodes_are_absorbed_once_and_corrections_go_to_both_replays(learner: Build) -> None:
    one = learner()
    assert one.absorb() == 0, "no dataset yet"
    demos = one.demos.transitions
    root = one.folder / "dataset"
    record(root, [False] * 6 + [True] * 4 + [False] * 2, success=True, seed=1)
    assert one.absorb() == 1
    assert (one.online.transitions, one.demos.transitions, one.corrected) == (12, demos + 4, 4)
    assert one.absorb() == 0 and one.online.transitions == 12
    record(root, [False] * 5, success=False, seed=2)
    record(root, [True] * 3, success=True, seed=3)
    assert one.absorb() == 2 and one.seen == 3, "failures are learned from too"
    assert (one.online.transitions, one.demos.transitions, one.corrected) == (20, demos + 7, 7)
    begun = one.online.flags["starts"][0]
    flags = one.online.columns["intervention"][0][begun]
    assert flags.tolist() == [False] * 6 + [True] * 4 + [False] * 7 + [True] * 3
    reward, ended = one.online.columns["reward"][0][begun], one.online.flags["terminated"][0][begun]
    assert reward.nonzero().flatten().tolist() == ended.nonzero().flatten().tolist() == [11, 19]


def test_the_executed_action_is_learned_from(learner: Build) -> None:
    one = learner()
    record(one.folder / "dataset", [True] * 3, seed=1)
    one.absorb()
    (episode,) = load_episodes(one.folder / "dataset", EnvInfo.of(PIPELINE))
    stored = one.online.columns["action"][0][one.online.flags["starts"][0]]
    assert torch.equal(stored, episode["action"]) and stored.abs().max() <= 1


# ---- updating ----------------------------------------------------------------------------------------------------
def test_never_more_updates_than_the_robots_steps_allow(learner: Build) -> None:
    one = learner(HumanInTheLoopConfig(batch=8, critic_only=100, updates_per_step=0.5, capacity=2000))
    assert not one.update(), "nothing to learn from"
    record(one.folder / "dataset", [False] * 63)
    one.absorb()
    assert not one.update(), "too little for a batch"
    record(one.folder / "dataset", [False] * 17, seed=1)
    one.absorb()
    done = 0
    while one.update():
        done += 1
        assert done <= 40
    assert done == 40 == one.agent.updates.critic, "half an update for each of 80 steps"
    assert one.agent.updates.actor == 0, "the critic alone, at first"
    record(one.folder / "dataset", [False] * 20, seed=2)
    one.absorb()
    while one.update():
        pass
    assert one.agent.updates.critic == 50 and one.agent.updates.actor > 0


# ---- weights -----------------------------------------------------------------------------------------------------
def test_published_weights_are_fetched(residual: Build, tmp_path: Path, same: Build) -> None:
    torch.manual_seed(1)
    there, here = residual(zero_init=False), residual(zero_init=False)
    assert fetch(tmp_path, here, -1) == -1, "nothing published"
    publish(tmp_path, there, 12)
    assert fetch(tmp_path, here, -1) == 12
    assert same(here.actor.state_dict(), there.actor.state_dict())
    before = copy.deepcopy(here.actor.state_dict())
    with torch.no_grad():
        for p in here.actor.parameters():
            p.add_(1.0)
    assert fetch(tmp_path, here, 12) == 12
    assert not same(here.actor.state_dict(), before), "the version in use is not read again"
    assert [p.name for p in tmp_path.iterdir()] == [WEIGHTS], "and nothing half-written is left"


def test_what_the_learner_learned_to_see_is_fetched_too(tmp_path: Path, same: Build) -> None:
    front = "observation.images.front"
    size = Size(3, 2, ObservationSpec.of(**{front: picture_field(8, 8)}))
    config = GaussianConfig(hidden=(8,), encoder=EncoderConfig(channels=(4,), embedding=5))
    there, here = GaussianPolicy(size, config), GaussianPolicy(size, config)
    publish(tmp_path, there, 1)
    assert fetch(tmp_path, here, -1) == 1
    seen = {"observation.state": torch.randn(2, 3), front: torch.randint(0, 256, (2, 8, 8, 3), dtype=torch.uint8)}
    acts = [each.act(seen, torch.Generator().manual_seed(0)) for each in (there, here)]
    assert torch.equal(*acts)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(residual: Build, tmp_path: Path, same: Build, bad: float) -> None:
    there, here = residual(zero_init=False), residual(zero_init=False)
    publish(tmp_path, there, 3)
    assert fetch(tmp_path, here, -1) == 3
    with torch.no_grad():
        next(there.actor.parameters()).view(-1)[0] = bad
    publish(tmp_path, there, 4)
    before = copy.deepcopy(here.state_dict())
    assert fetch(tmp_path, here, 3) == 3
    assert same(here.state_dict(), before), "the last good weights stay"


def test_older_weights_do_not_replace_newer_ones(residual: Build, tmp_path: Path, same: Build) -> None:
    """A learner that died comes back with its last checkpoint; the robot keeps what it has until that is overtaken."""
    there, here = residual(zero_init=False), residual(zero_init=False)
    publish(tmp_path, there, 100)
    assert fetch(tmp_path, here, -1) == 100
    before = copy.deepcopy(here.state_dict())
    publish(tmp_path, residual(zero_init=False), 50)
    assert fetch(tmp_path, here, 100) == 100
    assert same(here.state_dict(), before)


def test_damaged_weights_are_named(residual: Build, tmp_path: Path) -> None:
    from robot_rl.util.errors import UserError

    (tmp_path / WEIGHTS).write_bytes(b"no weights")
    with pytest.raises(UserError, match=WEIGHTS):
        fetch(tmp_path, residual(), -1)


# ---- the loop ----------------------------------------------------------------------------------------------------
class Enough:
    """Stops the learner when nothing is left to do: it has begun to wait."""

    def __init__(self) -> None:
        self.waits = 0

    def stop(self) -> bool:
        return self.waits > 0

    def wait(self, seconds: float) -> None:
        self.waits += 1


def test_it_publishes_logs_saves_and_goes_on_from_the_checkpoint(learner: Build, run: Build, same: Build) -> None:
    one = learner()
    record(one.folder / "dataset", [False] * 20 + [True] * 10 + [False] * 50, seed=1)
    enough = Enough()
    with run("learner", resume=True) as folder:
        one.run(folder, enough.stop, enough.wait)
    assert enough.waits == 1 and one.agent.updates.critic == 320, "four updates a step, then it waits"
    published = load_state(one.folder / WEIGHTS)
    assert published["version"] == 320 and same(published["actor"], dict(one.agent.average.state_dict()))
    rows = read_metrics(folder.folder)
    assert [r["step"] for r in rows] == list(range(5, 321, 5))
    assert rows[-1]["robot/steps"] == 80 and rows[-1]["robot/corrected"] == 10
    assert rows[-1]["robot/corrected_share"] == 0.125
    # Another process, other random weights: the checkpoint decides.
    two = learner(name="session2", seed=9)
    two.folder = one.folder
    record(one.folder / "dataset", [False] * 5, seed=2)
    enough = Enough()
    with run("learner", resume=True) as folder:
        two.run(folder, enough.stop, enough.wait)
    assert two.agent.updates.critic == 340 and two.seen == 2
    assert [r["step"] for r in read_metrics(folder.folder)] == list(range(5, 341, 5))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_stop_it_before_they_are_published_or_saved(
    learner: Build, run: Build, bad: float
) -> None:
    one = learner()
    record(one.folder / "dataset", [False] * 80, seed=1)
    update = one.agent.update

    def breaks(batch: Any, phase: Any) -> Any:
        if one.agent.updates.critic == 7:
            with torch.no_grad():
                next(one.agent.critic.parameters()).view(-1)[0] = bad
        return update(batch, phase)

    one.agent.update = breaks
    enough = Enough()
    with pytest.raises(Diverged, match="after 10 updates") as error, run("learner") as folder:
        one.run(folder, enough.stop, enough.wait)
    assert error.value.code == 2 and load_state(one.folder / WEIGHTS)["version"] == 5
    assert [row["step"] for row in read_metrics(folder.folder)] == [5]
    assert not (folder.folder / "checkpoint.safetensors").exists()


def test_weights_never_go_back(learner: Build, run: Build) -> None:
    """It was killed after it had published and before its first checkpoint: the robot keeps what it has."""
    one = learner()
    newer = {"version": 17, "actor": one.agent.average.state_dict()}
    save_state(newer, one.folder / WEIGHTS)
    record(one.folder / "dataset", [False] * 80, seed=1)
    enough = Enough()
    with run("learner") as folder:
        one.run(folder, lambda: one.agent.updates.critic >= 15, enough.wait)
    assert load_state(one.folder / WEIGHTS)["version"] == 17
    with run("learner", resume=True) as folder:
        one.run(folder, lambda: one.agent.updates.critic >= 20, enough.wait)
    assert load_state(one.folder / WEIGHTS)["version"] == 20


def test_without_anything_to_do_it_publishes_where_it_stands(learner: Build, run: Build) -> None:
    one = learner()
    enough = Enough()
    with run("learner", resume=True) as folder:
        one.run(folder, enough.stop, enough.wait)
    assert load_state(one.folder / WEIGHTS)["version"] == 0


# ---- the process -------------------------------------------------------------------------------------------------
def eventually(holds: Callable[[], Any], process: subprocess.Popen[bytes] | None = None) -> None:
    end = time.monotonic() + WAIT
    while not holds():
        assert process is None or process.poll() is None, f"the learner ended with {process.returncode}"
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = DiffusionConfig(hidden=16, layers=1, train_steps=10, sample_steps=2)
    policy = DiffusionPolicy(Size(SIZE, 4), config)
    root = tmp_path_factory.mktemp("bundle")
    save_bundle(Bundle(policy, LIFT, PIPELINE.robot.fingerprint()), root / "bundle")
    record(root / "demos", [False] * 40)
    return root


def configure(folder: Path, bundle: Path) -> None:
    """What `finetune` writes, as far as the learner reads it."""
    settings = {"base": str(bundle / "bundle"), "dataset": str(bundle / "demos"), "recipe": "hil-serl", "seed": 0}
    (folder / "config.json").write_text(json.dumps(settings | {"config": asdict(HilSerl())}))


@pytest.fixture
def start(bundle: Path, tmp_path: Path) -> Iterator[Build]:
    started: list[subprocess.Popen[bytes]] = []

    def build() -> subprocess.Popen[bytes]:
        configure(tmp_path, bundle)
        command = [sys.executable, "-m", "robot_rl.cli.learner", str(tmp_path)]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE))
        return started[-1]

    yield build
    for process in started:
        process.kill()
        process.communicate()


def version(folder: Path) -> int:
    return load_state(folder / WEIGHTS)["version"] if (folder / WEIGHTS).exists() else -1


@PATIENT
def test_a_learner_that_is_killed_comes_back_from_its_checkpoint(start: Build, tmp_path: Path) -> None:
    first = start()
    eventually(lambda: version(tmp_path) == 0, first)
    allowed = HumanInTheLoopConfig().updates_per_step  # for each step of the robot
    steps = round(250 / allowed)
    record(tmp_path / "dataset", [False] * 10 + [True] * 10 + [False] * (steps - 20))
    eventually(lambda: version(tmp_path) >= 100, first)
    first.terminate()
    assert first.wait(WAIT) == 0, "SIGTERM ends it in order"
    checkpoint = tmp_path / "learner" / "checkpoint.safetensors"
    saved = load_state(checkpoint)["step"]
    assert saved == version(tmp_path) >= 100, "what it knew is saved and published"

    (tmp_path / WEIGHTS).unlink()
    second = start()
    eventually(lambda: version(tmp_path) >= 0, second)
    assert version(tmp_path) >= saved, "it begins at the checkpoint"
    record(tmp_path / "dataset", [False] * steps, seed=1)
    eventually(lambda: version(tmp_path) >= saved + 100 - saved % 100, second)
    second.kill()
    second.wait()
    published = version(tmp_path)
    assert load_state(checkpoint)["step"] == saved, "the checkpoint is whole"

    third = start()
    eventually(lambda: version(tmp_path) >= 400, third)
    assert published < 500
    rows = [r["step"] for r in read_metrics(tmp_path / "learner")]
    assert rows == sorted(set(rows)), "the curve goes on from the checkpoint, without doubles"
    third.terminate()
    assert third.wait(WAIT) == 0
    assert load_state(checkpoint)["step"] == version(tmp_path) <= 2 * steps * allowed
    assert not list(tmp_path.glob(".*.part"))


@PATIENT
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
def test_a_learner_whose_robot_died_while_it_started_ends(
    bundle: Path, tmp_path: Path, learners: Callable[[Path], list[int]]
) -> None:
    """`finetune` is killed a moment after it started the learner: no orphan may hold the run folder for ever."""
    configure(tmp_path, bundle)
    parent = (
        "import os, sys; from pathlib import Path; from real.finetune import LearnerProcess\n"
        "command = [sys.executable, '-m', 'robot_rl.cli.learner', sys.argv[1]]\n"
        "LearnerProcess(command, Path(sys.argv[1], 'weights.safetensors')).__enter__()\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", parent, str(tmp_path)])
    try:
        end = time.monotonic() + WAIT  # it looks for its parent at every round, once it has started
        while learners(tmp_path):
            assert time.monotonic() < end, "the orphan still runs"
            time.sleep(0.05)
    finally:
        for pid in learners(tmp_path):
            os.kill(pid, 9)


def test_the_recipe_starts_from_the_bundles_policy_and_critics(bundle: Path, tmp_path: Path, same: Build) -> None:
    from policies.bundle import load_bundle

    loaded = load_bundle(bundle / "bundle")
    recipe = HilSerl()
    one = recipe.learner(loaded, bundle / "demos", tmp_path, 0)
    assert one.demos.transitions == 40 and one.agent.policy.config.actor.std is None
    observation = {"observation.state": torch.randn(3, SIZE)}
    rng = [torch.Generator().manual_seed(1) for _ in range(2)]
    policy = one.agent.policy
    chunk = loaded.policy.act(observation, rng[0])
    assert torch.equal(policy.act(observation, rng[1])[:, 0], chunk[:, 0]), "a residual that starts at zero"
    settings = asdict(one.agent.config)
    improved = Bundle(policy, LIFT, loaded.robot, critic=one.agent.critic.state_dict(), agent=settings)
    two = recipe.learner(improved, bundle / "demos", tmp_path, 5)
    assert same(dict(two.agent.critic.state_dict()), dict(one.agent.critic.state_dict()))
    assert same(dict(two.agent.target.state_dict()), dict(one.agent.critic.state_dict()))
    assert same(dict(two.agent.policy.actor.state_dict()), dict(policy.actor.state_dict()))
    with pytest.raises(ConfigError, match="--agent.critics 2"):
        HilSerl(replace(recipe.agent, critics=5)).policy(improved)


def test_save_state_is_what_publish_uses(tmp_path: Path) -> None:
    """The file appears only when it is whole: a full disk leaves the last weights."""
    save_state({"version": 1, "actor": {}}, tmp_path / WEIGHTS)
    with pytest.MonkeyPatch.context() as patch:
        from robot_rl.training import checkpoint
        from robot_rl.util.errors import UserError

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(checkpoint, "save_file", full)
        with pytest.raises(UserError, match="free space"):
            save_state({"version": 2, "actor": {}}, tmp_path / WEIGHTS)
    assert load_state(tmp_path / WEIGHTS)["version"] == 1
    assert [p.name for p in tmp_path.iterdir()] == [WEIGHTS]
