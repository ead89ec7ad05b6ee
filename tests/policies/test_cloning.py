"""Behaviour cloning of multimodal data, and bundles of cloned policies."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from policies.actor import GaussianPolicy
from policies.base import Policy, Size
from policies.bundle import Bundle, BundleError, load_bundle, save_bundle
from policies.flow import TIME_SCALE, FlowConfig, FlowPolicy
from policies.networks.gaussian import GaussianConfig
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.util.errors import ConfigError, UserError

Build = Callable[..., Any]
UPDATES = 500


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def flow(**config: Any) -> FlowPolicy:
    numbers: dict[str, Any] = dict(horizon=2, execute=2, hidden=64, layers=2, sample_steps=10)
    return FlowPolicy(Size(1, 1), FlowConfig(**(numbers | config)))


def cloned(policy: Policy) -> Policy:
    """Clone actions -0.6 or 0.6 for observation 1, and 0 for observation -1."""
    agent = Cloning(policy, CloningConfig(lr=1e-2, warmup=20, ema_decay=0.99), UPDATES)
    generator = rng()
    for _ in range(UPDATES):
        side = (torch.rand(128, generator=generator) < 0.5).float() * 2 - 1
        state = (torch.rand(128, 1, generator=generator) < 0.5).float() * 2 - 1
        chunk = (0.6 * side * (state[:, 0] > 0))[:, None, None].expand(-1, policy.horizon, 1)
        agent.update({"observation.state": state, "action": chunk}, generator)
    agent.finish()
    return policy


@pytest.mark.parametrize("kind", ["flow", "epsilon", "sample"])
def test_both_modes_are_learned_separately(diffusion: Build, kind: Any) -> None:
    small = dict(horizon=2, hidden=64, layers=2, train_steps=20, sample_steps=20)
    policy = cloned(flow() if kind == "flow" else diffusion(1, 1, **small, prediction=kind))
    chunks = policy.act({"observation.state": torch.ones(300, 1)}, rng(1))
    assert chunks.shape == (300, 2, 1)
    near = ((chunks.abs() - 0.6).abs() < (0.2 if kind == "flow" else 0.3)).all(1).flatten()
    assert near.float().mean() > 0.8, "near a mode"
    if kind == "flow":
        assert (chunks.abs() < 0.2).any(1).float().mean() < 0.08, "not between the modes"
        assert (chunks[:, 0, 0].sign() == chunks[:, 1, 0].sign()).float().mean() > 0.97, "one mode per chunk"
    assert 0.35 < (chunks[:, 0, 0] > 0).float().mean() < 0.65
    assert policy.act({"observation.state": -torch.ones(100, 1)}, rng(1)).abs().mean() < 0.1


def test_regression_learns_the_mean_of_both_modes() -> None:
    policy = cloned(GaussianPolicy(Size(1, 1), GaussianConfig(hidden=(64, 64), std=0.1)))
    actions = policy.act({"observation.state": torch.tensor([[1.0], [-1.0]])}, rng())
    assert actions.flatten().tolist() == pytest.approx([0.0, 0.0], abs=0.1)


def test_rate_and_averaged_weights_are_those_of_diffusers() -> None:
    """Checked against the library; importing it takes longer than a short training."""
    from diffusers.optimization import get_scheduler
    from diffusers.training_utils import EMAModel

    policy = GaussianPolicy(Size(1, 1), GaussianConfig(hidden=(8,), std=0.1))
    agent = Cloning(policy, CloningConfig(warmup=5, ema_decay=0.9), 40)
    average = EMAModel(agent.parameters, 0.9, use_ema_warmup=True, power=0.75, foreach=True)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], agent.config.lr)
    schedule = get_scheduler("cosine", optimizer, num_warmup_steps=5, num_training_steps=40)
    for seed in range(45):
        batch = {"observation.state": torch.randn(8, 1, generator=rng(seed)), "action": torch.zeros(8, 1, 1)}
        metrics = agent.update(batch, rng())
        average.step(agent.parameters)
        optimizer.step()
        schedule.step()
        assert float(metrics["bc/lr"]) == pytest.approx(schedule.get_last_lr()[0], rel=1e-6, abs=1e-12)
    agent.finish()
    torch.testing.assert_close([p.detach() for p in agent.parameters], average.shadow_params)


@pytest.mark.parametrize("steps", [1, 10])
@pytest.mark.parametrize("prediction", ["velocity", "sample"])
def test_perfect_predictions_integrate_to_chunks(monkeypatch: Any, steps: int, prediction: str) -> None:
    """Euler steps are exact on straight paths, so an off-by-one in time would miss the chunk."""
    policy, clean = flow(sample_steps=steps, prediction=prediction), torch.rand(4, 2, 1) - 0.5
    times = []

    def predict(chunk: Any, time: Any, condition: Any) -> Any:
        share = time / TIME_SCALE
        times.append(float(share[0]))
        return clean if prediction == "sample" else (clean - chunk) / (1 - share[:, None, None])

    monkeypatch.setattr(policy, "_predict", predict)
    chunk = policy.base({"observation.state": torch.zeros(4, 1)}, policy.noise(4, rng()))
    torch.testing.assert_close(chunk, clean, atol=1e-5, rtol=0)
    assert times == pytest.approx([k / steps for k in range(steps)])


def test_learning_rate_warms_up_and_decays_to_0() -> None:
    agent = Cloning(flow(), CloningConfig(lr=1e-2, warmup=10), 50)
    batch = {"observation.state": torch.zeros(4, 1), "action": torch.zeros(4, 2, 1)}
    rates = [float(agent.update(batch, rng())["bc/lr"]) for _ in range(50)]
    assert max(rates) == pytest.approx(1e-2, rel=0.01) and rates.index(max(rates)) in (9, 10)
    assert rates[0] < 2e-3 and rates[-1] < 1e-4


def test_policy_without_a_loss_is_refused(residual: Build) -> None:
    with pytest.raises(ConfigError, match="no method loss"):
        Cloning(residual(), CloningConfig(), 10)


OUTSIDE = """
from dataclasses import dataclass
import torch
from policies.base import Policy, Size

