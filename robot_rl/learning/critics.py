"""Value functions: ensembles of action values as one batched network, and the value of a state."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from policies.base import RunningNormalizer, elu, mlp
from robot_rl.learning.heads import Head


class EnsembleLinear(nn.Module):
    """`members` linear layers in one batched product: (E, B, in) -> (E, B, out)."""

    def __init__(self, members: int, inputs: int, outputs: int):
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class Critic(nn.Module):
    """`members` independent action values Q_i(s, a), by default with LayerNorm (Ball et al. 2023, RLPD)."""

    def __init__(
        self, features: int, actions: int, members: int, hidden: tuple[int, ...], head: Head, layer_norm: bool = True
    ):
        super().__init__()
        self.members, self.head = members, head
        layers: list[nn.Module] = []
        sizes = (features + actions, *hidden)
        for a, b in zip(sizes[:-1], sizes[1:], strict=True):
            # No learned scale and shift: the next layer has its own, and they cost a fifth of the update.
            norm = [nn.LayerNorm(b, elementwise_affine=False)] if layer_norm else []
            layers += [EnsembleLinear(members, a, b), *norm, nn.ReLU()]
        self.net = nn.Sequential(*layers, EnsembleLinear(members, sizes[-1], head.outputs))

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        """Return the head's outputs (E, B, outputs) of features (B, F) and actions (B, A)."""
        x = torch.cat([features, action], -1)
        return self.net(x.expand(self.members, *x.shape))

    def value(self, features: Tensor, action: Tensor) -> Tensor:
        """Return values (E, B)."""
        return self.head.mean(self(features, action))


class StateValue(nn.Module):
    """V(s) of observations and privileged state, with its own normalizer (asymmetric critic, Pinto et al. 2018)."""

    def __init__(self, size: int, hidden: tuple[int, ...]):
        super().__init__()
        self.normalizer = RunningNormalizer(size)
        self.net = mlp([size, *hidden, 1], elu)

    def forward(self, state: Tensor) -> Tensor:
        """Return values (...) of raw states (..., size)."""
        return self.net(self.normalizer(state)).squeeze(-1)
