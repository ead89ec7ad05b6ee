"""Choose action bins autoregressively: Liu et al. 2025, "Learning from Suboptimal Data in Continuous Control via
Auto-Regressive Soft Q-Network" (ARSQ, 2502.00288).

Bins are chosen coarse to fine, and dimension by dimension at each level, conditioned on the earlier bins:

    A(s, a) = sum over chosen bins of A_d(s, bin | earlier bins),    sum over a dimension's bins of exp(A_d / alpha) = 1

The policy chooses a bin of action dimension d with probability exp(A_d / alpha); alpha is the entropy coefficient.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from policies.base import Size
from policies.networks.bins import BinsConfig, BinsPolicy
from policies.networks.ensemble import ActionValues
from robot_rl.util.limits import PositiveFloat, PositiveInt


@dataclass(frozen=True)
class AutoregressiveConfig(BinsConfig):
    """Action bins and their advantage network."""

    levels: PositiveInt = 2
    """Number L of refinement levels of each action dimension's range."""
    temperature: PositiveFloat = 0.01
    """Entropy coefficient alpha, in units of the return per nat."""
    conditional: bool = True
    """Condition each bin on the bins that earlier action dimensions chose at the same level; False: dimensions are
    independent, as in CQN."""


class BinAdvantages(nn.Module):
    """Ensemble of two members: each gives state values V(s) and normalized advantages of bins."""

    MEMBERS = 2

    def __init__(self, features: int, actions: int, config: AutoregressiveConfig):
        super().__init__()
        self.actions, self.config = actions, config
        known = actions + config.levels + actions + actions * config.bins
        self.values = ActionValues(features, 0, self.MEMBERS, config.hidden, True)
        self.raw = ActionValues(features, known, self.MEMBERS, config.hidden, True, config.bins)
        for parameter in self.raw.net[-1].parameters():  # every action is equally likely at first
            nn.init.zeros_(parameter)

    def value(self, features: Tensor) -> Tensor:
        """Return the two members' state values (2, B) of features (B, F)."""
        return self.values(features, features[:, :0]).squeeze(-1)

    def advantages(self, features: Tensor, center: Tensor, level: int, bins: Tensor, dimension: Tensor) -> Tensor:
        """Return the two members' normalized advantages (2, N, bins) of one action dimension's bins.

        Args:
            features: (N, F) of the observations
            center: (N, A) centres of the intervals that this level refines
            level: refinement level
            bins: (N, A) bins chosen at this level; only the bins of dimensions below `dimension` are read
            dimension: (N,) index of the action dimension
        """
        c, kind = self.config, features.dtype
        earlier = torch.arange(self.actions, device=bins.device) < dimension[:, None]
        chosen = nn.functional.one_hot(bins, c.bins) * earlier[:, :, None] * c.conditional
        place = nn.functional.one_hot(dimension, self.actions)
        depth = torch.zeros(len(bins), c.levels, dtype=kind, device=bins.device)
        depth[:, level] = 1
        raw = self.raw(features, torch.cat([center, depth, place.to(kind), chosen.flatten(1).to(kind)], 1))
        return raw - c.temperature * (raw / c.temperature).logsumexp(-1, keepdim=True)


class AutoregressivePolicy(BinsPolicy):
    """Choose or sample each dimension's bin in turn, by the minimum of the two ensemble members' advantages."""

    class_name, config_class = "autoregressive", AutoregressiveConfig
    network: BinAdvantages
    config: AutoregressiveConfig

    def __init__(self, size: Size, config: AutoregressiveConfig | None = None):
        super().__init__(size, config or AutoregressiveConfig())
        self.network = BinAdvantages(self.encoder.size, size.action, self.config)

    def advantages(self, network: BinAdvantages, features: Tensor, bins: Tensor) -> Tensor:
        """Return advantages (2, B, L, A, bins) of every bin, given the earlier bins among the chosen ones (B, L, A)."""
        count, levels, actions = bins.shape
        center = self.codec.centers(bins)
        dimension = torch.arange(actions, device=bins.device).repeat(count)
        each = features.repeat_interleave(actions, 0)
        rows = []
        for level in range(levels):
            middle, chosen = (t.repeat_interleave(actions, 0) for t in (center[:, level], bins[:, level]))
            rows.append(network.advantages(each, middle, level, chosen, dimension).unflatten(1, (count, actions)))
        return torch.stack(rows, 2)

    def choose(self, features: Tensor, rng: torch.Generator, explore: bool = False) -> Tensor:
        bins = torch.zeros(len(features), self.codec.levels, self.size.action, dtype=torch.long, device=features.device)
        for level in range(self.codec.levels):
            center = self.codec.centers(bins)[:, level]
            for d in range(self.size.action):
                dimension = torch.full((len(features),), d, device=features.device)
                least = self.network.advantages(features, center, level, bins[:, level], dimension).amin(0)
                if explore:  # the Gumbel-max trick: argmax samples the softmax
                    u = torch.rand(least.shape, generator=rng, device=rng.device).to(least.device)
                    least = least - self.config.temperature * (-u.clamp(1e-7, 1 - 1e-7).log()).log()
                bins[:, level, d] = least.argmax(-1)
        return bins
