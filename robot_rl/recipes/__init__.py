"""Published methods, each a page that names its parts and numbers."""

from __future__ import annotations

from robot_rl.util.registry import Registry

recipes = Registry(
    "recipe",
    {
        "diffusion-bc": (
            "robot_rl.recipes.diffusion_bc:DiffusionBC",
            "clone demonstrations with a chunked diffusion policy",
        ),
        "resfit": ("robot_rl.recipes.resfit:ResFiT", "residual off-policy RL on a frozen base policy, needs --base"),
        "ppo": ("robot_rl.recipes.ppo:ProximalPolicy", "on-policy RL from nothing, in many environments at once"),
        "hil-serl": (
            "robot_rl.recipes.hil_serl:HilSerl",
            "off-policy RL with a person's corrections, run by `finetune`",
        ),
    },
)
