"""Ensembles of networks, evaluated as one batched network."""

import math

import torch
from torch import Tensor, nn


class EnsembleLinear(nn.Module):
    """`members` linear layers in one batched product: (E, B, in) -> (E, B, out), E = `members`."""

    def __init__(self, members: int, inputs: int, outputs: int):
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class EnsembleBatchNorm(nn.Module):
    """Batch normalization of each member's features (E, B, W) (Ioffe and Szegedy 2015), without scale and shift."""

    mean: Tensor
    variance: Tensor

    def __init__(self, members: int, width: int, follow: float = 0.01):
        """`follow` is the weight of each new batch in the running statistics."""
        super().__init__()
        self.members, self.follow = members, follow
        self.register_buffer("mean", torch.zeros(members * width))
        self.register_buffer("variance", torch.ones(members * width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.transpose(0, 1).flatten(1)  # torch's kernel for (B, E * W) takes a fifth of the time
        wide = nn.functional.batch_norm(wide, self.mean, self.variance, training=self.training, momentum=self.follow)
        return wide.unflatten(1, (self.members, -1)).transpose(0, 1)


class ResidualBlock(nn.Sequential):
    """Layers with a skip connection (He et al. 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class ActionValues(nn.Module):
    """Ensemble of `members` MLPs of features and actions, with LayerNorm as in RLPD (Ball et al. 2023)."""

    def __init__(
        self, features: int, actions: int, members: int, hidden: tuple[int, ...], layer_norm: bool, outputs: int = 1
    ):
        super().__init__()
        self.members = members
        layers: list[nn.Module] = []
        sizes = (features + actions, *hidden)
        for a, b in zip(sizes[:-1], sizes[1:], strict=True):
            # No scale and shift: the next layer makes them redundant, and they would cost a fifth of the update.
            norm = [nn.LayerNorm(b, elementwise_affine=False)] if layer_norm else []
            layers += [EnsembleLinear(members, a, b), *norm, nn.ReLU()]
        self.net = nn.Sequential(*layers, EnsembleLinear(members, sizes[-1], outputs))

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        """Return outputs (E, B, outputs) of features (B, F) and actions (B, A)."""
        x = torch.cat([features, action], -1)
        return self.net(x.expand(self.members, *x.shape))
