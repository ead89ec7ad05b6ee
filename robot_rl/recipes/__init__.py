"""Published methods as recipes. A recipe is a config, a dataclass in a file that names components, hyperparameters and
paper."""

from typing import Any

from robot_rl.util.errors import ConfigError
from robot_rl.util.registry import Registry, load

_PATHS = {
    "bc": ("bc:BC", "clone demonstrations by regression"),
    "diffusion-bc": ("bc:DiffusionBC", "clone demonstrations with a chunked diffusion policy"),
    "flow-bc": ("bc:FlowBC", "clone demonstrations with a chunked flow policy"),
    "act-jepa": ("act_jepa:PredictiveChunks", "clone demonstrations, with an encoder that also learns without actions"),
    "vla-sft": ("vla_sft:VlaSFT", "clone demonstrations with a policy that reads pictures and instructions"),
    "vla-tokens": ("vla_sft:VlaTokens", "vla-sft, whose actions are tokens"),
    "vla-rl": ("vla_rl:VlaRL", "PPO on the tokens of a vla-tokens policy, needs --base"),
    "srpo": ("srpo:SelfReferential", "group-relative PPO on a vla-tokens policy, needs --base"),
    "grape": ("grape:Preferences", "preferences between a vla-tokens policy's episodes, needs --base"),
    "consistency": ("consistency:Consistency", "distill a diffusion or flow policy into one step, needs --base"),
    "sac": ("sac:SAC", "off-policy RL from scratch, stochastic policy"),
    "dsac-t": ("sac:DistributionalSAC", "sac with a distribution of returns, independent of the reward's scale"),
    "annealed-q": ("sac:AnnealedQ", "sac with values of the best action at first, of the policy's action later"),
    "i-qn": ("sac:IteratedSAC", "sac with a sequence of critics, each the target of the next"),
    "aprl": ("aprl:GrowingRange", "sac with a range of actions that grows while the robot is not surprised"),
    "ads": ("ads:DiscountScheduling", "sac that imitates demonstrated states, without actions and rewards"),
    "flash-sac": ("flash_sac:FlashSAC", "sac with few environment steps, without target networks"),
    "srl": ("srl:SequenceSAC", "sac that plans sequences of actions, for low decision rates"),
    "mr-q": ("mr_q:ModelRepresentations", "td3 on an embedding that predicts the next step"),
    "td3": ("td3:TD3", "off-policy RL from scratch, deterministic policy"),
    "rlpd": ("rlpd:RLPD", "off-policy RL from demonstrations and online data at once"),
    "iql": ("iql:ImplicitQ", "offline RL from any data by expectiles, then online"),
    "awac": ("awac:AWAC", "offline RL by cloning advantageous actions, then online"),
    "td3-bc": ("td3:TD3PlusBC", "offline RL from any data by cloning and values, then online"),
    "cal-ql": ("cal_ql:CalibratedQ", "offline RL with calibrated values, then online"),
    "fql": ("fql:FlowQ", "offline RL with a one-step actor near a cloned flow, then online"),
    "ofql": ("fql:OneStepFlowQ", "offline RL with a one-step flow, then online"),
    "cfgrl": ("iql:Guidance", "offline RL by guiding a flow to better actions"),
    "qc": ("qc:QChunking", "the most valuable chunk of a cloned flow, offline, then online"),
    "chunks-to-steps": ("chunks_to_steps:ChunksToSteps", "qc at first, rlpd later, on one replay"),
    "expo": ("expo:EXPO", "the most valuable of a cloned flow's actions and their edits"),
    "cqn": ("cqn:CoarseToFineQ", "values of action bins, coarse to fine, without an actor"),
    "arsq": ("arsq:AutoregressiveSoftQ", "soft values of action bins, one dimension after another"),
    "dsrl": ("dsrl:DiffusionSteering", "RL on the noise of a frozen flow or diffusion policy, needs --base"),
    "porl": ("rlpd:PolicyOnly", "off-policy RL from a given policy alone, needs --base"),
    "resfit": ("resfit:ResFiT", "residual off-policy RL on a frozen base policy, needs --base"),
    "rlt": ("rlt:RLToken", "RL on edits of a frozen policy's chunks, from a few of its features, needs --base"),
    "ppo": ("ppo:ProximalPolicy", "on-policy RL from scratch, in many environments at once"),
    "slim": ("ppo:SLIM", "ppo with a critic for each term of the reward"),
    "gorl": ("gorl:GenerativeOnline", "ppo on the noise of a flow that is fitted to the executed actions"),
    "skillmimic": ("skillmimic:SkillMimic", "ppo that tracks recorded states, also from those of another skill"),
    "latent-priors": ("latent_priors:LatentPriors", "ppo along the directions of demonstrated actions"),
    "tce": ("tce:TemporallyCorrelatedEpisodes", "ppo on whole movements, with an advantage for each of their segments"),
    "dppo": ("dppo:DenoisingPPO", "PPO on a diffusion policy's denoising steps, needs --base"),
    "adpo": ("dppo:AdaptiveDenoisingPPO", "dppo with an optimizer between Adam and RMSProp, needs --base"),
    "rl-100": ("rl_100:RL100", "diffusion-bc, offline RL with an acceptance test, dppo, then distillation to one step"),
    "hil-serl": ("hil_serl:HilSerl", "off-policy RL with a person's corrections"),
    "hilp": ("hilp:HilbertSkills", "goal reaching from episodes without rewards"),
    "play-lmp": ("play_lmp:LatentPlans", "goal reaching from unlabelled play, by plans that keep its ways apart"),
    "rlif": ("rlif:RLIF", "off-policy RL from a person's takeovers alone"),
    "soar": ("soar:SOAR", "autonomous practice towards chosen goals, cloning of the achieved ones"),
    "sail": ("sail:SAIL", "plans of states by an own and a prior model, improved by own practice"),
    "hg-dagger": ("hg_dagger:HGDAgger", "clone demonstrations and a person's corrections"),
}


def _checked(found: Any, name: str, path: str) -> Any:
    """Return the recipe; ConfigError if it is no dataclass of a recipe."""
    if not (isinstance(found, type) and issubclass(found, load("robot_rl.recipes.recipe:Recipe", "recipe"))):
        raise ConfigError(
            f"{name!r} is no recipe: name a dataclass that derives from robot_rl.recipes.recipe.Recipe, see "
            "docs/add-a-recipe.md"
        )
    own = [field for field, kind in vars(found).get("__annotations__", {}).items() if "ClassVar" not in str(kind)]
    if own and "__dataclass_params__" not in vars(found):
        raise ConfigError(f"recipe {name!r} has settings ({own[0]}) and no @dataclass(frozen=True) above its class")
    return found


recipes = Registry(
    "recipe", {name: (f"robot_rl.recipes.{path}", text) for name, (path, text) in _PATHS.items()}, finish=_checked
)
