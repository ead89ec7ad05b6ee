"""Policy classes by name. A bundle names its class; any other is found by its import path, `module:class`."""

from __future__ import annotations

from robot_rl.util.registry import Registry

policy_classes = Registry(
    "policy class",
    {
        "gaussian": ("policies.actor:GaussianPolicy", "tanh-Gaussian of the observation"),
        "embedded": ("policies.embedded:EmbeddedPolicy", "tanh-Gaussian of a learned embedding"),
        "hilbert": ("policies.hilbert:HilbertPolicy", "tanh-Gaussian of a direction towards the goal"),
        "residual": ("policies.residual:ResidualPolicy", "a correction of a frozen base policy at every step"),
        "steered": ("policies.steered:SteeredPolicy", "a frozen chunked policy whose noise an actor chooses"),
        "best-of": ("policies.best_of:BestOfPolicy", "the best of a flow's actions, and of edits of them, by values"),
        "feedforward": ("policies.feedforward:FeedforwardPolicy", "Gaussian with its own normalizer and history"),
        "decoded": ("policies.decoded:DecodedPolicy", "Gaussian on the noise of a flow that decodes it into actions"),
        "diffusion": ("policies.diffusion:DiffusionPolicy", "diffusion over action chunks"),
        "generative": ("policies.generative:GenerativePolicy", "a flow or one-step map from noise to actions"),
        "coarse-to-fine": ("policies.coarse_to_fine:CoarseToFinePolicy", "zoom into the most valuable bins"),
        "autoregressive": ("policies.autoregressive:AutoregressivePolicy", "bins of each dimension in turn"),
        "flow": ("policies.flow:FlowPolicy", "flow matching over action chunks"),
        "vla-tokens": ("policies.vla.tokens:VLATokensPolicy", "action tokens, of what is seen and said"),
        "vla-flow": ("policies.vla.flow:VLAFlowPolicy", "flow over action chunks of what is seen and said"),
        "smolvla": ("policies.vla.smolvla:SmolVLAPolicy", "an action expert that looks into SmolVLM (LeRobot)"),
    },
    group="robot_rl.policies",
)
