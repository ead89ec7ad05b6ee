"""`robot-rl export`, and what `evaluate` and `deploy` do with its file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from policies.base import Size
from policies.bundle import Bundle, load_bundle, save_bundle
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from robot_rl.cli import main as cli
from robot_rl.interface.pipeline import Pipeline

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in an empty folder; what the runtime's own code prints is seen as well."""
    monkeypatch.chdir(tmp_path)

    def call(*argv: object) -> tuple[int, str, str]:
        try:
            code = cli.main([str(a) for a in argv])
        finally:
            torch.set_num_threads(1)
        out, err = capfd.readouterr()
        return code, out, err

    return call


@pytest.fixture
def bundle(walk: Callable[..., Any], go2: Any, tmp_path: Path) -> Path:
    """A walking policy that moves, in a run folder."""
    interface = walk().interface
    pipeline = Pipeline(interface)
    size = Size(pipeline.observer.spec.size, pipeline.actions.size)
    policy = FeedforwardPolicy(size, FeedforwardConfig(hidden=(16,), history=2))
    torch.nn.init.normal_(policy.actor[-1].weight, std=0.1)
    save_bundle(Bundle(policy, interface, go2.fingerprint(), {"commit": "c0ffee"}), tmp_path / "walk" / "bundle")
    return tmp_path / "walk" / "bundle"


def test_export_writes_compares_and_times(run: Run, bundle: Path) -> None:
    code, out, err = run("export", "walk", "--calls", "20", "--json")
    said = json.loads(out)
    assert code == 0 and err == "", err
    assert said["file"] == "walk/bundle/policy.onnx" and said["bytes"] == (bundle / "policy.onnx").stat().st_size
    assert said["history"] == 2 and 0 <= said["difference"] <= 1e-4
    for name in ("torch", "onnx"):
        assert 0 < said[f"{name}_p50_us"] <= said[f"{name}_p99_us"]
    assert said["torch_over_onnx_p50"] == pytest.approx(said["torch_p50_us"] / said["onnx_p50_us"])
    assert {p.name for p in bundle.iterdir()} == {"policy.json", "policy.safetensors", "policy.onnx", "policy.yaml"}


def test_both_runtimes_walk_alike(run: Run, bundle: Path) -> None:
    # Gentle actions: where a robot tumbles, a difference of one rounding decides when it lies.
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
def test_what_does_not_fit_is_refused_before_anything_moves(run: Run, bundle: Path, command: str) -> None:
    words = [command, "walk", "--runtime", "onnx", *(["--robot", "go2"] if command == "deploy" else [])]
    before = sorted(bundle.parent.parent.iterdir())

    def refused(*told: str) -> None:
        code, out, err = run(*words)
        assert code == 2 and out == "" and err.count("\n") == 1 and err.startswith("robot-rl: "), err
        assert all(word in err for word in told), err
        assert sorted(bundle.parent.parent.iterdir()) == before, "no run folder was made"

    refused("no policy.onnx", "robot-rl export walk/bundle")
    assert run("export", "walk", "--calls", "1")[0] == 0
    model = onnx.load(bundle / "policy.onnx")
    next(p for p in model.metadata_props if p.key == "damping").value = json.dumps([2.0] * 12)
    onnx.save(model, bundle / "policy.onnx")
    refused("damping is [2.0, ", ", 1.0] on robot go2", "robot-rl export walk/bundle")
    (bundle / "policy.onnx").write_bytes(b"not a model")
    refused("walk/bundle/policy.onnx is damaged")


def test_nothing_to_time_and_an_unknown_runtime_are_refused(run: Run, bundle: Path) -> None:
    code, _, err = run("export", bundle, "--calls", "0")
    assert code == 2 and "--calls is 0" in err and not (bundle / "policy.onnx").exists()
    code, _, err = run("evaluate", "random:panda-lift", "--runtime", "onnx")
    assert code == 2 and "leave out --runtime onnx" in err
    with pytest.raises(SystemExit) as end:
        run("evaluate", bundle, "--runtime", "tflite")
    assert end.value.code == 2
