"""The learner process of a robot: episodes, updates, published weights, and resume."""

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
from policies.bundle import Bundle, load_bundle, save_bundle
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from policies.networks.encoder import EncoderConfig
from policies.networks.gaussian import GaussianConfig
from robot_rl.data import Dataset, DatasetWriter
from robot_rl.data.recording import episodes_of, features, load_episodes
from robot_rl.data.sources import Demonstrations
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.observation_spec import ObservationSpec, picture_field
from robot_rl.interface.pipeline import Pipeline
from robot_rl.recipes.hg_dagger import HGDAgger
from robot_rl.recipes.hil_serl import HilSerl
from robot_rl.training.checkpoint import load_state
from robot_rl.training.learner import CloningSessionConfig, HumanInTheLoopConfig, OffPolicyLearner, corrections
from robot_rl.training.metrics import Diverged
from robot_rl.training.off_policy import demo_replay
from robot_rl.training.published import WEIGHTS, episodes_learned, fetch
from robot_rl.training.published import publish as publish_agent
from robot_rl.training.run import read_metrics
from robot_rl.util.errors import ConfigError
from sim.tasks import tasks

Build = Callable[..., Any]
WAIT = 300.0
"""Timeout, s, of steps that take seconds: the learner runs at idle priority."""
PATIENT = pytest.mark.timeout(600)
LIFT = tasks.get("panda-lift").interface
PIPELINE = Pipeline(LIFT)
SIZE = PIPELINE.observer.spec.size
OFTEN = {"publish_every": 5, "checkpoint_every": 20}
TINY = HumanInTheLoopConfig(updates_per_step=4.0, batch=16, critic_only=30, capacity=2000, **OFTEN)


def record(root: Path, flags: list[bool], success: bool = True, seed: int = 0) -> None:
    """Append an episode to the robot's dataset, as `real.recording.recorder` does."""
    n, rng = len(flags), torch.Generator().manual_seed(seed)
    last = torch.zeros(n, 1, dtype=torch.bool)
    last[-1] = True
    action = PIPELINE.actions.to_physical(2 * torch.rand(n, 4, generator=rng) - 1)
    state = PIPELINE.observer.spec.to_physical(2 * torch.rand(n, SIZE, generator=rng) - 1)
    columns = {"observation.state": state, "action": action, "action.policy": action, "next.done": last}
    columns |= {"next.reward": (last & success).float(), "next.success": last & success}
    columns["intervention"] = torch.tensor(flags)[:, None]
    columns |= {"shield": torch.zeros(n, 1, dtype=torch.long), "state_age": torch.zeros(n, 1)}
    if (root / "meta" / "info.json").exists():
        writer = DatasetWriter.append(root)
    else:
        writer = DatasetWriter.create(root, fps=20, features=features(EnvInfo.of(PIPELINE)), robot_type="panda")
    with writer:
        writer.add_episode(columns, LIFT.instruction)


@pytest.fixture
def learner(agent: Build, residual: Build, tmp_path: Path) -> Build:
    def build(config: HumanInTheLoopConfig = TINY, name: str = "session", seed: int = 0) -> OffPolicyLearner:
        record(tmp_path / f"demos-{name}", [False] * 40)
        torch.manual_seed(0)
        policy = residual(SIZE, 4, std=None)
        rng = torch.Generator().manual_seed(0)
        made = agent(policy, seed=seed)
        demos = demo_replay(made, load_episodes(tmp_path / f"demos-{name}", EnvInfo.of(PIPELINE)), rng, config.capacity)
        (tmp_path / name).mkdir()
        return OffPolicyLearner(made, EnvInfo.of(PIPELINE), demos, config, tmp_path / name, seed)

    return build


def publish(folder: Path, policy: Any, version: int) -> None:
    """Publish a policy's actor, as a learner does with its averaged actor."""
    publish_agent(folder, SimpleNamespace(average=policy.actor, policy=policy), version)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_corrections_are_the_consecutive_corrected_steps(flags: list[bool]) -> None:
    n = len(flags)
    rows = torch.arange(n)
    episode = {"row": rows, "observation.state": rows[:, None], "intervention": torch.tensor(flags)}
    episode |= {"action": torch.zeros(n, 1), "reward": torch.linspace(0, 1, n)}
    parts = corrections(episode)
    together = torch.cat([p["row"] for p in parts]) if parts else torch.zeros(0, dtype=torch.long)
    assert torch.equal(together, torch.tensor(flags).nonzero().squeeze(-1)), "every corrected step once, in order"
    for part in parts:
        rows = part["row"]
        assert bool(part["intervention"].all()) and len(rows) > 0
        assert torch.equal(rows, torch.arange(int(rows[0]), int(rows[-1]) + 1)), "without gaps"
        assert torch.equal(part["reward"], episode["reward"][rows])
        following = int(rows[-1]) + 1
        final = part.get("final.observation.state")
        assert (final is not None) == (following < n), "final observation, if the episode continues"
        assert final is None or final.tolist() == [[following]]
    for a, b in zip(parts[:-1], parts[1:], strict=True):
        assert b["row"][0] - a["row"][-1] > 1, "separate corrections are not adjacent"


