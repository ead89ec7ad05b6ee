"""Observations with two pictures and an instruction, and small random vision-language models of each family."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from policies.base import Size
from robot_rl.interface.language import LONGEST, encode
from robot_rl.interface.observation_spec import LANGUAGE, LANGUAGE_FIELD, ObservationSpec, picture_field

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
FIELDS = {FRONT: picture_field(16, 24), WRIST: picture_field(9, 8), LANGUAGE: LANGUAGE_FIELD}
SIZE = Size(3, 2, ObservationSpec.of(**FIELDS))
TEXTS = ["put the red ball next to the cube", "put the cube next to the red ball", "lift it", "touch the ball"]
SPECIAL = ["<pad>", "<bos>", "<eos>", "<image>", "<start>", "<end>", "<video>"]
PAD, BOS, EOS, IMAGE, START, END, VIDEO = range(len(SPECIAL))
TEXT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 400, "max_position_embeddings": 512, "pad_token_id": PAD,
    "bos_token_id": BOS, "eos_token_id": EOS,
}  # fmt: skip
SIGLIP = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 16,
    "patch_size": 4,
}  # fmt: skip
QWEN = {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}}
QWEN_IDS = {
    "image_token_id": IMAGE, "vision_start_token_id": START, "vision_end_token_id": END, "video_token_id": VIDEO,
}  # fmt: skip


def smolvlm(transformers: Any, name: str = "SmolVLM") -> Any:
    parts = {"vision_config": SIGLIP, "text_config": TEXT | {"model_type": "llama"}}
    config = getattr(transformers, f"{name}Config")(**parts, scale_factor=2, image_token_id=IMAGE)
    return getattr(transformers, f"{name}ForConditionalGeneration")(config)


def idefics3(transformers: Any) -> Any:
    return smolvlm(transformers, "Idefics3")


def paligemma(transformers: Any, text: str = "gemma") -> Any:
    config = transformers.PaliGemmaConfig(
        vision_config=SIGLIP | {"model_type": "siglip_vision_model", "projection_dim": 32, "vision_use_head": False},
        text_config=TEXT | {"model_type": text}, image_token_index=IMAGE, image_token_id=IMAGE, projection_dim=32,
    )  # fmt: skip
    return transformers.PaliGemmaForConditionalGeneration(config)


def paligemma2(transformers: Any) -> Any:
    return paligemma(transformers, "gemma2")


def qwen2_vl(transformers: Any) -> Any:
    vision = {"depth": 2, "embed_dim": 24, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2}
    config = transformers.Qwen2VLConfig(vision_config=vision, text_config=TEXT | QWEN, **QWEN_IDS)
    return transformers.Qwen2VLForConditionalGeneration(config)


def qwen2_5_vl(transformers: Any) -> Any:
    vision = {
        "depth": 2, "hidden_size": 24, "out_hidden_size": 32, "intermediate_size": 40, "num_heads": 2, "patch_size": 4,
        "spatial_merge_size": 2, "window_size": 16, "fullatt_block_indexes": [1],
    }  # fmt: skip
    config = transformers.Qwen2_5_VLConfig(vision_config=vision, text_config=TEXT | QWEN, **QWEN_IDS)
    return transformers.Qwen2_5_VLForConditionalGeneration(config)


MAKERS = {
    "smolvlm": smolvlm, "idefics3": idefics3, "paligemma": paligemma, "paligemma2": paligemma2, "qwen2_vl": qwen2_vl,
    "qwen2_5_vl": qwen2_5_vl,
}  # fmt: skip


def observe(n: int = 4, seed: int = 0, texts: list[str] | None = None) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    shapes = SIZE.pictures.items()
    pictures = {k: torch.randint(0, 256, (n, *s), generator=rng, dtype=torch.uint8) for k, s in shapes}
    texts = texts or [TEXTS[k % len(TEXTS)] for k in range(n)]
    return {"observation.state": torch.randn(n, 3, generator=rng), LANGUAGE: encode(texts)} | pictures


def save_tokenizer(transformers: Any, folder: Path) -> None:
    """Save a byte-level tokenizer."""
    import tokenizers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    numbers = {token: k for k, token in enumerate([*SPECIAL, *alphabet])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=numbers, merges=[]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>",
        additional_special_tokens=SPECIAL[IMAGE:], model_max_length=2 * LONGEST,
    ).save_pretrained(folder)  # fmt: skip


def save_model(family: str, folder: Path, seed: int = 0) -> Path:
    """Save a random model with tokenizer and picture statistics, in the format of the hub."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(seed)
    MAKERS[family](transformers).save_pretrained(folder)
    save_tokenizer(transformers, folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5] * 3, "image_std": [0.5] * 3}))
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return the read-only folder of a family's random model, saved once per session."""
    root = tmp_path_factory.mktemp("models")
    return cache(lambda family, seed=0: save_model(family, root / f"{family}-{seed}", seed))
