"""Read LeRobot's SmolVLA checkpoints: config.json, model.safetensors and normalizer statistics."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from policies.base import Size
from policies.vla.smolvla import SmolVLAConfig, SmolVLAPolicy
from robot_rl.util.errors import ConfigError

NAMES = {
    "model": "vlm_model_name", "horizon": "chunk_size", "execute": "n_action_steps", "sample_steps": "num_steps",
    "state_size": "max_state_dim", "action_size": "max_action_dim", "longest": "tokenizer_max_length",
    "layers": "num_vlm_layers", "self_every": "self_attn_every_n_layers", "expert_share": "expert_width_multiplier",
    "min_period": "min_period", "max_period": "max_period",
}  # fmt: skip
"""LeRobot's names of settings, by our names."""
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "n_obs_steps": (1,), "attention_mode": ("cross_attn",), "num_expert_layers": (-1, 0),
    "add_image_special_tokens": (False,), "adapt_to_pi_aloha": (False,),
}  # fmt: skip
MODES = {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}
PREFIXES = {
    "model.vlm_with_expert.vlm.model.": "network.vlm.",
    "model.vlm_with_expert.lm_expert.": "network.expert.",
    "model.": "network.",
}
"""Our prefixes of weight names, by LeRobot's prefixes, the longest first."""
OLD_STATISTICS = re.compile(
    r"(?:normalize_inputs|unnormalize_outputs)\.\S*buffer_(?:observation_)?(state|action)\.(mean|std)"
)
"""Names of the statistics among the weights of checkpoints from 2025; later checkpoints have separate files."""
HEAD, EMBEDDING = "network.vlm_with_expert.vlm.lm_head.weight", "network.vlm.text_model.embed_tokens.weight"


def load_smolvla(folder: Path, size: Size, pictures: Mapping[str, str] | None = None, model: str = "") -> SmolVLAPolicy:
    """Return a checkpoint's policy for a task's sizes; ConfigError names missing or unsupported parts.

    `pictures` maps the checkpoint's picture keys to ours where the keys differ. `model` is the folder of the SmolVLM on
    which the checkpoint is built. Cameras named `empty_camera` are dropped because nothing attends to them.
    """
    settings = _json(folder / "config.json")
    if settings.get("type") != "smolvla":
        raise ConfigError(f"{folder} is no checkpoint of SmolVLA: its config.json has type {settings.get('type')!r}")
    for name, known in SUPPORTED.items():
        if settings.get(name, known[0]) not in known:
            raise ConfigError(f"{folder} has {name} {settings[name]!r}, which is not supported; only {known[0]!r} is")
    if (modes := settings.get("normalization_mapping", MODES)) != MODES:
        raise ConfigError(f"{folder} normalizes by {modes}, which is not supported; only {MODES} is")
    for part in ("input_features", "output_features"):
        if not isinstance(settings.get(part), dict) or not all("type" in each for each in settings[part].values()):
            raise ConfigError(f"{folder}/config.json does not say its {part}; copy the checkpoint again")
    taken = {ours: settings[theirs] for ours, theirs in NAMES.items() if theirs in settings}
    taken["layers"] = max(taken.get("layers", 16), 0)
    taken["self_every"] = max(taken.get("self_every", 2), 0)
    visual = [key for key, value in settings["input_features"].items() if value["type"] == "VISUAL"]
    keys = tuple((pictures or {}).get(key, key) for key in visual if "empty_camera" not in key)
    across = settings.get("resize_imgs_with_padding", [512, 512])
    if not across or across[0] != across[1]:
        raise ConfigError(f"{folder} has resize_imgs_with_padding {across!r}, which is not supported; only squares are")
    config = SmolVLAConfig(**taken | {"side": across[0], "pictures": keys} | ({"model": model} if model else {}))
    _require_sizes(folder, settings, size)
    policy = SmolVLAPolicy(size, config)
    weights = _weights(folder)
    wanted = policy.state_dict()
    weights = {name: value.to(wanted[name].dtype) for name, value in weights.items() if name in wanted} | {
        name: value for name, value in wanted.items() if name not in weights and not name.startswith("network.")
    }
    if missing := sorted(wanted.keys() - weights.keys()):
        raise ConfigError(f"{folder} lacks {len(missing)} weights of SmolVLA, first {missing[0]}; copy it again")
    if unfit := [name for name, value in weights.items() if value.shape != wanted[name].shape]:
        shapes = tuple(weights[unfit[0]].shape), tuple(wanted[unfit[0]].shape)
        raise ConfigError(f"{unfit[0]} of {folder} is {shapes[0]}, not {shapes[1]}: another model than {config.model}?")
    policy.load_state_dict(weights)
    return policy.eval()


def _require_sizes(folder: Path, settings: dict[str, Any], size: Size) -> None:
    """Raise ConfigError if the checkpoint's state or action size differs from the task's."""
    found = [
        next((value["shape"][0] for value in settings[part].values() if value["type"] == kind), 0)
        for part, kind in (("input_features", "STATE"), ("output_features", "ACTION"))
    ]
    if found != [size.observation, size.action]:
        raise ConfigError(
            f"{folder} is for {found[0]} states and {found[1]} actions, the task has {size.observation} and "
            f"{size.action}"
        )


def _weights(folder: Path) -> dict[str, Tensor]:
    """Return a checkpoint's weights and statistics under our names."""
    renamed = {}
    for name, value in _tensors(folder / "model.safetensors").items():
        name = name.replace("model._orig_mod.", "model.")  # prefix of compiled policies
        if found := OLD_STATISTICS.fullmatch(name):
            name = f"{found[1]}_{found[2]}"
        theirs = next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")
        renamed[PREFIXES.get(theirs, "") + name.removeprefix(theirs)] = value
    if HEAD in renamed:  # tied weights are saved under one of two names
        renamed.setdefault(EMBEDDING, renamed[HEAD])
    for file in sorted(folder.glob("policy_*normalizer_processor.safetensors")):
        for name, value in _tensors(file).items():
            key, _, kind = name.rpartition(".")
            if kind in ("mean", "std") and key in ("observation.state", "action"):
                renamed[f"{key.removeprefix('observation.')}_{kind}"] = value
    return renamed


def _tensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except FileNotFoundError:
        raise ConfigError(f"{file} is missing; copy the whole checkpoint") from None
    except SafetensorError as error:
        raise ConfigError(f"{file} is damaged ({error}); copy it again") from None


def _json(file: Path) -> dict[str, Any]:
    try:
        settings: dict[str, Any] = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read ({error}); name the folder of a checkpoint") from None
    return settings