def test_new_episodes_are_read_once_and_corrections_go_to_both_replays(learner: Build) -> None:
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
    assert one.absorb() == 2 and one.seen == 3, "failures are used, too"
    assert (one.online.transitions, one.demos.transitions, one.corrected) == (20, demos + 7, 7)
    begun = one.online.flags["starts"][0]
    flags = one.online.columns["intervention"][0][begun]
    assert flags.tolist() == [False] * 6 + [True] * 4 + [False] * 7 + [True] * 3
    for episode in load_episodes(root, EnvInfo.of(PIPELINE)):  # the executed action is stored
        stored = one.online.columns["action"][0]
        assert (stored[:, None] == episode["action"]).all(-1).any(0).all()
    reward, ended = one.online.columns["reward"][0][begun], one.online.flags["terminated"][0][begun]
    assert reward.nonzero().flatten().tolist() == ended.nonzero().flatten().tolist() == [11, 19]


def test_updates_are_limited_by_the_robots_steps(learner: Build) -> None:
    one = learner(HumanInTheLoopConfig(batch=8, critic_only=100, updates_per_step=0.5, capacity=2000))
    assert not one.update(), "no episode"
    record(one.folder / "dataset", [False] * 63)
    one.absorb()
    assert not one.update(), "fewer than 64 rows"
    record(one.folder / "dataset", [False] * 17, seed=1)
    one.absorb()
    done = 0
    while one.update():
        done += 1
        assert done <= 40
    assert done == 40 == one.agent.updates.critic, "half an update per step"
    assert one.agent.updates.actor == 0, "only the critic, at first"
    record(one.folder / "dataset", [False] * 20, seed=2)
    one.absorb()
    while one.update():
        pass
    assert one.agent.updates.critic == 50 and one.agent.updates.actor > 0


def test_fetch_loads_newer_finite_weights_only(residual: Build, tmp_path: Path, same: Build) -> None:
    torch.manual_seed(1)
    there, here, other = (residual(zero_init=False) for _ in range(3))
    assert fetch(tmp_path, here, -1) == -1, "nothing published"
    publish(tmp_path, there, 12)
    assert fetch(tmp_path, here, -1) == 12
    assert same(here.actor.state_dict(), there.actor.state_dict())
    assert fetch(tmp_path, other, 12) == 12 and not same(other.actor.state_dict(), there.actor.state_dict())
    publish(tmp_path, other, 5)
    assert load_state(tmp_path / WEIGHTS)["version"] == 12, "an older version is not published"
    with torch.no_grad():
        next(other.actor.parameters()).view(-1)[0] = torch.nan
    publish(tmp_path, other, 13)
    assert fetch(tmp_path, here, 12) == 12 and same(here.actor.state_dict(), there.actor.state_dict())
    assert [p.name for p in tmp_path.iterdir()] == [WEIGHTS], "no temporary files remain"


def test_fetch_loads_the_encoder(tmp_path: Path, same: Build) -> None:
    front = "observation.images.front"
    size = Size(3, 2, ObservationSpec.of(**{front: picture_field(8, 8)}))
    config = GaussianConfig(hidden=(8,), encoder=EncoderConfig(channels=(4,), embedding=5))
    there, here = GaussianPolicy(size, config), GaussianPolicy(size, config)
    publish(tmp_path, there, 1)
    assert fetch(tmp_path, here, -1) == 1
    seen = {"observation.state": torch.randn(2, 3), front: torch.randint(0, 256, (2, 8, 8, 3), dtype=torch.uint8)}
    acts = [each.act(seen, torch.Generator().manual_seed(0)) for each in (there, here)]
    assert torch.equal(*acts)


class Enough:
    """Stop the learner when it waits: it has no more updates."""

    def __init__(self) -> None:
        self.waits = 0

    def stop(self) -> bool:
        return self.waits > 0

    def wait(self, seconds: float) -> None:
        self.waits += 1


