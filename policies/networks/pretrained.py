"""Pretrained models from a folder or the Hugging Face hub: where they lie, and how they are loaded. Only `safetensors`
are read and no code of a model's runs.

What is saved of a network that stands on a model is what was trained, and a hash of the model: it is not copied."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeInt, PositiveInt

MODELS = "ROBOT_RL_MODELS"
"""Environment variable with a folder of models, where one is sought that is not where it is said to be."""
WEIGHTS = "*.safetensors"
READ = ("config.json", WEIGHTS, "tokenizer.json", "tokenizer.model", "*processor_config.json")
"""Files that a model's features depend on."""
HASH = "model_sha256"
"""Name of a model's fingerprint among saved weights."""
ON_HUB = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class PretrainedConfig:
    """A pretrained vision-language model."""

    model: str = ""
    """Its folder, or its name on the Hugging Face hub; empty: the small backbone, which learns from nothing."""
    train: Literal["lora", "full", "frozen"] = "lora"
    """What of it is trained: low-rank additions (Hu et al. 2021, arXiv 2106.09685) to the language model's linear
    layers, all weights, or nothing."""
    lora_rank: PositiveInt = 16
    """Rank of the additions."""
    lora_alpha: PositiveInt = 32
    """The additions count lora_alpha / lora_rank."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """In which it computes; weights that are trained stay in float32."""
    gradient_checkpointing: bool = False
    """Compute each layer again in the backward pass, which takes time and saves memory."""
    layers: NonNegativeInt = 0
    """Layers of the language model that are used, the first ones, as in SmolVLA; 0: all."""
    pixels: PositiveInt = 224
    """Height and width that pictures get, where the model leaves it open (Qwen)."""


def require(name: str) -> Any:
    """Import and return a package that only pretrained models need; ConfigError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError(
            f"a pretrained model needs the package {name}, which is not installed: "
            "pip install -c constraints.txt -e '.[vla]'"
        ) from None


def find(model: str, weights: bool = True) -> Path:
    """Return the folder of a model; one on the hub is downloaded once, or its `weights` are left there. ConfigError
    where there is none."""
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
    except (OSError, ValueError) as error:  # its own errors, too, are of these
        raise ConfigError(
            f"the model {model} is no folder here, not in the cache, and cannot be downloaded "
            f"({str(error).strip().splitlines()[0]}); download it where there is a network and {hint}"
        ) from None


def fingerprint(folder: Path, weights: bool = True) -> bytes:
    """Return the sha256 of what a model's features depend on: weights, configuration, tokenizer, picture statistics."""
    whole = hashlib.sha256()
    for file in sorted({file for pattern in READ for file in folder.glob(pattern) if weights or pattern != WEIGHTS}):
        with file.open("rb") as data:
            whole.update(f"{file.name} {hashlib.file_digest(data, 'sha256').hexdigest()}\n".encode())
    return whole.digest()


def remember(module: nn.Module, model: str, folder: Path, weights: bool = True) -> None:
    """Save a model's fingerprint with the module that was built on it, which then loads on no other model."""
    meta = torch.get_default_device().type == "meta"
    digest = bytes(32) if meta else fingerprint(folder, weights)
    module.register_buffer(HASH, torch.tensor(list(digest), dtype=torch.uint8))

    def check(built: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        saved, here = state.get(prefix + HASH), built.get_buffer(HASH)
        if saved is not None and not torch.equal(saved.cpu(), here.cpu()):
            raise ConfigError(
                f"the model {model} is another than the policy was trained on: its sha256 begins with {_hex(here)}, "
                f"not {_hex(saved)}; bring that model back, or train the policy again"
            )

    module.register_load_state_dict_pre_hook(check)


def _hex(digest: Tensor) -> str:
    return bytes(digest.tolist()).hex()[:12]


def load_config(folder: Path, layers: int) -> Any:
    """Return a model's configuration with its first `layers` layers; ConfigError where it is foreign or has fewer."""
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
        if layers > text.num_hidden_layers:
            raise ConfigError(
                f"{folder} has {text.num_hidden_layers} layers, not {layers}; lower --policy.encoder.pretrained.layers"
            )
        text.num_hidden_layers = layers
        if getattr(text, "layer_types", None):
            text.layer_types = text.layer_types[:layers]
    return config


def load_tokenizer(folder: Path) -> Any:
    """Return a model's tokenizer; ConfigError where it has none."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise ConfigError(f"{folder} has no tokenizer: tokenizer.json is missing; copy all of the model's files")
    try:
        return require("transformers").AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:  # each kind of tokenizer has its own errors
        raise ConfigError(
            f"the tokenizer of {folder} cannot be read ({str(error).strip().splitlines()[0]}); copy it again"
        ) from None


def load_statistics(folder: Path) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of the colours, in [0, 1], that a model expects."""
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (folder / name).is_file():
            values = json.loads((folder / name).read_bytes())
            values = values.get("image_processor", values)
            if "image_mean" in values and "image_std" in values:
                return values["image_mean"], values["image_std"]
    raise ConfigError(
        f"{folder} does not say how pictures are normalized: preprocessor_config.json with image_mean and image_std "
        "is missing; copy all of the model's files"
    )


def load_model(folder: Path, config: Any, dtype: torch.dtype) -> Any:
    """Return a model without its head; on torch's device "meta" without weights. ConfigError names what is missing."""
    auto = require("transformers").AutoModel
    if torch.get_default_device().type == "meta":
        return auto.from_config(config, dtype=dtype, trust_remote_code=False)
    _require_weights(folder)
    try:
        with _quiet():
            model, told = auto.from_pretrained(
                folder, config=config, dtype=dtype, trust_remote_code=False, local_files_only=True,
                use_safetensors=True, output_loading_info=True,
            )  # fmt: skip
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ConfigError(
            f"the weights of {folder} cannot be read ({str(error).strip().splitlines()[0]}); copy the folder again"
        ) from None
    for what in ("missing_keys", "mismatched_keys"):
        if lacks := sorted(map(str, told[what])):
            raise ConfigError(
                f"{folder} lacks {len(lacks)} of the weights that its config.json describes, first {lacks[0]}; copy "
                "the folder again"
            )
    return model


def leave_out_untrained(module: nn.Module, name: str) -> None:
    """Save what of `module.<name>`, a pretrained model, is trained, and take the rest from the model itself."""
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
    """Refuse a folder without its files of weights, naming the first that is missing."""
    index = folder / "model.safetensors.index.json"
    names = set(json.loads(index.read_bytes())["weight_map"].values()) if index.is_file() else {"model.safetensors"}
    if missing := sorted(name for name in names if not (folder / name).is_file()):
        raise ConfigError(
            f"{folder} has no weights: {missing[0]} is missing; copy all of the model's files (pickled ones, .bin, are "
            "not read)"
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from reporting layers that are left out."""
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
