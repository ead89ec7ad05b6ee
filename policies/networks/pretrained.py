"""Find and load pretrained models from a folder or the Hugging Face hub, without running a model's own code.

Weights are read from safetensors only. A network that contains a pretrained model saves the trained weights and a hash
of the model, not the model itself."""

import contextlib
import hashlib
import importlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from robot_rl.util import errors
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeInt, PositiveInt

MODELS = "ROBOT_RL_MODELS"
"""Environment variable: folder to search for models that are missing at their configured path."""
WEIGHTS = "*.safetensors"
READ = ("config.json", WEIGHTS, "tokenizer.json", "tokenizer.model", "*processor_config.json")
"""Names of the files that determine a model's features."""
HASH = "model_sha256"
"""Name of a model's fingerprint among the saved weights."""
ON_HUB = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class PretrainedConfig:
    """Pretrained vision-language model and its adaptation."""

    model: str = ""
    """Folder or name on the Hugging Face hub; empty: the small backbone, trained from scratch."""
    train: Literal["lora", "full", "frozen"] = "lora"
    """Trained weights: lora (low-rank terms of the language model's linear layers, Hu et al. 2021, arXiv 2106.09685),
    full (all weights) or frozen (none)."""
    lora_rank: PositiveInt = 16
    """Rank of the LoRA matrices."""
    lora_alpha: PositiveInt = 32
    """LoRA scaling: the low-rank term has the factor lora_alpha / lora_rank."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of computation; trained weights stay in float32."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass, which saves memory but takes more time."""
    layers: NonNegativeInt = 0
    """Number of first layers of the language model to use, as in SmolVLA; 0: all."""
    pixels: PositiveInt = 224
    """Height and width, pixels, of pictures for models that accept any size (Qwen)."""


require = partial(errors.require, use="a pretrained model", extra="vla")


def find(model: str, weights: bool = True) -> Path:
    """Return a model's folder. If it is not on this machine, download the model from the hub, without weights if
    `weights` is false. ConfigError if there is no such model."""
    named = Path(model).expanduser()
    shelf = os.environ.get(MODELS)
    for place in (named, *([Path(shelf) / named.name] if shelf else [])):
        if (place / "config.json").is_file():
            return place
    if named.is_dir():
        raise ConfigError(f"{named} is no model: it has no config.json; name the folder of a downloaded model")
    hint = f"name its folder, or a folder of models in {MODELS}"
    if not ON_HUB.fullmatch(model):
        raise ConfigError(f"the model's folder {model} does not exist; {hint}")
    try:
        files = [name for name in (*READ, "*.json", "*.txt") if weights or name != WEIGHTS]
        return Path(require("huggingface_hub").snapshot_download(model, allow_patterns=files))
    except (OSError, ValueError) as error:  # base classes of the package's own errors
        raise ConfigError(
            f"the model {model} is no folder here, not in the cache, and cannot be downloaded "
            f"({str(error).strip().splitlines()[0]}); download it where there is a network and {hint}"
        ) from None


def fingerprint(folder: Path, weights: bool = True) -> bytes:
    """Return the sha256 of a model's configuration, tokenizer, picture statistics and (if `weights`) weights."""
    total = hashlib.sha256()
    for file in sorted({file for pattern in READ for file in folder.glob(pattern) if weights or pattern != WEIGHTS}):
        with file.open("rb") as data:
            total.update(f"{file.name} {hashlib.file_digest(data, 'sha256').hexdigest()}\n".encode())
    return total.digest()


def add_fingerprint(module: nn.Module, model: str, folder: Path, weights: bool = True) -> None:
    """Add the fingerprint of `model` to a module's state; loading another fingerprint raises ConfigError."""
    meta = torch.get_default_device().type == "meta"
    digest = bytes(32) if meta else fingerprint(folder, weights)
    module.register_buffer(HASH, torch.tensor(list(digest), dtype=torch.uint8))

    def check(built: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        saved, own = state.get(prefix + HASH), built.get_buffer(HASH)
        if saved is not None and not torch.equal(saved.cpu(), own.cpu()):
            ours, theirs = (bytes(value.tolist()).hex()[:12] for value in (own, saved))
            raise ConfigError(
                f"the model {model} is another than the policy was trained on: its sha256 begins with {ours}, "
                f"not {theirs}; bring that model back, or train the policy again"
            )

    module.register_load_state_dict_pre_hook(check)


def load_config(folder: Path, layers: int) -> Any:
    """Return a model's configuration, cut to the first `layers` layers (0: all). ConfigError if the model's type is
    unknown or the model has fewer layers."""
    transformers = require("transformers")
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{folder / 'config.json'} is of no model that the installed transformers knows "
            f"({str(error).strip().splitlines()[0]}); models that bring their own code are not run: name another"
        ) from None
    if layers:
        text = config.get_text_config()
        if layers > (count := text.num_hidden_layers):
            raise ConfigError(f"{folder} has {count} layers, not {layers}; lower --policy.encoder.pretrained.layers")
        text.num_hidden_layers = layers
        if getattr(text, "layer_types", None):
            text.layer_types = text.layer_types[:layers]
    return config


