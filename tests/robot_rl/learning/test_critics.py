"""An ensemble in one batched product is the same as separate networks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from policies.networks.ensemble import EnsembleLinear
from robot_rl.learning.parts.critics import Critic
from robot_rl.learning.parts.heads import GaussianHead, Head, Scalar

SCALAR = Scalar(-1.0, 1.0)


def test_ensemble_linear_is_a_loop_of_linear_layers() -> None:
    layer = EnsembleLinear(3, 5, 4)
    x = torch.randn(3, 7, 5)
    for k, row in enumerate(layer(x)):
        one = nn.Linear(5, 4)
        one.weight.data, one.bias.data = layer.weight[k].T, layer.bias[k, 0]
        assert torch.allclose(row, one(x[k]), atol=1e-6)


def test_members_start_like_linear_layers_and_differ() -> None:
    layer = EnsembleLinear(4, 64, 32)
    bound = nn.Linear(64, 32).weight.abs().max().item()
    assert 0.9 * bound < layer.weight.abs().max() < 1.1 * bound
    assert not torch.equal(layer.weight[0], layer.weight[1])


def test_normalized_layers_bound_values_far_from_the_data() -> None:
    """Without LayerNorm a value grows with its input, and bootstrapping on unseen actions diverges."""
    critic = Critic(3, 2, members=2, hidden=(16, 16), head=SCALAR)
    near = critic(torch.randn(50, 3), torch.randn(50, 2)).abs().max()
    away = 1e6 * torch.randn(50, 3), 1e6 * torch.randn(50, 2)
    assert critic(*away).abs().max() < 5 * near
    plain = Critic(3, 2, members=2, hidden=(16, 16), head=SCALAR, layer_norm=False)
    assert plain(*away).abs().max() > 1e3 * near


@pytest.mark.parametrize("head", [SCALAR, GaussianHead(-1.0, 1.0)])
def test_critic_members_share_nothing(head: Head) -> None:
    critic = Critic(3, 2, members=3, hidden=(8, 8), head=head)
    features, action = torch.randn(6, 3), torch.randn(6, 2)
    assert critic(features, action).shape == (3, 6, head.outputs)
    values = critic.value(features, action)
    assert values.shape == (3, 6)
    critic(features, action)[1].sum().backward()
    for name, parameter in critic.named_parameters():
        assert parameter.grad is not None and not parameter.grad[[0, 2]].any(), name
        assert name.endswith("bias") or parameter.grad[1].any(), name


def test_critic_reads_features_and_action() -> None:
    critic = Critic(3, 2, members=2, hidden=(8,), head=SCALAR)
    features, action = torch.randn(4, 3), torch.randn(4, 2)
    value = critic.value(features, action)
    assert not torch.allclose(value, critic.value(features + 1, action))
    assert not torch.allclose(value, critic.value(features, action + 1))
    alone = torch.cat([critic.value(features[k : k + 1], action[k : k + 1]) for k in range(4)], 1)
    assert torch.allclose(value, alone, atol=1e-6)