@dataclass(frozen=True)
class GainConfig:
    gain: float = 2.0

class Gain(Policy):
    class_name, config_class = "another_package:Gain", GainConfig
    horizon = execute = 1

    def __init__(self, size, config=None):
        super().__init__()
        self.size, self.config = size, config or GainConfig()
        self.weight = torch.nn.Parameter(torch.randn(size.observation, size.action))

    def act(self, observation, rng):
        return (self.config.gain * observation["observation.state"] @ self.weight).tanh()[:, None]

NUMBER = 3
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "another_package.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ROBOT_RL_IMPORTS", "another_package,no_such_package")
    yield __import__("another_package")
    sys.modules.pop("another_package", None)


def test_policy_class_of_another_package_is_found_by_path(package: Any, tmp_path: Path) -> None:
    policy = package.Gain(Size(3, 2), package.GainConfig(0.5))
    save_bundle(Bundle(policy, None, {}, task="gym:Toy-v0"), tmp_path / "bundle")
    again, observation = load_bundle(tmp_path / "bundle"), {"observation.state": torch.randn(6, 3, generator=rng(2))}
    assert again.task == "gym:Toy-v0" and again.contract is None
    assert torch.equal(again.policy.act(observation, rng(5)), policy.act(observation, rng(5)))
    assert isinstance(again.policy, package.Gain) and again.policy.config.gain == 0.5
    meta = json.loads((tmp_path / "bundle" / "policy.json").read_text())
    assert meta["policy"]["class"] == "another_package:Gain"


@pytest.mark.parametrize("name", ["no_such_package:Gain", "another_package:Gian", "another_package:NUMBER", "gian"])
def test_missing_policy_class_is_named(package: Any, tmp_path: Path, name: str) -> None:
    save_bundle(Bundle(package.Gain(Size(3, 2)), None, {}), tmp_path / "bundle")
    file = tmp_path / "bundle" / "policy.json"
    file.write_text(file.read_text().replace("another_package:Gain", name))
    with pytest.raises(UserError, match=name.split(":")[-1 if "another" in name else 0]):
        load_bundle(tmp_path / "bundle")


def test_interface_of_a_bundle_without_contract_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="gym:Toy-v0"):
        Bundle(flow(), None, {}, task="gym:Toy-v0").interface  # noqa: B018


def test_unfitted_gaussian_policy_does_not_clip_observations() -> None:
    policy = GaussianPolicy(Size(3, 1), GaussianConfig(hidden=(8,)))
    state = torch.tensor([[-8.0, 0.5, 30.0]])
    assert torch.equal(policy.features({"observation.state": state}), state)
