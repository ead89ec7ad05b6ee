"""Policies of chunks as ONNX graphs: they act as in torch, from numbers that another program can prepare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from policies.actor import GaussianPolicy
from policies.base import Policy, Size
from policies.bundle import Bundle, load_bundle, save_bundle
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from policies.embedded import EmbeddedConfig, EmbeddedPolicy
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
    torch.manual_seed(0)
    policy = MAKERS[name]().eval()
    policy.fit({"observation.state": 2 * torch.randn(50, 3) + 1})
    graph = OnnxPolicy(build_graph(exportable(policy), {"a": 1}), policy)
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
    assert isinstance(loaded, OnnxPolicy) and (loaded.horizon, loaded.execute) == (4, 2)
    assert (loaded.metadata["horizon"], loaded.metadata["execute"], loaded.metadata["history"]) == (4, 2, 1)
    assert not list(loaded.parameters()), "torch's weights are not its own"


def prepared(name: str, said: dict[str, Any], rng: np.random.Generator, told: str) -> np.ndarray[Any, Any]:
    """A random value of an input, from what policy.yaml says of it alone."""
    shape = [1 if size == "batch" else size for size in said["shape"]]
    if "values" in said:
        return np.array([said["values"][told]], said["dtype"])
    if "fields" in said:
        low, high = ([v for field in said["fields"] for v in field[end]] for end in ("low", "high"))
        return rng.uniform(low, high, shape).astype(said["dtype"])
    if "range" in said:
        return rng.integers(said["range"][0], said["range"][1] + 1, shape, dtype=said["dtype"])
    assert "standard normal" in said["meaning"], name
    return rng.standard_normal(shape).astype(said["dtype"])


@pytest.mark.parametrize("name", ["go2-velocity", "tabletop"])
def test_policy_yaml_is_all_that_another_program_reads(name: str, tmp_path: Path) -> None:
    """With ONNX Runtime and numpy it gets the bundle's physical actions: of a policy that remembers, and of one that
    sees and is told."""
    import onnxruntime

    interface, folder = tasks.get(name).interface, tmp_path / "bundle"
    pipeline = Pipeline(interface)
    size = Size(pipeline.observer.spec.size, pipeline.actions.size, pipeline.extra_inputs)
    if name == "tabletop":
        words = words_of([each.text for each in interface.instructions])
        made: Policy = VLAFlowPolicy(size, VLAFlowConfig(**SMALL, encoder=replace(MIND, words=words)))
        made.fit({"observation.state": torch.randn(50, size.observation)})
    else:
        made = FeedforwardPolicy(size, FeedforwardConfig(hidden=(16,), history=3))
        torch.nn.init.normal_(made.actor[-1].weight)  # type: ignore[arg-type]
    save_bundle(Bundle(made.eval(), interface, pipeline.robot.fingerprint()), folder)
    export_onnx(folder)

    said = yaml.safe_load((folder / "policy.yaml").read_text())
    session, rng = onnxruntime.InferenceSession(folder / "policy.onnx"), np.random.default_rng(0)
    (output,) = (key for key in said["outputs"] if key != "next_history")
    fields = said["outputs"][output]["fields"]
    low, high = (np.array([v for field in fields for v in field[end]]) for end in ("low", "high"))
    reference, memory = load_bundle(folder).policy, None
    for told in [each.text for each in interface.instructions[:2]] or ["", "", "", ""]:
        given = {key: prepared(key, about, rng, told) for key, about in said["inputs"].items()
                 if key not in ("start", "history")}  # fmt: skip
        if "history" in said["inputs"]:
            frames = [size if size != "batch" else 1 for size in said["inputs"]["history"]["shape"]]
            given |= {"start": np.array([memory is None]), "history": np.zeros(frames, np.float32)}
            given |= {} if memory is None else {"history": memory}
        found = dict(zip([o.name for o in session.get_outputs()], session.run(None, given), strict=True))
        memory = found.get("next_history")
        observation = {"observation.state": given.get("observation", given.get("observation.state"))}
        observation |= {key: given[key] for key in size.pictures}
        seen = {key: torch.from_numpy(value) for key, value in observation.items()}
        if name == "tabletop":
            seen[LANGUAGE] = encode([told])
            wanted = reference.base(seen, torch.from_numpy(given["noise"]))[0]  # type: ignore[operator]
        else:
            wanted = reference.act(seen, torch.Generator())[0]
        physical = low + (found[output].reshape(-1, len(low)) + 1) / 2 * (high - low)
        assert np.abs(physical - pipeline.actions.to_physical(wanted).numpy()).max() <= 1e-5
    assert (said["horizon"], said["execute"]) == (reference.horizon, reference.execute)


def test_what_remembers_or_draws_tokens_is_refused(residual: Callable[..., Any]) -> None:
    hot = VLATokensPolicy(SEES, VLATokensConfig(horizon=4, execute=2, temperature=1.0, encoder=MIND))
    unfrozen = SteeredConfig(actor=GaussianConfig(hidden=(16,), encoder=EYES), frozen_features=False)
    both = SteeredPolicy(VLAFlowPolicy(SEES, VLAFlowConfig(**SMALL, encoder=MIND)), unfrozen)
    for policy in (residual(), hot, both):
        with pytest.raises(BundleError, match=f"a {policy.class_name} policy has no ONNX form.*--runtime torch"):
            exportable(policy)


def test_weights_beyond_what_a_file_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policies.export.LARGEST", 1000)
    with pytest.raises(BundleError, match="GB of weights.*--runtime torch"):
        build_graph(MAKERS["flow"](), {})
