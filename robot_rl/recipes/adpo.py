"""Adaptive diffusion policy optimization: Jiang and Yang 2025, "Adaptive Diffusion Policy Optimization for Robotic
Manipulation" (ADPO, arXiv 2505.08376).

DPPO with an optimizer between Adam and RMSProp for the policy. With agent.mixing 1 it is Adam, with 0 RMSProp; between
them the rule is ours (`robot_rl/learning/parts/mixed.py`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from robot_rl.learning.algorithms.dppo import DPPOConfig
from robot_rl.recipes.dppo import DEFAULTS, DenoisingPPO


@dataclass(frozen=True)
class AdaptiveDenoisingPPO(DenoisingPPO):
    """Improve a diffusion policy from rewards, with an adaptive gradient."""

    agent: DPPOConfig = field(default_factory=lambda: replace(DEFAULTS, mixing=0.5))
