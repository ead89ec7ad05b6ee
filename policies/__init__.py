"""Registry of policy classes. Classes of other packages are found by import path, `module:class`."""

from robot_rl.util.registry import Registry

policy_classes = Registry(
    "policy class",
    {
        "gaussian": ("policies.actor:GaussianPolicy", "tanh-Gaussian of the observation"),
        "embedded": ("policies.actor:EmbeddedPolicy", "tanh-Gaussian of a learned embedding"),
        "hilbert": ("policies.hilbert:HilbertPolicy", "tanh-Gaussian of the direction to the goal in an embedding"),
        "play": ("policies.play:PlayPolicy", "a plan drawn for the goal and held for a while, decoded step by step"),
        "planner": ("policies.planner:Planner", "a plan of states by one or two diffusions, and inverse dynamics"),
        "residual": ("policies.residual:ResidualPolicy", "a correction of a frozen base policy at every step"),
        "edited": ("policies.edited:EditedPolicy", "edits of a frozen base policy's chunks"),
        "steered": ("policies.steered:SteeredPolicy", "an actor on the noise of a frozen chunked policy"),
        "best-of": ("policies.best_of:BestOfPolicy", "the highest-valued sample of a flow, edited or not"),
        "feedforward": ("policies.feedforward:FeedforwardPolicy", "Gaussian with its own normalizer and history"),
        "decoded": ("policies.feedforward:DecodedPolicy", "Gaussian on the noise of a flow"),
        "latent": ("policies.latent:LatentActionPolicy", "Gaussian on directions of demonstrated actions"),
        "movement": ("policies.movement:MovementPolicy", "a movement primitive, chosen at an episode's start"),
        "diffusion": ("policies.diffusion:DiffusionPolicy", "diffusion over action chunks"),
        "generative": ("policies.generative:GenerativePolicy", "a flow or one-step map from noise to actions"),
        "coarse-to-fine": ("policies.coarse_to_fine:CoarseToFinePolicy", "zoom into the most valuable bins"),
        "autoregressive": ("policies.autoregressive:AutoregressivePolicy", "bins of each dimension in turn"),
        "flow": ("policies.flow:FlowPolicy", "flow matching over action chunks"),
        "vla-tokens": ("policies.vla.tokens:VLATokensPolicy", "action tokens given pictures and an instruction"),
        "vla-flow": ("policies.vla.flow:VLAFlowPolicy", "flow over action chunks given pictures and an instruction"),
        "smolvla": ("policies.vla.smolvla:SmolVLAPolicy", "an action expert that attends to SmolVLM (LeRobot)"),
    },
    group="robot_rl.policies",
)
