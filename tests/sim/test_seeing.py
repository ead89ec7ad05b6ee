"""Pictures from the scene to a policy: recorded, loaded, cloned, evaluated."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from policies.base import Size
from policies.bundle import Bundle
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from policies.errors import BundleError
from policies.networks.encoder import EncoderConfig
from robot_rl.data.recording import load_episodes
from robot_rl.data.sources import Demonstrations
from robot_rl.evaluation import evaluate
from robot_rl.interface import success
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.pipeline import Picture, Pipeline
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.training.supervised import SupervisedConfig, train_supervised
from robot_rl.util.errors import ConfigError, UserError
from robot_rl.util.seeds import training_seed
from sim.collect import collect
from sim.engines.model import compile_model
from sim.env import TaskEnv
from sim.tasks import tasks

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
Build = Callable[..., Any]


@pytest.fixture
def seeing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The task panda-lift-cameras with small pictures and success after six steps."""
    monkeypatch.setitem(success.TESTS, "always", lambda: lambda s: torch.ones(len(s.joint_position), dtype=torch.bool))
    shipped = tasks.get("panda-lift-cameras")
    pictures = (Picture("front", 32, 48), Picture("wrist", 16, 16))
    return replace(shipped, interface=replace(shipped.interface, pictures=pictures, success="always", success_hold=6))


@pytest.fixture
def dataset(seeing: Any, tmp_path: Path) -> Path:
    env = TaskEnv(seeing, 2, threads=1)
    collect(env, tmp_path / "data", 3, seed=0, image_size=0)
    env.close()
    return tmp_path / "data"


def policy_of(task: Any) -> DiffusionPolicy:
    pipeline = Pipeline(task.interface)
    config = DiffusionConfig(
        horizon=4, execute=2, hidden=16, layers=1, train_steps=10, sample_steps=5,
        encoder=EncoderConfig(channels=(4, 4), embedding=8),
    )  # fmt: skip
    return DiffusionPolicy(Size(pipeline.observer.spec.size, pipeline.actions.size, pipeline.extra_inputs), config)


def test_recorded_pictures_equal_the_observations(seeing: Any, dataset: Path) -> None:
    episodes = load_episodes(dataset, EnvInfo.of(Pipeline(seeing.interface)))
    assert [len(e["action"]) for e in episodes] == [6, 6, 6]
    env = TaskEnv(seeing, 1, threads=1)
    spec = env.pipeline.observation_spec
    for episode in episodes:
        spec.check({k: v for k, v in episode.items() if k in spec})
    env.close()
    differ = [(a[WRIST].float() - b[WRIST].float()).abs().mean() for a, b in zip(episodes, episodes[1:], strict=False)]
    assert min(differ) > 1, "episodes differ"
    env = TaskEnv(seeing, 2, threads=1)
    first, _ = env.reset(seed=training_seed(0))
    env.close()
    for i, episode in enumerate(episodes[:2]):
        assert torch.equal(episode["observation.state"][0], first["observation.state"][i])
        for key in (FRONT, WRIST):
            shown, seen = episode[key][0].float(), first[key][i].float()
            assert (shown - seen).abs().mean() < 6, "error of the video compression"


def test_bundle_checks_pictures_and_cameras(seeing: Any, panda: Any) -> None:
    interface = replace(seeing.interface, success="lifted:cube:0.12")
    bundle = Bundle(policy_of(seeing), interface, panda.fingerprint())
    bundle.check_robot(panda)
    bundle.check_task(interface)
    other = replace(interface, pictures=(interface.pictures[0], Picture("wrist", 24, 24)))
    with pytest.raises(BundleError, match="other pictures than task 'panda-lift-cameras'"):
        bundle.check_task(other)
    with pytest.raises(BundleError, match="sees camera 'wrist', which robot 'panda' lacks: it has front"):
        bundle.check_robot(replace(panda, cameras=("front",)))
    with pytest.raises(BundleError, match="the policy reads observation.images.front 32x48x3, .*wrist 24x24x3"):
        Bundle(bundle.policy, other, panda.fingerprint()).check_robot(panda)


def test_wrist_camera_moves_with_the_hand(seeing: Any, panda: Any) -> None:
    env = TaskEnv(seeing, 1, threads=1, randomize=False)
    before = env.reset(seed=0)[0]
    for _ in range(4):
        after, *_ = env.step(torch.tensor([[1.0, 0.0, 0.0, 1.0]]))
    env.close()
    moved = [float((after[k] != before[k]).float().mean()) for k in (FRONT, WRIST)]
    assert moved[1] > 2 * moved[0] > 0
    wrist = replace(seeing.scene.cameras[1], body="hnd")
    with pytest.raises(ConfigError, match="mounted on 'hnd', which robot 'panda' lacks; did you mean hand"):
        compile_model(panda, replace(seeing.scene, cameras=(wrist,)))
    with pytest.raises(ValueError, match="not both"):
        replace(wrist, follows=True)


def test_asynchronous_picture_shows_the_moment_of_the_call(seeing: Any) -> None:
    env = TaskEnv(seeing, 1, threads=1)
    env.reset(seed=0)
    now, later = env.engine.render(0, "wrist", 16, 16), env.engine.render_later(0, "wrist", 16, 16)
    for _ in range(6):
        env.step(torch.tensor([[1.0, 0.0, 0.0, 1.0]]))
    assert (later.result() == now).all() and (env.engine.render(0, "wrist", 16, 16) != now).any()
    env.close()


def test_policy_trained_on_recorded_pictures_acts_in_simulation(seeing: Any, dataset: Path, run: Build) -> None:
    data = Demonstrations.of(load_episodes(dataset, EnvInfo.of(Pipeline(seeing.interface))))
    config, policy = SupervisedConfig(updates=3, batch=8, log_every=3), policy_of(seeing)
    train_supervised(Cloning(policy, CloningConfig(warmup=2), 3), data, config, run(), 1, lambda *_: None)
    env = TaskEnv(seeing, 2, threads=1)
    assert evaluate(policy.eval(), env, 2, 0).success == [True, True]
    env.close()
    interface = replace(seeing.interface, pictures=(Picture("front", 32, 32), Picture("other", 32, 32)), cameras=())
    with pytest.raises(UserError, match=r"front +32x48 pixels +32x32 pixels(.|\n)*other +absent +32x32 pixels"):
        load_episodes(dataset, EnvInfo.of(Pipeline(interface)))
