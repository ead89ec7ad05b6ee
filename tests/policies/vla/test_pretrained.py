"""Pretrained vision-language backbones, with small random models of each family saved by the tests."""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from policies.base import Policy, build_policy
from policies.bundle import Bundle, load_bundle, save_bundle
from policies.networks.pretrained import MODELS, PretrainedConfig, find, fingerprint
from policies.vla.config import BackboneConfig
from policies.vla.flow import VLAFlowConfig, VLAFlowPolicy
from policies.vla.tokens import VLATokensConfig, VLATokensPolicy
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import LANGUAGE
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.util.errors import ConfigError
from tests.policies.vla.conftest import SIZE, TEXTS, observe

for package in ("transformers", "peft"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install -e '.[vla]'")

FAMILIES = ["smolvlm", "paligemma", "qwen2_vl", "qwen2_5_vl"]
families = pytest.mark.parametrize("family", FAMILIES)
Models = Callable[..., Path]


def encoder(model: Path | str, **options: Any) -> BackboneConfig:
    chosen = PretrainedConfig(**{"model": str(model), "lora_rank": 2, "pixels": 16} | options)
    return BackboneConfig(width=16, heads=2, readouts=2, shift=1, pretrained=chosen)


def flow(model: Path | str, **options: Any) -> VLAFlowPolicy:
    torch.manual_seed(0)
    config = VLAFlowConfig(horizon=4, execute=2, hidden=16, layers=1, sample_steps=3, encoder=encoder(model, **options))
    return VLAFlowPolicy(SIZE, config).eval()


def tokens(model: Path | str, **options: Any) -> VLATokensPolicy:
    torch.manual_seed(0)
    config = VLATokensConfig(horizon=4, execute=2, bins=16, kept=2, layers=1, encoder=encoder(model, **options))
    return VLATokensPolicy(SIZE, config).eval()


def cloning(policy: Policy, updates: int = 60) -> Cloning:
    return Cloning(policy.train(), CloningConfig(lr=3e-3, warmup=0, ema_decay=0.9), updates)


def batch() -> dict[str, Tensor]:
    """Return a batch with opposite actions for two instructions in the same state."""
    observation = {k: v[:1].expand(4, *v.shape[1:]) for k, v in observe().items()} | {LANGUAGE: encode(TEXTS[2:] * 2)}
    return observation | {"action": torch.tensor([0.5, -0.5]).repeat(2)[:, None, None].expand(4, 4, 2)}


def sums(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


def features(policy: Policy, observation: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        found: Tensor = policy.encoder(observation["observation.state"], observation)  # type: ignore[operator]
    return found


@pytest.mark.parametrize("family", [*FAMILIES, "idefics3", "paligemma2"])
def test_features_depend_on_every_input_and_not_on_other_rows(family: str, tiny_model: Models) -> None:
    policy, observation = flow(tiny_model(family)), observe()
    before = features(policy, observation)
    assert before.shape == (4, 2 * 16) and policy.encoder.size == 32
    for key, values in observation.items():
        changed = features(policy, observation | {key: values.flip(0)})
        assert not torch.allclose(changed, before, atol=1e-5), key
    alone = [features(policy, {k: v[i : i + 1] for k, v in observation.items()}) for i in range(4)]
    assert torch.allclose(torch.cat(alone), before, atol=1e-4)  # instructions of 33, 33, 7 and 14 tokens
    assert features(policy, observe(1) | {LANGUAGE: torch.zeros_like(encode(["a"]))}).isfinite().all()
    assert features(policy, observe(1, texts=["<image> <image>"])).isfinite().all()


@pytest.mark.parametrize("family", ["smolvlm", "qwen2_5_vl"])
def test_training_learns_resumes_and_keeps_the_frozen_weights(family: str, tiny_model: Models) -> None:
    folder, columns = tiny_model(family), batch()
    files, policy = sums(folder), flow(folder)
    own = {k: v.clone() for k, v in policy.encoder.model.named_parameters() if not v.requires_grad}
    agent, rng = cloning(policy), torch.Generator().manual_seed(0)
    losses = [float(agent.update(columns, rng)["bc/loss"]) for _ in range(30)]
    saved, drawn = deepcopy(agent.state_dict()), rng.get_state()
    losses += [float(agent.update(columns, rng)["bc/loss"]) for _ in range(30)]
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    assert all(torch.equal(dict(policy.encoder.model.named_parameters())[k], v) for k, v in own.items())
    assert sums(folder) == files and not saved["policy"].keys() & {f"encoder.model.{k}" for k in own}
    assert any("lora_A" in k for k in saved["policy"])

    if family == "smolvlm":  # resume from a checkpoint
        again, rng = cloning(flow(folder)), torch.Generator()
        again.load_state_dict(saved)
        rng.set_state(drawn)
        assert [float(again.update(columns, rng)["bc/loss"]) for _ in range(5)] == losses[30:35]


@families
def test_bundle_round_trip_without_model_weights(family: str, tiny_model: Models, tmp_path: Path, same: Any) -> None:
    make = tokens if family == "qwen2_vl" else flow
    policy = make(tiny_model(family), layers=2)
    agent, rng = cloning(policy, 2), torch.Generator().manual_seed(0)
    for _ in range(2):
        agent.update(batch(), rng)
    agent.finish()
    save_bundle(Bundle(policy, None, {}, task="gym:one"), tmp_path / "bundle")
    loaded = load_bundle(tmp_path / "bundle").policy
    assert loaded.config == policy.config and same(loaded.state_dict(), policy.state_dict())
    acts = [p.act(observe(), torch.Generator().manual_seed(1)) for p in (policy, loaded)]
    assert acts[0].shape == (4, 4, 2) and torch.equal(*acts)
    held = load_file(tmp_path / "bundle" / "policy.safetensors")
    assert all("lora_" in name for name in held if ".model." in name)


def test_moved_model_is_found_and_another_refused(tiny_model: Models, tmp_path: Path, monkeypatch: Any) -> None:
    original = shutil.copytree(tiny_model("smolvlm"), tmp_path / "here" / "small")
    policy = flow(original)
    save_bundle(Bundle(policy, None, {}, task="gym:one"), tmp_path / "bundle")
    assert torch.equal(features(deepcopy(policy), observe()), features(policy, observe()))
    assert deepcopy(policy).state_dict().keys() == policy.state_dict().keys()
    original.parent.rename(tmp_path / "robot")
    with pytest.raises(ConfigError, match=f"small does not exist; .*{MODELS}"):
        load_bundle(tmp_path / "bundle")
    monkeypatch.setenv(MODELS, str(tmp_path / "robot"))
    loaded = load_bundle(tmp_path / "bundle").policy
    assert torch.equal(features(loaded, observe()), features(policy, observe()))
    shutil.copytree(tiny_model("smolvlm", 1), tmp_path / "robot" / "small", dirs_exist_ok=True)
    with pytest.raises(ConfigError, match="another than the policy was trained on: its sha256"):
        load_bundle(tmp_path / "bundle")
    monkeypatch.delenv(MODELS)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=f"nobody/nothing is no folder here.*{MODELS}"):
        find("nobody/nothing")


def test_full_training_saves_all_weights_and_frozen_none(tiny_model: Models) -> None:
    policy, frozen = (flow(tiny_model("smolvlm"), train=train) for train in ("full", "frozen"))
    assert all(p.requires_grad for p in policy.parameters())
    assert "encoder.model.text_model.norm.weight" in policy.state_dict()
    agent = cloning(policy, 5)
    for _ in range(5):
        agent.update(batch(), torch.Generator().manual_seed(0))
    again = flow(tiny_model("smolvlm"), train="full")
    again.load_state_dict(policy.state_dict())
    assert torch.equal(features(again.eval(), observe()), features(policy.eval(), observe()))
    assert not any(name.startswith("encoder.model.") for name in frozen.state_dict())
    assert not any(p.requires_grad for p in frozen.encoder.model.parameters())


def test_only_the_first_layers_are_loaded(tiny_model: Models) -> None:
    with pytest.raises(ConfigError, match="has 3 layers, not 4"):
        flow(tiny_model("smolvlm"), layers=4)
    whole, part = (flow(tiny_model("paligemma"), layers=layers, train="frozen") for layers in (0, 1))
    assert [len(p.encoder.model.language_model.layers) for p in (whole, part)] == [3, 1]
    assert not torch.allclose(features(whole, observe()), features(part, observe()), atol=1e-4)


@pytest.mark.parametrize("train", ["lora", "full"])
def test_half_precision_keeps_trained_weights_in_float32(train: str, tiny_model: Models) -> None:
    exact, rough = (flow(tiny_model("qwen2_5_vl"), train=train, dtype=dtype) for dtype in ("float32", "bfloat16"))
    kinds = {p.dtype for p in rough.encoder.model.parameters() if not p.requires_grad}
    assert kinds == ({torch.bfloat16} if train == "lora" else set())
    assert {p.dtype for p in rough.parameters() if p.requires_grad} == {torch.float32}
    near, far = features(exact, observe()), features(rough, observe())
    assert far.dtype == torch.float32 and 0 < (near - far).abs().max() < 0.1 * near.abs().max()
    losses = [float(cloning(rough, 1).update(batch(), torch.Generator().manual_seed(0))["bc/loss"]) for _ in range(2)]
    assert losses[1] != losses[0] and all(map(torch.isfinite, rough.state_dict()["encoder.output.weight"].flatten()))


def test_gradient_checkpointing_gives_the_same_gradients(tiny_model: Models) -> None:
    gradients = []
    for again in (False, True):
        policy = flow(tiny_model("smolvlm"), gradient_checkpointing=again).train()
        policy.loss(observe(), torch.zeros(4, 4, 2), torch.Generator().manual_seed(0)).mean().backward()
        gradients.append({k: p.grad for k, p in policy.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() and any("lora_B" in k for k in gradients[0])
    assert all(torch.allclose(g, gradients[1][k], atol=1e-6) for k, g in gradients[0].items())


def test_policy_on_the_meta_device_allocates_no_model(tiny_model: Models) -> None:
    written = flow(tiny_model("smolvlm"))
    with torch.device("meta"):
        policy = build_policy(json.loads(json.dumps(written.describe())))
    assert all(p.is_meta for p in policy.parameters()) and policy.config == written.config


def drop(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def drop_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.text_model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def truncate(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-100])


def name_a_shard(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def set_type(folder: Path, **more: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "foreign"} | more))


def add_code(folder: Path) -> None:
    (folder / "theirs.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    set_type(folder, auto_map={"AutoConfig": "theirs.Config", "AutoModel": "theirs.Model"})


def use_a_text_model(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())["text_config"]
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))


@pytest.mark.parametrize(("damage", "message"), [
    (drop("config.json"), "has no config.json"),
    (drop("model.safetensors"), "no weights: model.safetensors is missing"),
    (drop("tokenizer.json"), "no tokenizer: tokenizer.json is missing"),
    (drop("preprocessor_config.json"), "preprocessor_config.json with image_mean"),
    (name_a_shard, "model-00002-of-00002.safetensors is missing"),
    (drop_a_weight, "lacks 1 of the weights .*text_model.layers.1.mlp.up_proj.weight"),
    (truncate, "cannot be read"),
    (set_type, "of no model that the installed transformers knows"),
    (add_code, "bring their own code are not run"),
    (use_a_text_model, "type 'llama' are not known; known: smolvlm"),
])  # fmt: skip
def test_damaged_model_folder_is_named(damage: Any, message: str, tiny_model: Models, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model("smolvlm"), tmp_path / "model")
    damage(folder)
    with pytest.raises(ConfigError, match=message):
        flow(folder)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("package", ["transformers", "peft"])
def test_missing_package_is_named(package: str, tiny_model: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_model("smolvlm")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"the package {package}, which is not installed: pip .*\[vla\]"):
        flow(folder)


def test_fingerprint_depends_only_on_files_that_affect_features(tiny_model: Models, tmp_path: Path) -> None:
    before = fingerprint(folder := shutil.copytree(tiny_model("smolvlm"), tmp_path / "model"))
    (folder / "README.md").write_text("a model")
    assert fingerprint(folder) == before
    (folder / "preprocessor_config.json").write_text('{"image_mean": [0.4, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}')
    assert fingerprint(folder) != before


@pytest.mark.parametrize(("family", "make"), [("smolvlm", flow), ("paligemma", tokens)])
def test_model_is_exported_with_its_head(family: str, make: Callable[..., Policy], tiny_model: Models) -> None:
    for name in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name)
    from policies.export import build_graph
    from policies.onnx import OnnxPolicy

    policy = make(tiny_model(family), layers=1)
    assert OnnxPolicy(build_graph(policy, {}), policy).difference(policy) <= 1e-4


def test_family_that_torch_cannot_trace_is_refused(tiny_model: Models) -> None:
    pytest.importorskip("onnxscript")
    from policies.errors import BundleError
    from policies.export import build_graph

    with pytest.raises(BundleError, match="cannot write this vla-flow policy as a graph.*--runtime torch"):
        build_graph(flow(tiny_model("qwen2_vl")), {})
