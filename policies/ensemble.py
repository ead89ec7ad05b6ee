"""Ensembles of networks as one batched network."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class EnsembleLinear(nn.Module):
    """`members` linear layers in one batched product: (E, B, in) -> (E, B, out)."""

    def __init__(self, members: int, inputs: int, outputs: int):
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class ActionValues(nn.Module):
    """`members` independent functions of features and actions, by default with LayerNorm (Ball et al. 2023, RLPD)."""

    def __init__(
        self, features: int, actions: int, members: int, hidden: tuple[int, ...], layer_norm: bool, outputs: int = 1
    ):
        super().__init__()
        self.members = members
        layers: list[nn.Module] = []
        sizes = (features + actions, *hidden)
        for a, b in zip(sizes[:-1], sizes[1:], strict=True):
            # No learned scale and shift: the next layer has its own, and they cost a fifth of the update.
            norm = [nn.LayerNorm(b, elementwise_affine=False)] if layer_norm else []
            layers += [EnsembleLinear(members, a, b), *norm, nn.ReLU()]
        self.net = nn.Sequential(*layers, EnsembleLinear(members, sizes[-1], outputs))

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        """Return outputs (E, B, outputs) of features (B, F) and actions (B, A)."""
        x = torch.cat([features, action], -1)
        return self.net(x.expand(self.members, *x.shape))