def load_tokenizer(folder: Path) -> Any:
    """Return a model's tokenizer; ConfigError if the folder has none."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise ConfigError(f"{folder} has no tokenizer: tokenizer.json is missing; copy all of the model's files")
    try:
        tokenizers = require("transformers").AutoTokenizer
        return tokenizers.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # tokenizers have no common base class of errors
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"the tokenizer of {folder} cannot be read ({reason}); copy it again") from None


def normalized(pictures: Tensor, side: int, mean: Tensor, std: Tensor) -> Tensor:
    """Return uint8 pictures (B, H, W, 3) as floats (B, 3, side, side), resized to `side` pixels (0: not resized) and
    standardized by `mean` and `std`."""
    x = pictures.permute(0, 3, 1, 2).float() / 255
    if side:
        x = nn.functional.interpolate(x, (side, side), mode="bilinear", align_corners=False, antialias=True)
    return (x - mean) / std


def load_statistics(folder: Path) -> dict[str, Tensor]:
    """Return a model's mean and std (3, 1, 1) of RGB values in [0, 1]."""
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (folder / name).is_file():
            values = json.loads((folder / name).read_bytes())
            values = values.get("image_processor", values)
            if "image_mean" in values and "image_std" in values:
                return {k: torch.tensor(values[f"image_{k}"]).view(3, 1, 1) for k in ("mean", "std")}
    raise ConfigError(
        f"{folder} does not say how pictures are normalized: preprocessor_config.json with image_mean and image_std "
        "is missing; copy all of the model's files"
    )


def load_model(folder: Path, config: Any, dtype: torch.dtype) -> Any:
    """Return a model without its head. ConfigError names missing weights; on the device "meta" the model needs none."""
    auto = require("transformers").AutoModel
    if torch.get_default_device().type == "meta":
        return auto.from_config(config, dtype=dtype, trust_remote_code=False)
    _require_weights(folder)
    try:
        with _quiet():
            model, info = auto.from_pretrained(
                folder, config=config, dtype=dtype, trust_remote_code=False, local_files_only=True,
                use_safetensors=True, output_loading_info=True,
            )  # fmt: skip
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"the weights of {folder} cannot be read ({reason}); copy the folder again") from None
    for kind in ("missing_keys", "mismatched_keys"):
        if lacking := sorted(map(str, info[kind])):
            raise ConfigError(
                f"{folder} lacks {len(lacking)} of the weights that its config.json describes, first {lacking[0]}; "
                "copy the folder again"
            )
    return model


def save_only_trained(module: nn.Module, name: str) -> None:
    """Make `module` save only the trained weights of its pretrained model `module.<name>`; loading keeps the rest."""
    model = module.get_submodule(name)
    trained = {f"{name}.{key}" for key, weight in model.named_parameters() if weight.requires_grad}
    kept = {f"{name}.{key}" for key in model.state_dict()} - trained

    def leave_out(built: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        for key in kept:
            state.pop(prefix + key, None)

    def fill_in(built: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        own = dict(built.named_parameters()) | dict(built.named_buffers())
        state.update({prefix + key: own[key].detach() for key in kept})

    module.register_state_dict_post_hook(leave_out)
    module.register_load_state_dict_pre_hook(fill_in)


def _require_weights(folder: Path) -> None:
    """Raise ConfigError if a file of a model's weights is missing."""
    index = folder / "model.safetensors.index.json"
    names = set(json.loads(index.read_bytes())["weight_map"].values()) if index.is_file() else {"model.safetensors"}
    if missing := sorted(name for name in names if not (folder / name).is_file()):
        raise ConfigError(
            f"{folder} has no weights: {missing[0]} is missing; copy all of the model's files (pickled ones, .bin, are "
            "not read)"
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings of transformers about omitted layers, and its progress bars."""
    logging = importlib.import_module("transformers.utils.logging")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
