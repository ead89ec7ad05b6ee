"""Value functions: ensembles of action values, state values, and generalized advantage estimation."""

from typing import Any

import torch
from torch import Tensor, nn

from policies.actor import embedding
from policies.base import RunningNormalizer, elu, mlp
from policies.networks.ensemble import ActionValues, EnsembleBatchNorm, EnsembleLinear, ResidualBlock
from robot_rl.learning.parts.heads import Bins, Head
from robot_rl.util.errors import ConfigError


class Critic(ActionValues):
    """Ensemble of `members` independent action values Q_i(s, a); `head` interprets the network's outputs."""

    def __init__(
        self, features: int, actions: int, members: int, hidden: tuple[int, ...], head: Head, layer_norm: bool = True
    ):
        super().__init__(features, actions, members, hidden, layer_norm, head.outputs)
        self.head = head
        self._start()

    def _start(self) -> None:
        last = self.net[-1]
        if isinstance(self.head, Bins) and isinstance(last, EnsembleLinear):
            self.head.start(last)

    def value(self, features: Tensor, action: Tensor) -> Tensor:
        """Return values (E, B) of E members for B rows of features and actions."""
        return self.head.mean(self(features, action))


class BatchNormCritic(Critic):
    """Critic with batch normalization before each layer, and a skip connection around layers of equal widths.
    Normalization uses the batch's statistics after `train()`, and running statistics initially and after `eval()`."""

    def __init__(self, features: int, actions: int, members: int, hidden: tuple[int, ...], head: Head):
        super().__init__(features, actions, members, hidden, head, layer_norm=False)
        sizes = (features + actions, *hidden, head.outputs)
        layers: list[nn.Module] = []
        for k, (a, b) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
            block = [EnsembleBatchNorm(members, a), *([nn.ReLU()] if k else []), EnsembleLinear(members, a, b)]
            layers += [ResidualBlock(*block)] if a == b and k < len(hidden) else block
        self.net = nn.Sequential(*layers)
        self._start()
        self.eval()


class EmbeddedCritic(Critic):
    """Critic on an embedding g(features, action), which the critic's loss does not train."""

    def __init__(
        self, features: int, actions: int, members: int, hidden: tuple[int, ...], head: Head, layer_norm: bool = True
    ):
        super().__init__(features, 0, members, hidden, head, layer_norm)
        self.pair = embedding(features + actions, features)

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        """Return outputs (E, B, outputs); gradients flow through the embedding to the action only."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and action.requires_grad):
            z = self.pair(torch.cat([features, action], -1))
        return self.net(z.expand(self.members, *z.shape))


def check_critics(config: Any, saved: dict[str, Any]) -> None:
    """Raise ConfigError if the settings `saved` with a bundle's critics differ from an agent's `config`."""
    for name in ("critics", "hidden", "layer_norm", "head", "bins"):
        ours, theirs = getattr(config, name), saved.get(name)
        if theirs is not None and theirs != (list(ours) if isinstance(theirs, list) else ours):
            value = " ".join(map(str, theirs)) if isinstance(theirs, list) else theirs
            raise ConfigError(
                f"the bundle's critics have {name} {theirs}, not {ours}; pass --agent.{name.replace('_', '-')} {value} "
                "to continue with them"
            )


class StateValue(nn.Module):
    """Network for V(s), s being observation and privileged state, with its own normalizer (asymmetric critic, Pinto et
    al. 2018)."""

    def __init__(self, size: int, hidden: tuple[int, ...], terms: int | None = None):
        """`terms`: number of reward terms, each with its own value; None: a single reward."""
        super().__init__()
        self.normalizer = RunningNormalizer(size)
        self.net = mlp([size, *hidden, terms or 1], elu)
        self.terms = terms

    def forward(self, state: Tensor) -> Tensor:
        """Return values (...), or (..., terms) for several reward terms, of states (..., size), not normalized."""
        values: Tensor = self.net(self.normalizer(state))
        return values if self.terms else values.squeeze(-1)


def advantages(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, done: Tensor, discount: float,
    gae_lambda: float | Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return advantages and value targets (T, N) for T steps of N environments (GAE, Schulman et al. 2016, 1506.02438).

    `value` is V(s_t), and `next_value` is V of the state after the step, in the same episode. A truncation bootstraps
    from `next_value`, a termination does not. Advantages do not cross episodes. `gae_lambda` may vary by step (T, N)::

        delta_t = r_t + discount * [not terminated] next_value_t - value_t
        A_t     = delta_t + discount * gae_lambda * [not done] A_{t+1}
    """
    shape = reward.shape
    for name, x in {"value": value, "next_value": next_value, "terminated": terminated, "done": done}.items():
        if x.shape != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, reward {tuple(shape)}")
    delta = reward + discount * torch.where(terminated, 0.0, next_value) - value
    decay = discount * gae_lambda * (~done).to(delta.dtype)
    result = torch.empty_like(delta)
    following = torch.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        following = torch.addcmul(delta[t], decay[t], following)
        result[t] = following
    return result, result + value
