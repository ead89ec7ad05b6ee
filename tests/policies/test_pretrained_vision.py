"""Pretrained vision models in the picture encoder, with random models saved by the tests."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from policies.base import Size
from policies.bundle import Bundle, load_bundle, save_bundle
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from policies.networks.encoder import EncoderConfig
from policies.networks.pretrained_vision import VisionConfig
from robot_rl.interface.observation_spec import ObservationSpec, picture_field
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.util.errors import ConfigError

pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[vla]'")

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
SIZE = Size(3, 2, ObservationSpec.of(**{FRONT: picture_field(32, 48), WRIST: picture_field(32, 32)}))
PATCHES: dict[str, Any] = dict(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=8
)
STAGES: dict[str, Any] = dict(hidden_sizes=[8, 16], depths=[1, 1])


@cache
def random_model(kind: str) -> Any:
    import transformers as t

    torch.manual_seed(0)
    clip = dict(text_config=dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=9))
    config = {
        "resnet": lambda: t.ResNetConfig(embedding_size=8, **STAGES),
        "convnext": lambda: t.ConvNextConfig(num_stages=2, **STAGES),
        "dinov2": lambda: t.Dinov2Config(**PATCHES),
        "siglip": lambda: t.SiglipVisionConfig(**PATCHES),
        "clip": lambda: t.CLIPConfig(vision_config=PATCHES, **clip),
        "bert": lambda: t.BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=9),
    }[kind]()
    return t.AutoModel.from_config(config)


@pytest.fixture
def model(tmp_path: Path) -> Callable[[str], Path]:
    def build(kind: str) -> Path:
        folder = tmp_path / kind
        random_model(kind).save_pretrained(folder)
        statistics = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.2, 0.2]}
        (folder / "preprocessor_config.json").write_text(json.dumps(statistics))
        return folder

    return build


def observe(n: int = 4) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(0)
    shapes = SIZE.pictures.items()
    pictures = {key: torch.randint(0, 256, (n, *s), generator=rng, dtype=torch.uint8) for key, s in shapes}
    return {"observation.state": torch.randn(n, 3, generator=rng)} | pictures


def policy(folder: Path, pooling: Any = "all", **vision: Any) -> DiffusionPolicy:
    torch.manual_seed(0)
    chosen = VisionConfig(str(folder), **vision)
    encoder = EncoderConfig(channels=(4,), embedding=5, shift=1, pooling=pooling, vision=chosen)
    config = DiffusionConfig(horizon=4, execute=2, hidden=16, layers=1, train_steps=10, sample_steps=5, encoder=encoder)
    return DiffusionPolicy(SIZE, config)


KINDS = [(kind, "all") for kind in ("resnet", "convnext", "dinov2", "siglip", "clip")]


@pytest.mark.parametrize(("kind", "pooling"), [*KINDS, ("resnet", "places"), ("siglip", "places")])
def test_features_depend_on_every_picture_and_not_on_other_rows(kind: str, pooling: str, model: Any) -> None:
    encoder, observation = policy(model(kind), pooling).eval().encoder, observe()
    state = observation["observation.state"]
    features = encoder(state, observation)
    assert features.shape == (4, 3 + 2 * 5)
    for camera, part in ((FRONT, slice(3, 8)), (WRIST, slice(8, 13))):
        changed = encoder(state, observation | {camera: observation[camera].flip(0)})
        assert (changed[:, part] != features[:, part]).any()
        assert torch.equal(changed[:, :3], features[:, :3])
    alone = [encoder(state[i : i + 1], {k: v[i : i + 1] for k, v in observation.items()}) for i in range(4)]
    assert torch.allclose(torch.cat(alone), features, atol=1e-5)


@pytest.mark.parametrize("train", ["frozen", "full"])
def test_frozen_model_is_not_trained_or_saved(train: str, model: Any, tmp_path: Path, same: Any) -> None:
    folder = model("resnet")
    clone = policy(folder, train=train)
    vision: Any = clone.encoder.vision
    before = {k: v.clone() for k, v in vision.model.state_dict().items()}
    agent, rng = Cloning(clone.train(), CloningConfig(lr=1e-2, warmup=0), 8), torch.Generator().manual_seed(0)
    for _ in range(8):
        agent.update(observe() | {"action": torch.full((4, 4, 2), 0.5)}, rng)
    agent.finish()
    moved = [k for k, v in vision.model.state_dict().items() if not torch.equal(v, before[k])]
    assert bool(moved) == (train == "full") and not [k for k in moved if "running" in k or "num_batches" in k]
    own = [k for k in clone.state_dict() if k.startswith("encoder.vision.model.")]
    assert bool(own) == (train == "full")

    save_bundle(Bundle(clone, None, {}, task="gym:one"), tmp_path / "bundle")
    loaded = load_bundle(tmp_path / "bundle").policy
    assert same(loaded.state_dict(), clone.state_dict())
    acts = [each.act(observe(), torch.Generator().manual_seed(1)) for each in (clone.eval(), loaded)]
    assert torch.equal(*acts)


def test_other_and_missing_models_and_statistics_are_refused(model: Any, tmp_path: Path) -> None:
    folder = model("resnet")
    save_bundle(Bundle(policy(folder), None, {}, task="gym:one"), tmp_path / "bundle")
    (folder / "preprocessor_config.json").write_text('{"image_mean": [0, 0, 0], "image_std": [1, 1, 1]}')
    with pytest.raises(ConfigError, match="is another than the policy was trained on"):
        load_bundle(tmp_path / "bundle")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(ConfigError, match="preprocessor_config.json with image_mean and image_std is missing"):
        policy(folder)
    with pytest.raises(ConfigError, match="does not exist; name its folder"):
        policy(folder.parent / "nowhere")


@pytest.mark.parametrize(("kind", "vision", "message"), [
    ("siglip", {"pixels": 40}, "does not read pictures of 40 pixels.*vision.pixels"),
    ("bert", {}, "does not read pictures of 32x48 pixels"),
])  # fmt: skip
def test_models_that_reject_the_picture_size_are_named(kind: str, vision: Any, message: str, model: Any) -> None:
    with pytest.raises(ConfigError, match=message):
        policy(model(kind), **vision)
