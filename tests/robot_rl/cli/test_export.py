"""`robot-rl export`, and its ONNX file in `evaluate` and `deploy`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from policies.base import Size
from policies.bundle import Bundle, load_bundle, save_bundle
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from robot_rl.interface.pipeline import Pipeline

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def bundle(walk: Callable[..., Any], go2: Any, tmp_path: Path) -> Path:
    """A legged policy with nonzero actions, in a run folder."""
    interface = walk().interface
    pipeline = Pipeline(interface)
    size = Size(pipeline.observer.spec.size, pipeline.actions.size)
    policy = FeedforwardPolicy(size, FeedforwardConfig(hidden=(16,), history=2))
    torch.nn.init.normal_(policy.actor[-1].weight, std=0.1)
    save_bundle(Bundle(policy, interface, go2.fingerprint(), {"commit": "c0ffee"}), tmp_path / "walk" / "bundle")
    return tmp_path / "walk" / "bundle"


def test_export_writes_compares_and_times_the_policy(run: Run, bundle: Path) -> None:
    code, out, err = run("export", "walk", "--calls", "20", "--json")
    said = json.loads(out)
    assert code == 0 and err == "", err
    assert said["file"] == "walk/bundle/policy.onnx" and said["bytes"] == (bundle / "policy.onnx").stat().st_size
    assert said["history"] == 2 and 0 <= said["difference"] <= 1e-4
    for name in ("torch", "onnx"):
        assert 0 < said[f"{name}_p50_us"] <= said[f"{name}_p99_us"]
    assert said["torch_over_onnx_p50"] == pytest.approx(said["torch_p50_us"] / said["onnx_p50_us"])
    assert {p.name for p in bundle.iterdir()} == {"policy.json", "policy.safetensors", "policy.onnx", "policy.yaml"}


def test_both_runtimes_give_the_same_evaluation(run: Run, bundle: Path) -> None:
    # Small actions: for a falling robot, rounding differences change the length of the episode.
    held = load_bundle(bundle)
    with torch.no_grad():
        held.policy.actor[-1].weight *= 0.1
    save_bundle(held, bundle)
    assert run("export", bundle, "--calls", "1")[0] == 0
    results = []
    for runtime in ("torch", "onnx"):
        words = ["--episodes", "2", "--num-envs", "2", "--threads", "1", "--json", "--runtime", runtime]
        code, out, err = run("evaluate", "walk", *words)
        assert code == 0, err
        results.append(json.loads(out))
    ours, theirs = results
    assert (ours["runtime"], theirs["runtime"]) == ("torch", "onnx")
    assert ours["success"] == theirs["success"] and ours["steps"] == pytest.approx(theirs["steps"], rel=0.05)


@pytest.mark.parametrize("command", ["evaluate", "deploy"])
def test_unsuitable_onnx_file_is_refused_before_any_motion(run: Run, fails: Any, bundle: Path, command: str) -> None:
    words = [command, "walk", "--runtime", "onnx", *(["--robot", "go2"] if command == "deploy" else [])]
    before = sorted(bundle.parent.parent.iterdir())
    fails(words, "no policy.onnx", "robot-rl export walk/bundle")
    assert run("export", "walk", "--calls", "1")[0] == 0
    model = onnx.load(bundle / "policy.onnx")
    next(p for p in model.metadata_props if p.key == "damping").value = json.dumps([2.0] * 12)
    onnx.save(model, bundle / "policy.onnx")
    fails(words, "damping is [2.0, ", ", 1.0] on robot go2", "robot-rl export walk/bundle")
    (bundle / "policy.onnx").write_bytes(b"not a model")
    fails(words, "walk/bundle/policy.onnx is damaged")
    assert sorted(bundle.parent.parent.iterdir()) == before, "no run folder was created"
