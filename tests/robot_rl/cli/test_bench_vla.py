"""`robot-rl bench vla`: skipped without a GPU, and plausible on a tiny network."""

import json
from typing import Any

import pytest
import torch

from robot_rl.cli.bench.vla import SMOLVLM, Vla
from robot_rl.cli.main import main

pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[vla]'")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_skipped_without_a_gpu(capsys: Any) -> None:
    assert main(["bench", "vla", "--json"]) == 0
    assert "no GPU" in json.loads(capsys.readouterr().out)["skipped"]


def test_figures_of_a_tiny_network() -> None:
    tiny: dict[str, dict[str, Any]] = {
        "text_config": SMOLVLM["text_config"] | {
            "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 128,
        },
        "vision_config": {
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "image_size": 32, "patch_size": 4,
        },
    }  # fmt: skip
    found = Vla(batch=2, steps=2, chunks=3).measure(torch.device("cpu"), tiny, layers=2)
    assert found["training_steps_per_second"] > 0 and 0 < found["chunk_ms_p50"] <= found["chunk_ms_p99"]
    assert found["memory_gb"] is None and found["device"] == "cpu"
