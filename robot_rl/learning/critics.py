"""Value functions: ensembles of action values, and the value of a state."""

from __future__ import annotations

from torch import Tensor, nn

from policies.base import RunningNormalizer, elu, mlp
from policies.ensemble import ActionValues
from robot_rl.learning.heads import Head


class Critic(ActionValues):
    """`members` independent action values Q_i(s, a), as the head's outputs."""

    def __init__(
        self, features: int, actions: int, members: int, hidden: tuple[int, ...], head: Head, layer_norm: bool = True
    ):
        super().__init__(features, actions, members, hidden, layer_norm, head.outputs)
        self.head = head

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
