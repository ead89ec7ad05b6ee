"""Behaviour cloning by regression, diffusion or flow: Pomerleau 1988, "ALVINN: An Autonomous Land Vehicle in a Neural
Network"."""

from dataclasses import dataclass

from policies.diffusion import DiffusionConfig, DiffusionPolicy
from policies.flow import FlowConfig, FlowPolicy
from policies.networks.gaussian import GaussianConfig
from robot_rl.recipes.recipe import CloningRecipe


@dataclass(frozen=True)
class BC(CloningRecipe):
    """Clone demonstrations by regression.

    Policy: tanh-Gaussian with a fixed standard deviation, one action per step; loss: squared error of the mean. If
    demonstrations have several modes, the policy averages over them; diffusion-bc and flow-bc do not."""

    policy: GaussianConfig = GaussianConfig(std=0.1)


@dataclass(frozen=True)
class DiffusionBC(CloningRecipe):
    """Clone demonstrations with a diffusion policy over action chunks.

    Chi et al. 2023, "Diffusion Policy: Visuomotor Policy Learning via Action Diffusion" (arXiv 2303.04137). Loss: error
    of denoising."""

    reduced = "an MLP on the newest state; the paper's reads pictures"
    policy: DiffusionConfig = DiffusionConfig()
    policy_class = DiffusionPolicy


@dataclass(frozen=True)
class FlowBC(CloningRecipe):
    """Clone demonstrations with a flow policy over action chunks.

    Lipman et al. 2023, "Flow Matching for Generative Modeling" (arXiv 2210.02747), on action chunks as in Black et al.
    2024, pi0 (arXiv 2410.24164). Loss: error of the predicted clean chunk, which determines the velocity."""

    policy: FlowConfig = FlowConfig(prediction="sample")
    policy_class = FlowPolicy
