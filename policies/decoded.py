"""Gaussian on the noise of a flow: the policy of GoRL (arXiv 2512.02581).

u ~ N(mean(s), std^2)       action = clip(flow(s, u), -1, 1), before the flow's first fit clip(u, -1, 1)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from policies.base import Observation, Size
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from policies.flow import FlowConfig, FlowPolicy


@dataclass(frozen=True)
class DecodedConfig(FeedforwardConfig):
    """Gaussian actor, followed by a flow that is conditioned on the newest observation."""

    decoder: FlowConfig = field(default_factory=lambda: FlowConfig(horizon=1, execute=1, hidden=64, layers=4))

    def __post_init__(self) -> None:
        if self.decoder.horizon != 1:
            raise ValueError(f"decoder.horizon is {self.decoder.horizon}, and single actions are decoded; make it 1")


class DecodedPolicy(FeedforwardPolicy):
    """Feed-forward policy whose output becomes the noise of a flow once the flow is fitted."""

    class_name, config_class = "decoded", DecodedConfig
    config: DecodedConfig
    fits: Tensor
    """Number of fits of the flow; at 0 the flow is not used."""

    def __init__(self, size: Size, config: DecodedConfig | None = None):
        config = config or DecodedConfig()
        super().__init__(size, config)
        self.decoder = FlowPolicy(size, config.decoder)
        self.register_buffer("fits", torch.zeros((), dtype=torch.long))

    def transform(self, u: Tensor, observation: Observation) -> Tensor:
        if not self.fits:
            return super().transform(u, observation)
        return self.decoder.base(observation, u[:, None])[:, 0]

    @torch.no_grad()
    def anchor(self) -> None:
        """Count a fit and reset the actor to N(0, I), so the policy's distribution is the flow's."""
        self.fits += 1
        head = self.actor[-1]
        assert isinstance(head, nn.Linear)
        for parameter in (head.weight, head.bias, self.log_std):
            parameter.zero_()