def test_learner_publishes_logs_saves_and_resumes(learner: Build, run: Build, same: Build) -> None:
    one = learner()
    record(one.folder / "dataset", [False] * 20 + [True] * 10 + [False] * 50, seed=1)
    enough = Enough()
    with run("learner", resume=True) as folder:
        one.run(folder, enough.stop, enough.wait)
    assert enough.waits == 1 and one.agent.updates.critic == 320, "four updates per step"
    published = load_state(one.folder / WEIGHTS)
    assert published["version"] == 320 and same(published["actor"], dict(one.agent.average.state_dict()))
    rows = read_metrics(folder.folder)
    assert [r["step"] for r in rows] == list(range(5, 321, 5))
    assert rows[-1]["robot/steps"] == 80 and rows[-1]["robot/corrected"] == 10
    assert rows[-1]["robot/corrected_share"] == 0.125
    # A new process with other random weights resumes from the checkpoint.
    two = learner(name="session2", seed=9)
    two.folder = one.folder
    record(one.folder / "dataset", [False] * 5, seed=2)
    enough = Enough()
    with run("learner", resume=True) as folder:
        two.run(folder, enough.stop, enough.wait)
    assert two.agent.updates.critic == 340 and two.seen == 2
    assert [r["step"] for r in read_metrics(folder.folder)] == list(range(5, 341, 5))


def test_non_finite_update_raises_before_weights_are_published_or_saved(learner: Build, run: Build) -> None:
    one = learner()
    record(one.folder / "dataset", [False] * 80, seed=1)
    update = one.agent.update

    def breaks(batch: Any, phase: Any) -> Any:
        if one.agent.updates.critic == 7:
            with torch.no_grad():
                next(one.agent.critic.parameters()).view(-1)[0] = torch.nan
        return update(batch, phase)

    one.agent.update = breaks
    enough = Enough()
    with pytest.raises(Diverged, match="at step 10") as error, run("learner") as folder:
        one.run(folder, enough.stop, enough.wait)
    assert error.value.code == 2 and load_state(one.folder / WEIGHTS)["version"] == 5
    assert [row["step"] for row in read_metrics(folder.folder)] == [5]
    assert not (folder.folder / "checkpoint.safetensors").exists()


def eventually(holds: Callable[[], Any], process: subprocess.Popen[bytes]) -> None:
    """Wait until a condition holds; fail if the process ends."""
    end = time.monotonic() + WAIT
    while not holds():
        assert process.poll() is None, f"the learner ended with {process.returncode}"
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
    """Write the part of `finetune`'s config that the learner reads, with small networks and batches."""
    recipe = HilSerl()
    agent = replace(recipe.agent, hidden=(8,), critics=2)
    recipe = replace(recipe, agent=agent, training=replace(TINY, publish_every=20, checkpoint_every=1000))
    settings = {"base": str(bundle / "bundle"), "dataset": str(bundle / "demos"), "recipe": "hil-serl", "seed": 0}
    settings["classifier"] = ""
    (folder / "config.json").write_text(json.dumps(settings | {"config": asdict(recipe)}))


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


def test_a_cloned_policy_learns_from_corrections_alone(bundle: Path, tmp_path: Path, run: Build) -> None:
    """It goes on from its own weights; the actions of an episode without corrections are not cloned."""
    session = CloningSessionConfig(batch=32, demo_share=0.5, updates_per_step=2.0, lr=3e-3, publish_every=50)
    recipe = HGDAgger(session=session)
    loaded = load_bundle(bundle / "bundle")
    one = recipe.learner(loaded, bundle / "demos", tmp_path, 0)
    record(tmp_path / "dataset", [False] * 60, seed=5)
    enough = Enough()
    with run("learner", resume=True) as folder:
        one.run(folder, enough.stop, enough.wait)
    assert one.version == 0 and episodes_learned(tmp_path) == 1, "nothing to learn, and the robot may go on"
    record(tmp_path / "dataset", [False] * 10 + [True] * 40, seed=6)
    episode = episodes_of(Dataset(tmp_path / "dataset"), one.info, 1, successes=False)
    taught = Demonstrations.of(corrections(episode[0]))

    def loss() -> float:
        rng, rows = torch.Generator().manual_seed(3), taught.rows(one.agent.policy.horizon)
        batch = taught.sample(256, rows, rng)
        with torch.no_grad():
            return float(one.agent.policy.loss(batch, batch["action"], rng).mean())

    before, enough = loss(), Enough()
    with run("learner", resume=True) as folder:
        one.run(folder, enough.stop, enough.wait)
    assert one.version == 220 and one.corrected == 40 and episodes_learned(tmp_path) == 2
    one.agent.finish()
    assert loss() < 0.8 * before
    robot = load_bundle(bundle / "bundle").policy
    assert fetch(tmp_path, robot, -1) == 220  # type: ignore[arg-type]
    assert all(torch.equal(value, robot.state_dict()[name]) for name, value in one.agent.averaged().items())


def test_a_policy_without_a_loss_is_not_cloned(residual: Build) -> None:
    with pytest.raises(ConfigError, match="use hil-serl"):
        HGDAgger().prepared(Bundle(residual(SIZE, 4), LIFT, PIPELINE.robot.fingerprint()))


