"""Published methods. A recipe is a config: a dataclass in one file with components, hyperparameters and the paper."""

from __future__ import annotations

from robot_rl.util.registry import Registry

recipes = Registry(
    "recipe",
    {
        "bc": ("robot_rl.recipes.bc:BC", "clone demonstrations by regression"),
        "diffusion-bc": (
            "robot_rl.recipes.bc:DiffusionBC",
            "clone demonstrations with a chunked diffusion policy",
        ),
        "flow-bc": ("robot_rl.recipes.bc:FlowBC", "clone demonstrations with a chunked flow policy"),
        "vla-sft": ("robot_rl.recipes.vla_sft:VlaSFT", "clone demonstrations with a policy that sees and reads"),
        "vla-tokens": ("robot_rl.recipes.vla_sft:VlaTokens", "vla-sft, whose actions are tokens"),
        "vla-rl": ("robot_rl.recipes.vla_rl:VlaRL", "PPO on the tokens of a vla-tokens policy, needs --base"),
        "srpo": ("robot_rl.recipes.vla_groups:SelfReferential", "compare the episodes of a vla-tokens policy, needs --base"),
        "grape": ("robot_rl.recipes.vla_groups:Preferences", "prefer a vla-tokens policy's better episodes, needs --base"),
        "consistency": (
            "robot_rl.recipes.consistency:Consistency",
            "distill a diffusion or flow policy into one step, needs --base",
        ),
        "sac": ("robot_rl.recipes.sac:SAC", "off-policy RL from nothing, stochastic policy"),
        "dsac-t": ("robot_rl.recipes.sac:DistributionalSAC", "sac with the spread of returns, whatever their scale"),
        "annealed-q": ("robot_rl.recipes.sac:AnnealedQ", "sac that first values the best action, then its own"),
        "i-qn": ("robot_rl.recipes.sac:IteratedSAC", "sac with a row of critics, each the target of the next one"),
        "flash-sac": (
            "robot_rl.recipes.flash_sac:FlashSAC",
            "sac in few steps and little time, without target networks",
        ),
        "srl": ("robot_rl.recipes.sac:SequenceSAC", "sac that plans actions ahead, to decide seldom"),
        "mr-q": ("robot_rl.recipes.mr_q:ModelRepresentations", "td3 on an embedding that predicts what follows"),
        "td3": ("robot_rl.recipes.td3:TD3", "off-policy RL from nothing, deterministic policy"),
        "rlpd": ("robot_rl.recipes.rlpd:RLPD", "off-policy RL from demonstrations and online data at once"),
        "iql": ("robot_rl.recipes.iql:ImplicitQ", "offline RL from any data by expectiles, then online"),
        "td3-bc": ("robot_rl.recipes.td3:TD3PlusBC", "offline RL from any data by cloning and values, then online"),
        "cal-ql": ("robot_rl.recipes.cal_ql:CalibratedQ", "offline RL with calibrated values, then online"),
        "fql": ("robot_rl.recipes.fql:FlowQ", "offline RL with a one-step actor near a cloned flow, then online"),
        "ofql": ("robot_rl.recipes.fql:OneStepFlowQ", "offline RL with a flow of one step, then online"),
        "cfgrl": ("robot_rl.recipes.cfgrl:Guidance", "offline RL by guiding a flow to better actions"),
        "qc": ("robot_rl.recipes.qc:QChunking", "the most valuable chunk of a cloned flow, offline, then online"),
        "chunks-to-steps": ("robot_rl.recipes.chunks_to_steps:ChunksToSteps", "qc first, rlpd later, on one replay"),
        "expo": ("robot_rl.recipes.expo:EXPO", "the most valuable of a cloned flow's actions and edits of them"),
        "cqn": ("robot_rl.recipes.cqn:CoarseToFineQ", "values of bins, coarse to fine, without an actor"),
        "arsq": ("robot_rl.recipes.arsq:AutoregressiveSoftQ", "soft values of bins, each dimension knowing the last"),
        "dsrl": (
            "robot_rl.recipes.dsrl:DiffusionSteering",
            "RL on the noise of a frozen flow or diffusion policy, needs --base",
        ),
        "porl": ("robot_rl.recipes.porl:PolicyOnly", "off-policy RL from a given policy alone, needs --base"),
        "resfit": ("robot_rl.recipes.resfit:ResFiT", "residual off-policy RL on a frozen base policy, needs --base"),
        "ppo": ("robot_rl.recipes.ppo:ProximalPolicy", "on-policy RL from nothing, in many environments at once"),
        "slim": ("robot_rl.recipes.ppo:SLIM", "ppo with a critic for each term of the reward"),
        "gorl": ("robot_rl.recipes.gorl:GenerativeOnline", "ppo on the noise of a flow, fitted to what was executed"),
        "dppo": ("robot_rl.recipes.dppo:DenoisingPPO", "PPO on a diffusion policy's denoising steps, needs --base"),
        "adpo": ("robot_rl.recipes.dppo:AdaptiveDenoisingPPO", "dppo, with an optimizer between Adam and RMSProp"),
        "rl-100": ("robot_rl.recipes.rl_100:RL100", "diffusion-bc, offline RL through a gate, dppo, then one step"),
        "hil-serl": (
            "robot_rl.recipes.hil_serl:HilSerl",
            "off-policy RL with a person's corrections",
        ),
        "hilp": ("robot_rl.recipes.hilp:HilbertSkills", "ways to any goal, from episodes without rewards"),
        "rlif": ("robot_rl.recipes.rlif:RLIF", "off-policy RL from a person's takeovers alone"),
        "soar": ("robot_rl.recipes.soar:SOAR", "practise alone towards chosen goals, clone what was achieved"),
        "hg-dagger": ("robot_rl.recipes.hg_dagger:HGDAgger", "clone demonstrations and a person's corrections"),
    },
)
