"""Chunked policies as ONNX graphs: equal to torch, and usable from policy.yaml alone."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from policies.actor import EmbeddedConfig, EmbeddedPolicy, GaussianPolicy
from policies.base import Policy, Size
from policies.bundle import Bundle, load_bundle, save_bundle
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from policies.errors import BundleError
from policies.export import build_graph, export_onnx
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from policies.flow import FlowConfig, FlowPolicy
from policies.networks.encoder import EncoderConfig
from policies.networks.gaussian import GaussianConfig
from policies.onnx import TOLERANCE, OnnxPolicy, example, exportable
from policies.steered import SteeredConfig, SteeredPolicy
from policies.vla.config import BackboneConfig
from policies.vla.flow import VLAFlowConfig, VLAFlowPolicy
from policies.vla.tokens import VLATokensConfig, VLATokensPolicy
from policies.vla.words import words_of
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import LANGUAGE, LANGUAGE_FIELD, ObservationSpec, picture_field
from robot_rl.interface.pipeline import Pipeline
from sim.tasks import tasks

for package in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(package)

FRONT = "observation.images.front"
BLIND, VISUAL = Size(3, 2), Size(3, 2, ObservationSpec.of(**{FRONT: picture_field(16, 16), LANGUAGE: LANGUAGE_FIELD}))
SMALL = {"horizon": 4, "execute": 2, "hidden": 16, "layers": 1, "sample_steps": 3}
ENCODER = EncoderConfig(channels=(4,), embedding=8)
BACKBONE = BackboneConfig(width=16, heads=2, layers=1, readouts=2, channels=(8,), words=words_of(["move the thing"]))


def steered(base: Policy) -> SteeredPolicy:
    return SteeredPolicy(base, SteeredConfig(actor=GaussianConfig(hidden=(16,))))


MAKERS: dict[str, Callable[[], Policy]] = {
    "gaussian": lambda: GaussianPolicy(VISUAL, GaussianConfig(hidden=(16,), horizon=2, encoder=ENCODER)),
    "gaussian with a gripper": lambda: GaussianPolicy(BLIND, GaussianConfig(hidden=(16,), grasp=True)),
    "embedded": lambda: EmbeddedPolicy(BLIND, EmbeddedConfig(hidden=(16,), std=0.2, embedding=8)),
    "diffusion": lambda: DiffusionPolicy(BLIND, DiffusionConfig(**SMALL, train_steps=9)),
    "diffusion that sees": lambda: DiffusionPolicy(VISUAL, DiffusionConfig(**SMALL, train_steps=9, encoder=ENCODER)),
    "flow": lambda: FlowPolicy(BLIND, FlowConfig(**SMALL)),
    "steered": lambda: steered(VLAFlowPolicy(VISUAL, VLAFlowConfig(**SMALL, encoder=BACKBONE))),
    "vla-flow": lambda: VLAFlowPolicy(VISUAL, VLAFlowConfig(**SMALL, encoder=BACKBONE)),
    "vla-tokens": lambda: VLATokensPolicy(
        VISUAL, VLATokensConfig(horizon=4, execute=2, bins=16, kept=2, layers=1, encoder=BACKBONE)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MAKERS)
def test_graph_acts_as_the_policy(name: str) -> None:
    torch.manual_seed(0)
    policy = MAKERS[name]().eval()
    policy.fit({"observation.state": 2 * torch.randn(50, 3) + 1})
    graph = OnnxPolicy(build_graph(exportable(policy), {"a": 1}), policy)
    assert graph.difference(policy) <= TOLERANCE and graph.metadata == {"a": 1}
    observed = example(policy, 3, torch.Generator().manual_seed(1))
    if LANGUAGE in observed:
        observed[LANGUAGE] = encode(["move", "the thing the thing", " ".join(["a"] * 64)])
    ours, theirs = (p.act(observed, torch.Generator().manual_seed(2)) for p in (graph, policy))
    assert ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=0, atol=TOLERANCE)
    other = {**observed, "observation.state": observed["observation.state"] + 1}
    assert not torch.allclose(graph.act(other, torch.Generator().manual_seed(2)), ours), "the state matters"


def random_input(name: str, meta: dict[str, Any], rng: np.random.Generator, text: str) -> np.ndarray[Any, Any]:
    """Return a random value of an input, given its description in policy.yaml."""
    shape = [1 if size == "batch" else size for size in meta["shape"]]
    if "values" in meta:
        return np.array([meta["values"][text]], meta["dtype"])
    if "fields" in meta:
        low, high = ([v for field in meta["fields"] for v in field[end]] for end in ("low", "high"))
        return rng.uniform(low, high, shape).astype(meta["dtype"])
    if "range" in meta:
        return rng.integers(meta["range"][0], meta["range"][1] + 1, shape, dtype=meta["dtype"])
    assert "standard normal" in meta["meaning"], name
    return rng.standard_normal(shape).astype(meta["dtype"])


@pytest.mark.parametrize("name", ["go2-velocity", "tabletop"])
def test_another_program_can_run_the_graph_from_policy_yaml(name: str, tmp_path: Path) -> None:
    """With ONNX Runtime and numpy: a policy with a history, and a policy with pictures and instructions."""
    import onnxruntime

    interface, folder = tasks.get(name).interface, tmp_path / "bundle"
    pipeline = Pipeline(interface)
    size = Size(pipeline.observer.spec.size, pipeline.actions.size, pipeline.extra_inputs)
    if name == "tabletop":
        words = words_of([each.text for each in interface.instructions])
        policy: Policy = VLAFlowPolicy(size, VLAFlowConfig(**SMALL, encoder=replace(BACKBONE, words=words)))
        policy.fit({"observation.state": torch.randn(50, size.observation)})
    else:
        policy = FeedforwardPolicy(size, FeedforwardConfig(hidden=(16,), history=3))
        torch.nn.init.normal_(policy.actor[-1].weight)  # type: ignore[arg-type]
    save_bundle(Bundle(policy.eval(), interface, pipeline.robot.fingerprint()), folder)
    export_onnx(folder)

    meta = yaml.safe_load((folder / "policy.yaml").read_text())
    session, rng = onnxruntime.InferenceSession(folder / "policy.onnx"), np.random.default_rng(0)
    (output,) = (key for key in meta["outputs"] if key != "next_history")
    fields = meta["outputs"][output]["fields"]
    low, high = (np.array([v for field in fields for v in field[end]]) for end in ("low", "high"))
    reference, memory = load_bundle(folder).policy, None
    assert isinstance(load_bundle(folder, "onnx").policy, OnnxPolicy)
    for text in [each.text for each in interface.instructions[:2]] or ["", "", "", ""]:
        given = {key: random_input(key, about, rng, text) for key, about in meta["inputs"].items()
                 if key not in ("start", "history")}  # fmt: skip
        if "history" in meta["inputs"]:
            frames = [size if size != "batch" else 1 for size in meta["inputs"]["history"]["shape"]]
            given |= {"start": np.array([memory is None]), "history": np.zeros(frames, np.float32)}
            given |= {} if memory is None else {"history": memory}
        found = dict(zip([o.name for o in session.get_outputs()], session.run(None, given), strict=True))
        memory = found.get("next_history")
        observation = {"observation.state": given.get("observation", given.get("observation.state"))}
        observation |= {key: given[key] for key in size.pictures}
        observed = {key: torch.from_numpy(value) for key, value in observation.items()}
        if name == "tabletop":
            observed[LANGUAGE] = encode([text])
            wanted = reference.base(observed, torch.from_numpy(given["noise"]))[0]  # type: ignore[operator]
        else:
            wanted = reference.act(observed, torch.Generator())[0]
        physical = low + (found[output].reshape(-1, len(low)) + 1) / 2 * (high - low)
        assert np.abs(physical - pipeline.actions.to_physical(wanted).numpy()).max() <= 1e-5
    assert (meta["horizon"], meta["execute"]) == (reference.horizon, reference.execute)


def test_policies_with_state_sampled_tokens_or_too_large_weights_are_refused(residual: Any, monkeypatch: Any) -> None:
    hot = VLATokensPolicy(VISUAL, VLATokensConfig(horizon=4, execute=2, temperature=1.0, encoder=BACKBONE))
    unfrozen = SteeredConfig(actor=GaussianConfig(hidden=(16,), encoder=ENCODER), frozen_features=False)
    both = SteeredPolicy(VLAFlowPolicy(VISUAL, VLAFlowConfig(**SMALL, encoder=BACKBONE)), unfrozen)
    for policy in (residual(), hot, both):
        with pytest.raises(BundleError, match=f"a {policy.class_name} policy has no ONNX form.*--runtime torch"):
            exportable(policy)
    monkeypatch.setattr("policies.export.LARGEST", 1000)
    with pytest.raises(BundleError, match="GB of weights.*--runtime torch"):
        build_graph(MAKERS["flow"](), {})