@PATIENT
def test_killed_learner_resumes_from_its_checkpoint(start: Build, tmp_path: Path) -> None:
    first = start()
    eventually(lambda: version(tmp_path) == 0, first)
    record(tmp_path / "dataset", [False] * 10 + [True] * 10 + [False] * 50)  # 4 updates per step
    eventually(lambda: version(tmp_path) >= 40, first)
    first.terminate()
    assert first.wait(WAIT) == 0, "SIGTERM ends the learner in order"
    checkpoint = tmp_path / "learner" / "checkpoint.safetensors"
    saved = load_state(checkpoint)["step"]
    assert saved == version(tmp_path) >= 40, "saved and published at the end"

    (tmp_path / WEIGHTS).unlink()
    second = start()
    eventually(lambda: version(tmp_path) >= 0, second)
    assert version(tmp_path) >= saved, "starts at the checkpoint"
    record(tmp_path / "dataset", [False] * 70, seed=1)
    eventually(lambda: version(tmp_path) >= saved + 20, second)
    second.kill()
    second.wait()
    assert load_state(checkpoint)["step"] == saved, "the checkpoint is complete"

    (tmp_path / WEIGHTS).unlink()
    third = start()
    eventually(lambda: version(tmp_path) == 560, third)
    third.terminate()
    assert third.wait(WAIT) == 0
    rows = [r["step"] for r in read_metrics(tmp_path / "learner")]
    assert rows == sorted(set(rows)), "no repeated rows after the resume"
    assert load_state(checkpoint)["step"] == version(tmp_path) == 560
    assert not list(tmp_path.glob(".*.part"))


@PATIENT
def test_a_learner_on_a_cluster_survives_a_killed_node(ray: Any, bundle: Path, tmp_path: Path) -> None:
    configure(tmp_path, bundle)
    command = [sys.executable, "-m", "robot_rl.cli.learner", str(tmp_path), "--ray", ray.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as learner:
        try:
            eventually(lambda: version(tmp_path) == 0, learner)
            record(tmp_path / "dataset", [False] * 10 + [True] * 10 + [False] * 50)
            eventually(lambda: version(tmp_path) == 280, learner)  # 4 updates per step: nothing recorded is lost
            ray.lose_node()
            record(tmp_path / "dataset", [False] * 70, seed=1)
            eventually(lambda: version(tmp_path) == 560, learner)
            learner.terminate()
            assert learner.wait(WAIT) == 0
        finally:
            learner.kill()
    assert load_state(tmp_path / "learner" / "checkpoint.safetensors")["step"] == 560


@PATIENT
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
def test_learner_ends_if_its_parent_died_during_the_start(bundle: Path, tmp_path: Path, learners: Any) -> None:
    """If `finetune` is killed while the learner starts, the learner must not keep the run folder locked."""
    configure(tmp_path, bundle)
    parent = (
        "import os, sys; from pathlib import Path; from real.sessions.finetune import LearnerProcess\n"
        "command = [sys.executable, '-m', 'robot_rl.cli.learner', sys.argv[1]]\n"
        "LearnerProcess(command, Path(sys.argv[1], 'weights.safetensors')).__enter__()\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", parent, str(tmp_path)])
    try:
        end = time.monotonic() + WAIT  # the learner checks for its parent in every iteration
        while learners(tmp_path):
            assert time.monotonic() < end, "the orphan still runs"
            time.sleep(0.05)
    finally:
        for pid in learners(tmp_path):
            os.kill(pid, 9)


def test_recipe_starts_from_policy_and_critics_of_the_bundle(bundle: Path, tmp_path: Path, same: Build) -> None:
    from policies.bundle import load_bundle

    loaded = load_bundle(bundle / "bundle")
    recipe = HilSerl()
    one = recipe.learner(loaded, bundle / "demos", tmp_path, 0)
    assert one.demos.transitions == 40 and one.agent.policy.config.actor.std is None
    observation = {"observation.state": torch.randn(3, SIZE)}
    rng = [torch.Generator().manual_seed(1) for _ in range(2)]
    policy = one.agent.policy
    chunk = loaded.policy.act(observation, rng[0])
    assert torch.equal(policy.act(observation, rng[1])[:, 0], chunk[:, 0]), "the residual starts at zero"
    settings = asdict(one.agent.config)
    improved = Bundle(policy, LIFT, loaded.robot, critic=one.agent.critic.state_dict(), agent=settings)
    two = recipe.learner(improved, bundle / "demos", tmp_path, 5)
    assert same(dict(two.agent.critic.state_dict()), dict(one.agent.critic.state_dict()))
    assert same(dict(two.agent.target.state_dict()), dict(one.agent.critic.state_dict()))
    assert same(dict(two.agent.policy.actor.state_dict()), dict(policy.actor.state_dict()))
    with pytest.raises(ConfigError, match="--agent.critics 2"):
        HilSerl(replace(recipe.agent, critics=5)).prepared(improved)
