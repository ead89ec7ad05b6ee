"""The feed-forward policy: history, normalizer and bundle."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from policies.base import RunningNormalizer, Size
from policies.bundle import Bundle, load_bundle, save_bundle
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy, History
from policies.networks.gaussian import divergence, entropy, log_density

Build = Callable[..., Any]


def policy(observation: int = 3, action: int = 2, **config: Any) -> FeedforwardPolicy:
    """Return a tiny policy whose mean depends on the observation."""
    made = FeedforwardPolicy(Size(observation, action), FeedforwardConfig(**({"hidden": (16,)} | config)))
    torch.nn.init.normal_(made.actor[-1].weight)
    return made


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_action_is_the_clipped_mean_small_at_first_and_exploration_adds_noise() -> None:
    one = policy(initial_std=0.3)
    observation = {"observation.state": torch.randn(4000, 3, generator=rng()).mul(0.01)}
    action = one.act(observation, rng())
    assert action.shape == (4000, 1, 2)
    assert torch.equal(action, one.act(observation, rng(1))), "deterministic"
    with torch.no_grad():
        one.actor[-1].weight.mul_(1e3)
        assert one.act(observation, rng()).abs().max() == 1 < one.mean(one.remember(observation)).abs().max()
        one.actor[-1].weight.zero_()
        one.explore = True
        sampled = one.act(observation, rng())
        assert sampled.std() == pytest.approx(0.3, rel=0.05)
        assert torch.equal(sampled, one.act(observation, rng()))
    fresh = FeedforwardPolicy(Size(5, 3), FeedforwardConfig(initial_std=0.4))
    assert fresh.act({"observation.state": torch.randn(50, 5)}, rng()).abs().max() < 0.02
    assert torch.allclose(fresh.log_std.exp(), torch.full((3,), 0.4))


def test_history_stacks_frames_and_reset_clears_it() -> None:
    frames = torch.arange(12.0).view(6, 2, 1)  # (steps, environments, D)
    history = History(3)
    seen = []
    for t in range(6):
        if t == 4:
            history.reset(torch.tensor([1]))
        seen.append(history.push(frames[t]).tolist())
    assert [row[0] for row in seen] == [[0, 0, 0], [0, 0, 2], [0, 2, 4], [2, 4, 6], [4, 6, 8], [6, 8, 10]]
    assert [row[1] for row in seen] == [[1, 1, 1], [1, 1, 3], [1, 3, 5], [3, 5, 7], [9, 9, 9], [9, 9, 11]]
    history.reset()
    assert history.push(frames[0]).tolist() == [[0, 0, 0], [1, 1, 1]]


def test_running_statistics_equal_those_of_all_rows() -> None:
    data = torch.randn(600, 3, generator=rng()) * torch.tensor([3.0, 0.5, 0.0]) + torch.tensor([1.0, -20.0, 7.0])
    normalizer = RunningNormalizer(3)
    assert torch.equal(normalizer(data), data.clamp(-5, 5)), "the identity before the first update"
    for part in data.split([100, 1, 499]):
        normalizer.update(part)
    assert normalizer.count == 600
    assert torch.allclose(normalizer.mean, data.mean(0), rtol=1e-4)
    assert torch.allclose(normalizer.std[:2], data.std(0, correction=0)[:2], rtol=1e-3)
    assert normalizer.std[2] > 0 and normalizer(data).isfinite().all()


def test_bundle_round_trip(task: Build, panda: Any, tmp_path: Path) -> None:
    one = policy(history=2, hidden=(16, 8))
    one.normalizer.update(torch.randn(64, 3) * 4 - 2)
    save_bundle(Bundle(one, task().interface, panda.fingerprint()), tmp_path / "walk")
    again = load_bundle(tmp_path / "walk").policy
    assert isinstance(again, FeedforwardPolicy) and (again.config, again.size) == (one.config, one.size)
    before = {name: value.clone() for name, value in again.state_dict().items()}
    assert torch.equal(before["normalizer.mean"], one.normalizer.mean) and before["normalizer.count"] == 64
    for _ in range(3):
        observation = {"observation.state": torch.randn(4, 3) * 4}
        assert torch.equal(again.act(observation, rng()), one.act(observation, rng()))
    assert all(torch.equal(v, before[k]) for k, v in again.state_dict().items()), "acting changes no state"


def test_wrong_shapes_are_refused() -> None:
    one = policy(history=2)
    with pytest.raises(ValueError, match=r"shape \(2, 4\); the policy reads \(B, 3\)"):
        one.act({"observation.state": torch.zeros(2, 4)}, rng())
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        one.act({"observation.state": torch.zeros(3)}, rng())
    one.act({"observation.state": torch.zeros(2, 3)}, rng())
    with pytest.raises(ValueError, match="history of 2 environments, the observation has 5"):
        one.act({"observation.state": torch.zeros(5, 3)}, rng())


def test_densities_equal_torchs_normal_distribution() -> None:
    action, mean, old = torch.randn(7, 3), torch.randn(7, 3), torch.randn(7, 3)
    log_std, old_log_std = torch.tensor([-1.0, 0.2, 0.5]), torch.tensor([0.0, -0.7, 0.4])
    new = torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
    before = torch.distributions.Independent(torch.distributions.Normal(old, old_log_std.exp()), 1)
    wanted = new.log_prob(action) - before.log_prob(action)
    assert torch.allclose(log_density(action, mean, log_std) - log_density(action, old, old_log_std), wanted, atol=1e-5)
    assert entropy(log_std) == pytest.approx(float(new.entropy()[0]), rel=1e-5)
    expected = torch.distributions.kl_divergence(before, new).mean()
    assert divergence(old, old_log_std, mean, log_std) == pytest.approx(float(expected), rel=1e-5)
    assert divergence(mean, log_std, mean, log_std) == 0
