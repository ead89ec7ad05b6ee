"""policy.onnx is equal to the bundle's policy, or refused with the difference."""

import json
import resource
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.base import Size
from policies.bundle import Bundle, load_bundle, save_bundle
from policies.errors import BundleError
from policies.export import build_graph, export_onnx
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from policies.onnx import TOLERANCE, OnnxPolicy
from robot_rl.interface.pipeline import Pipeline
from robot_rl.robots import robots
from robot_rl.util.errors import UserError
from sim.tasks import tasks

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
Build = Callable[..., Any]


def policy(observation: int, action: int, seed: int = 0, **config: Any) -> FeedforwardPolicy:
    """Return a policy with fitted statistics whose actions cover their range."""
    torch.manual_seed(seed)
    made = FeedforwardPolicy(Size(observation, action), FeedforwardConfig(**{"hidden": (16, 8)} | config))
    made.normalizer.update(torch.randn(200, observation) * torch.rand(observation) * 10 + torch.randn(observation))
    torch.nn.init.normal_(made.actor[-1].weight)
    return made.eval()


@cache
def graph(observation: int, action: int, **config: Any) -> bytes:
    return build_graph(policy(observation, action, **config), {})


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an exported bundle of a small policy with a history."""
    interface, folder = tasks.get("go2-velocity").interface, tmp_path_factory.mktemp("exported")
    pipeline = Pipeline(interface)
    made = policy(pipeline.observer.spec.size, pipeline.actions.size, history=3)
    save_bundle(Bundle(made, interface, robots.get("go2").fingerprint(), {"commit": "c0ffee"}), folder / "walk")
    export_onnx(folder / "walk")
    return folder / "walk"


@pytest.fixture
def saved(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "walk"))


def metadata(folder: Path) -> dict[str, Any]:
    return {p.key: json.loads(p.value) for p in onnx.load(folder / "policy.onnx").metadata_props}


def set_metadata(folder: Path, **other: Any) -> None:
    """Replace metadata; the value ... removes an entry."""
    model = onnx.load(folder / "policy.onnx")
    values = {p.key: p.value for p in model.metadata_props} | {k: json.dumps(v, default=str) for k, v in other.items()}
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {k: v for k, v in values.items() if other.get(k) is not ...})
    onnx.save(model, folder / "policy.onnx")


def assert_refused(folder: Path, *words: str) -> None:
    with pytest.raises(BundleError) as error:
        load_bundle(folder, "onnx")
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("size", "config"), [((5, 3), {}), ((7, 1), {"history": 4, "hidden": (9,)}), ((1, 2), {"history": 2, "hidden": ()})]
)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_onnx_acts_as_torch_through_episodes(size: tuple[int, int], config: Any, data: st.DataObject) -> None:
    rows, torch_policy = data.draw(st.integers(1, 5)), policy(*size, **config)
    onnx_policy = OnnxPolicy(graph(*size, **config), torch_policy)
    rng = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    for _ in range(data.draw(st.integers(1, 12))):
        scale = 10.0 ** data.draw(st.integers(-3, 6))
        state = scale * torch.randn(rows, size[0], generator=rng)
        if data.draw(st.integers(0, 9)) == 0:
            state[0, 0] = data.draw(st.sampled_from([torch.inf, -torch.inf, torch.nan]))
        expected, torch_value = (p.act({"observation.state": state}, rng) for p in (onnx_policy, torch_policy))
        assert expected.shape == (rows, 1, size[1]) and expected.dtype == torch.float32
        assert torch.allclose(expected, torch_value, rtol=0, atol=TOLERANCE, equal_nan=True)
        ids = data.draw(st.none() | st.lists(st.integers(0, rows - 1), unique=True).map(torch.tensor))
        if ids is None and data.draw(st.booleans()):
            rows = data.draw(st.integers(1, 5))  # the number of environments may change after a full reset
        for one in (onnx_policy, torch_policy):
            one.reset(ids if ids is None else ids.long())


def test_bundle_runs_with_both_runtimes_and_refuses_wrong_shapes(saved: Path) -> None:
    ours, theirs = load_bundle(saved, "onnx"), load_bundle(saved)
    assert isinstance(ours.policy, OnnxPolicy) and (ours.policy.horizon, ours.policy.execute) == (1, 1)
    assert replace(ours, policy=theirs.policy) == theirs, "all but the policy is equal"
    assert ours.policy.difference(theirs.policy) <= TOLERANCE
    one, rng = ours.policy, torch.Generator()
    one.reset()
    one.act({"observation.state": torch.zeros(2, 47)}, rng)
    with pytest.raises(ValueError, match="history of 2 environments, the observation has 3"):
        one.act({"observation.state": torch.zeros(3, 47)}, rng)
    with pytest.raises(ValueError, match=r"shape \(2, 46\); the policy reads \(B, 47\)"):
        one.act({"observation.state": torch.zeros(2, 46)}, rng)


def test_metadata_describe_robot_inputs_and_outputs(saved: Path, go2: Any, walk: Build) -> None:
    meta, interface = metadata(saved), walk().interface
    wanted = {
        "robot": "go2", "task": "go2-velocity", "history": 3, "commit": "c0ffee", "horizon": 1, "execute": 1,
        "control_rate": 50.0, "command_rate": 500.0, "gait": interface.gait, "joint_names": list(go2.joint_names),
        "home": list(go2.home), "stiffness": [40.0] * 12, "damping": [1.0] * 12,
    }  # fmt: skip
    assert meta == meta | wanted
    (action,) = meta["outputs"]["action"]["fields"]
    assert action["high"] == [interface.controller.reach] * 12 == [-low for low in action["low"]]
    assert action["unit"] == "rad" and action["dims"] == meta["joint_names"]
    assert meta["controller"]["kind"] == "joint_offset" and meta["controller"]["swing"][:3] == [0.0, 0.25, -0.5]
    fields = meta["inputs"]["observation"]["fields"]
    assert [field["name"] for field in fields] == list(interface.observations)
    assert {f["name"]: (f["unit"], f["frame"]) for f in fields}["angular_velocity"] == ("rad/s", "trunk")
    assert meta["inputs"]["history"]["shape"] == ["batch", 3, sum(len(field["dims"]) for field in fields)]
    assert meta["command"][0]["low"] == [-1.0, -0.5] and meta["command"][1]["name"] == "turn"
    assert yaml.safe_load((saved / "policy.yaml").read_text()) == meta


@pytest.mark.parametrize(("name", "value", "expected"), [
    ("task", "go2-dance", "go2-velocity in policy.json"), ("robot", "go1", "go2 on robot go2"),
    ("stiffness", [20.0] * 12, "40.0] on robot go2"), ("history", 5, "3 in policy.json"),
    ("control_rate", 100.0, "50.0 in policy.json"), ("command", [], "'velocity'"),
])  # fmt: skip
def test_metadata_mismatch_names_field_and_values(saved: Path, name: str, value: Any, expected: str) -> None:
    set_metadata(saved, **{name: value})
    assert_refused(saved, "policy.onnx", f"{name} is {value}", expected)
    set_metadata(saved, **{name: ...})
    assert_refused(saved, "policy.onnx", f"has no {name} ")


def test_graph_of_older_or_changed_weights_is_refused(saved: Path) -> None:
    old, bundle = (saved / "policy.onnx").read_bytes(), load_bundle(saved)
    with torch.no_grad():
        bundle.policy.actor[-1].bias.add_(1e-6)
    save_bundle(bundle, saved)
    assert_refused(saved, "no policy.onnx", f"robot-rl export {saved}")  # replaced with the bundle
    (saved / "policy.onnx").write_bytes(old)
    assert_refused(saved, "different weights", f"robot-rl export {saved}")
    export_onnx(saved)
    model = onnx.load(saved / "policy.onnx")
    network = next(w for w in model.graph.initializer if list(w.dims) == [12, 8])
    network.raw_data = (onnx.numpy_helper.to_array(network) + np.float32(0.01)).tobytes()
    onnx.save(model, saved / "policy.onnx")
    assert_refused(saved, "differs from policy.safetensors", "differ by")


@pytest.mark.parametrize("damage", ["empty", "garbage", "another model", "another size"])
def test_damaged_or_foreign_graph_is_named(saved: Path, damage: str) -> None:
    file = saved / "policy.onnx"
    values = metadata(saved)
    broken: dict[str, Callable[[], bytes]] = {
        "empty": lambda: b"", "garbage": lambda: b"\xff\xfe" * 200,
        "another model": lambda: graph(5, 3), "another size": lambda: build_graph(policy(46, 12, history=3), values),
    }  # fmt: skip
    file.write_bytes(broken[damage]())
    assert_refused(saved, str(file), f"robot-rl export {saved}")


def test_policy_of_another_size_is_refused(walk: Build, go2: Any, tmp_path: Path) -> None:
    save_bundle(Bundle(policy(46, 12), walk().interface, go2.fingerprint()), tmp_path / "walk")
    with pytest.raises(BundleError, match="reads 46 numbers and writes 12, its interface has 47 and 12"):
        export_onnx(tmp_path / "walk")


def test_full_disk_keeps_the_old_file(saved: Path) -> None:
    before = {p.name: p.read_bytes() for p in saved.iterdir()}
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        with pytest.raises(UserError, match=r"cannot write .*policy\.onnx"):
            export_onnx(saved)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert {p.name: p.read_bytes() for p in saved.iterdir()} == before


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_missing_package_has_a_remedy(saved: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"package {package}, .*pip install .*\[onnx\]"):
        export_onnx(saved)
    if package == "onnxruntime":
        with pytest.raises(UserError, match="package onnxruntime, .*pip install"):
            load_bundle(saved, "onnx")
    else:
        load_bundle(saved, "onnx")  # running needs only the runtime
