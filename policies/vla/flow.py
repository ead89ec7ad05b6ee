"""Vision-language-action policy: a flow over chunks as action head, as in pi0 (Black et al. 2024, arXiv 2410.24164), on
the readouts of a backbone, as in Octo."""

from dataclasses import dataclass, field
from typing import Literal

from policies.base import Size
from policies.flow import FlowConfig, FlowPolicy
from policies.vla.backbone import AdaptedBackbone, Backbone, build_backbone
from policies.vla.config import BackboneConfig
from robot_rl.util.limits import NonNegativeFloat


@dataclass(frozen=True)
class VLAFlowConfig(FlowConfig):
    """Flow policy on a vision-language backbone."""

    prediction: Literal["velocity", "sample"] = "sample"
    """Output of the network, see `FlowConfig`."""
    regression: NonNegativeFloat = 1.0
    """Weight of the auxiliary loss that predicts the chunk from the features alone, see `ChunkConfig`."""
    encoder: BackboneConfig = field(default_factory=BackboneConfig)  # type: ignore[assignment]


class VLAFlowPolicy(FlowPolicy):
    """Flow-matching policy conditioned on pictures, instruction and state."""

    class_name, config_class = "vla-flow", VLAFlowConfig  # type: ignore[assignment]

    def __init__(self, size: Size, config: VLAFlowConfig | None = None):
        super().__init__(size, config or VLAFlowConfig())

    def make_encoder(self) -> Backbone | AdaptedBackbone:
        return build_backbone(self.size, self.config.encoder)

    @property
    def words(self) -> tuple[str, ...]:
        known: tuple[str, ...] = self.config.encoder.known
        return known
