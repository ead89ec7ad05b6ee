"""The squashed Gaussian against torch.distributions."""

import math

import pytest
import torch
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from policies.networks.gaussian import GaussianActor, GaussianConfig


def actor(**config: object) -> GaussianActor:
    net = GaussianActor(4, 3, GaussianConfig(**({"hidden": (16,)} | config)))  # type: ignore[arg-type]
    torch.nn.init.normal_(net.trunk[-1].weight, std=0.5)
    return net.double()


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def reference(net: GaussianActor, features: torch.Tensor) -> TransformedDistribution:
    mean, log_std = net(features)
    return TransformedDistribution(Independent(Normal(mean, log_std.exp()), 1), [TanhTransform(cache_size=1)])


def test_log_probability_equals_torchs() -> None:
    net = actor()
    features = torch.randn(200, 4, dtype=torch.float64)
    action, log_prob = net.sample(features, rng())
    # The reference computes atanh(action), which is inaccurate near -1 and 1.
    inside = action.abs().amax(-1) < 0.9999
    assert inside.sum() > 100
    expected = reference(net, features).log_prob(action)
    assert torch.allclose(log_prob[inside], expected[inside], atol=1e-5)


def test_log_probability_is_finite_at_saturation() -> None:
    net = actor()
    with torch.no_grad():
        net.trunk[-1].bias[:3] = 30.0
    action, log_prob = net.sample(torch.randn(10, 4, dtype=torch.float64), rng())
    assert log_prob.isfinite().all() and action.abs().max() <= 1
    assert (log_prob > 50).all(), "the density at the limit is high"


def test_samples_have_the_mean_and_std() -> None:
    net = actor(initial_std=0.2)
    with torch.no_grad():
        net.trunk[-1].weight.zero_()
        net.trunk[-1].bias.zero_()[3:] = math.log(0.2)
        net.trunk[-1].bias[0] = 0.5
    action = net.sample(torch.zeros(20_000, 4, dtype=torch.float64), rng())[0].atanh()
    assert action.mean(0).tolist() == pytest.approx([0.5, 0, 0], abs=0.01)
    assert action.std(0).tolist() == pytest.approx([0.2] * 3, rel=0.03)


def test_initial_std_is_as_configured_and_zero_init_starts_at_zero_and_can_learn() -> None:
    _, log_std = GaussianActor(4, 3, GaussianConfig(hidden=(16,), initial_std=0.3))(torch.randn(6, 4))
    assert torch.allclose(log_std.exp(), torch.tensor(0.3))
    net = GaussianActor(4, 3, GaussianConfig(hidden=(16,), zero_init=True))
    mean = net.mean(torch.randn(6, 4))
    assert torch.equal(mean, torch.zeros(6, 3))
    mean.sum().backward()
    assert net.trunk[-1].weight.grad[:3].any()
    assert GaussianActor(4, 3, GaussianConfig(hidden=(16,))).mean(torch.randn(6, 4)).abs().max() > 0


def test_fixed_std_adds_noise_after_tanh_and_clips() -> None:
    net = actor(std=0.5)
    features = torch.randn(5000, 4, dtype=torch.float64)
    action, log_prob = net.sample(features, rng())
    noise = action - net.mean(features)
    assert not log_prob.any() and action.abs().max() == 1
    free = action.abs() < 1
    assert noise[free].abs().max() > 1 and torch.equal(net.sample(features, rng())[0], action)
    assert torch.equal(actor_mean := net.mean(features), net(features)[0].tanh()), actor_mean


def test_log_std_is_bounded() -> None:
    net = actor()
    with torch.no_grad():
        net.trunk[-1].bias[3:] = torch.tensor([-100.0, 0.0, 100.0], dtype=torch.float64)
        net.trunk[-1].weight[3:] = 0
    _, log_std = net(torch.randn(2, 4, dtype=torch.float64))
    assert log_std[0].tolist() == [net.MIN_LOG_STD, 0.0, net.MAX_LOG_STD]
