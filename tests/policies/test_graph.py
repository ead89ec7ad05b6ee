"""Policies of chunks as ONNX graphs: they act as in torch, from numbers that another program can prepare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from policies.actor import GaussianPolicy
from policies.base import Policy, Size
from policies.bundle import Bundle, load_bundle, save_bundle
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from policies.embedded import EmbeddedConfig, EmbeddedPolicy
from policies.errors import BundleError
from policies.export import export_onnx
from policies.flow import FlowConfig, FlowPolicy
from policies.metadata import exportable
from policies.networks.encoder import EncoderConfig
from policies.networks.gaussian import GaussianConfig
from policies.onnx import TOLERANCE
from policies.onnx_chunks import OnnxChunks, example
from policies.steered import SteeredConfig, SteeredPolicy
from policies.vla.config import BackboneConfig
from policies.vla.flow import VLAFlowConfig, VLAFlowPolicy
from policies.vla.tokens import VLATokensConfig, VLATokensPolicy
from policies.vla.words import words_of
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import LANGUAGE, LANGUAGE_FIELD, ObservationSpec, picture_field

for package in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(package)

FRONT = "observation.images.front"
BLIND, SEES = Size(3, 2), Size(3, 2, ObservationSpec.of(**{FRONT: picture_field(16, 16), LANGUAGE: LANGUAGE_FIELD}))
SMALL = {"horizon": 4, "execute": 2, "hidden": 16, "layers": 1, "sample_steps": 3}
EYES = EncoderConfig(channels=(4,), embedding=8)
MIND = BackboneConfig(width=16, heads=2, layers=1, readouts=2, channels=(8,), words=words_of(["move the thing"]))


def steered(base: Policy) -> SteeredPolicy:
    return SteeredPolicy(base, SteeredConfig(actor=GaussianConfig(hidden=(16,))))


MAKERS: dict[str, Callable[[], Policy]] = {
    "gaussian": lambda: GaussianPolicy(SEES, GaussianConfig(hidden=(16,), horizon=2, encoder=EYES)),
    "gaussian with a gripper": lambda: GaussianPolicy(BLIND, GaussianConfig(hidden=(16,), grasp=True)),
    "embedded": lambda: EmbeddedPolicy(BLIND, EmbeddedConfig(hidden=(16,), std=0.2, embedding=8)),
    "diffusion": lambda: DiffusionPolicy(BLIND, DiffusionConfig(**SMALL, train_steps=9)),
    "diffusion that sees": lambda: DiffusionPolicy(SEES, DiffusionConfig(**SMALL, train_steps=9, encoder=EYES)),
    "flow": lambda: FlowPolicy(BLIND, FlowConfig(**SMALL)),
    "steered": lambda: steered(VLAFlowPolicy(SEES, VLAFlowConfig(**SMALL, encoder=MIND))),
    "vla-flow": lambda: VLAFlowPolicy(SEES, VLAFlowConfig(**SMALL, encoder=MIND)),
    "vla-tokens": lambda: VLATokensPolicy(
        SEES, VLATokensConfig(horizon=4, execute=2, bins=16, kept=2, layers=1, encoder=MIND)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MAKERS)
def test_a_graph_acts_as_the_policy_does(name: str) -> None:
    from policies.graph import build_graph

    torch.manual_seed(0)
    policy = MAKERS[name]().eval()
    policy.fit({"observation.state": 2 * torch.randn(50, 3) + 1})
    graph = OnnxChunks(build_graph(exportable(policy), {"a": 1}), policy)
    assert graph.difference(policy) <= TOLERANCE and graph.metadata == {"a": 1}
    seen = example(policy, 3, torch.Generator().manual_seed(1))
    if LANGUAGE in seen:
        seen[LANGUAGE] = encode(["move", "the thing the thing", " ".join(["a"] * 64)])
    ours, theirs = (p.act(seen, torch.Generator().manual_seed(2)) for p in (graph, policy))
    assert ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=0, atol=TOLERANCE)
    other = {**seen, "observation.state": seen["observation.state"] + 1}
    assert not torch.allclose(graph.act(other, torch.Generator().manual_seed(2)), ours), "the state counts"


def test_another_program_needs_the_file_alone(task: Callable[..., Any], panda: Any, tmp_path: Path) -> None:
    import onnxruntime

    from robot_rl.interface.pipeline import Pipeline

    pipeline = Pipeline(task().interface)
    size = Size(pipeline.observer.spec.size, pipeline.actions.size)
    made = DiffusionPolicy(size, DiffusionConfig(**SMALL, train_steps=9)).eval()
    save_bundle(Bundle(made, task().interface, panda.fingerprint()), tmp_path / "lift")
    policy, exported, apart = export_onnx(tmp_path / "lift")
    assert apart <= TOLERANCE
    session = onnxruntime.InferenceSession((tmp_path / "lift" / "policy.onnx").read_bytes())
    state, noise = np.ones((1, size.observation), np.float32), np.full((1, 4, size.action), 0.3, np.float32)
    chunk = session.run(["chunk"], {"observation.state": state, "noise": noise})[0]
    expected = made.base({"observation.state": torch.from_numpy(state)}, torch.from_numpy(noise))
    assert np.abs(chunk - expected.numpy()).max() <= TOLERANCE
    loaded = load_bundle(tmp_path / "lift", "onnx").policy
    assert isinstance(loaded, OnnxChunks) and (loaded.horizon, loaded.execute) == (4, 2)
    assert (loaded.metadata["horizon"], loaded.metadata["execute"], loaded.metadata["history"]) == (4, 2, 1)
    assert not list(loaded.parameters()), "torch's weights are not its own"


def test_what_remembers_or_draws_tokens_is_refused(residual: Callable[..., Any]) -> None:
    hot = VLATokensPolicy(SEES, VLATokensConfig(horizon=4, execute=2, temperature=1.0, encoder=MIND))
    unfrozen = SteeredConfig(actor=GaussianConfig(hidden=(16,), encoder=EYES), frozen_features=False)
    both = SteeredPolicy(VLAFlowPolicy(SEES, VLAFlowConfig(**SMALL, encoder=MIND)), unfrozen)
    for policy in (residual(), hot, both):
        with pytest.raises(BundleError, match=f"a {policy.class_name} policy has no ONNX form.*--runtime torch"):
            exportable(policy)


def test_weights_beyond_what_a_file_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from policies import graph

    monkeypatch.setattr(graph, "LARGEST", 1000)
    with pytest.raises(BundleError, match="GB of weights.*--runtime torch"):
        graph.build_graph(MAKERS["flow"](), {})
