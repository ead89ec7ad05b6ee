"""policy.onnx acts as the bundle does, or it is refused, in one sentence that says what differs."""

from __future__ import annotations

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
    """A policy with statistics of its own whose actions cover their range."""
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
    """A bundle of a small policy with a history, exported once."""
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


def say(folder: Path, **other: Any) -> None:
    """Put other values into the metadata, or remove those that are ...."""
    model = onnx.load(folder / "policy.onnx")
    said = {p.key: p.value for p in model.metadata_props} | {k: json.dumps(v, default=str) for k, v in other.items()}
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {k: v for k, v in said.items() if other.get(k) is not ...})
    onnx.save(model, folder / "policy.onnx")


def refused(folder: Path, *words: str) -> None:
    with pytest.raises(BundleError) as error:
        load_bundle(folder, "onnx")
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("size", "config"), [((5, 3), {}), ((7, 1), {"history": 4, "hidden": (9,)}), ((1, 2), {"history": 2, "hidden": ()})]
)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_acts_as_torch_does_through_episodes(size: tuple[int, int], config: Any, data: st.DataObject) -> None:
    rows, torch_policy = data.draw(st.integers(1, 5)), policy(*size, **config)
    onnx_policy = OnnxPolicy(graph(*size, **config), torch_policy)
    rng = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    for _ in range(data.draw(st.integers(1, 12))):
        scale = 10.0 ** data.draw(st.integers(-3, 6))
        state = scale * torch.randn(rows, size[0], generator=rng)
        if data.draw(st.integers(0, 9)) == 0:
            state[0, 0] = data.draw(st.sampled_from([torch.inf, -torch.inf, torch.nan]))
        ours, theirs = (p.act({"observation.state": state}, rng) for p in (onnx_policy, torch_policy))
        assert ours.shape == (rows, 1, size[1]) and ours.dtype == torch.float32
        assert torch.allclose(ours, theirs, rtol=0, atol=TOLERANCE, equal_nan=True)
        ids = data.draw(st.none() | st.lists(st.integers(0, rows - 1), unique=True).map(torch.tensor))
        if ids is None and data.draw(st.booleans()):
            rows = data.draw(st.integers(1, 5))  # after a full reset there may be more environments, or fewer
        for one in (onnx_policy, torch_policy):
            one.reset(ids if ids is None else ids.long())


def test_a_bundle_runs_in_both(saved: Path) -> None:
    ours, theirs = load_bundle(saved, "onnx"), load_bundle(saved)
    assert isinstance(ours.policy, OnnxPolicy) and (ours.policy.horizon, ours.policy.execute) == (1, 1)
    assert replace(ours, policy=theirs.policy) == theirs, "all but the policy is the bundle's"
    rng = torch.Generator().manual_seed(0)
    for _ in range(5):
        state = {"observation.state": torch.randn(4, ours.policy.size.observation, generator=rng)}
        assert torch.allclose(ours.policy.act(state, rng), theirs.policy.act(state, rng), rtol=0, atol=TOLERANCE)


def test_the_graph_alone_is_enough_for_another_program(saved: Path) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession((saved / "policy.onnx").read_bytes())
    reference = load_bundle(saved).policy
    history, start = np.full((2, 3, 47), 1e3, np.float32), np.array([True, True])
    for k in range(4):
        observation = np.random.default_rng(k).standard_normal((2, 47), np.float32)
        given = {"observation": observation, "start": start, "history": history}
        action, history = session.run(["action", "next_history"], given)
        expected = reference.act({"observation.state": torch.from_numpy(observation)}, torch.Generator())
        assert np.abs(action - expected[:, 0].numpy()).max() <= TOLERANCE
        start[:] = False


def test_the_metadata_says_what_a_robot_needs(saved: Path, go2: Any, walk: Build) -> None:
    said, interface = metadata(saved), walk().interface
    assert (said["robot"], said["task"], said["history"], said["commit"]) == ("go2", "go2-velocity", 3, "c0ffee")
    assert said["joint_names"] == list(go2.joint_names) and said["home"] == list(go2.home)
    assert said["stiffness"] == [40.0] * 12 and said["damping"] == [1.0] * 12
    reach = [-interface.controller.reach] * 12, [interface.controller.reach] * 12
    (action,) = said["outputs"]["action"]["fields"]
    assert (action["low"], action["high"], action["unit"]) == (*reach, "rad") and action["dims"] == said["joint_names"]
    assert said["controller"]["kind"] == "joint_offset" and said["controller"]["swing"][:3] == [0.0, 0.25, -0.5]
    seen = said["inputs"]["observation"]["fields"]
    assert [field["name"] for field in seen] == list(interface.observations)
    assert sum(len(field["dims"]) for field in seen) == 47
    assert {f["name"]: (f["unit"], f["frame"]) for f in seen}["angular_velocity"] == ("rad/s", "trunk")
    assert said["inputs"]["history"] == said["inputs"]["history"] | {"shape": ["batch", 3, 47], "dtype": "float32"}
    assert "oldest frame first" in said["inputs"]["history"]["order"] and (said["horizon"], said["execute"]) == (1, 1)
    assert yaml.safe_load((saved / "policy.yaml").read_text()) == said, "beside the file, for people"
    assert (said["control_rate"], said["command_rate"], said["gait"]) == (50.0, 500.0, interface.gait)
    assert said["command"][0]["low"] == [-1.0, -0.5] and said["command"][1]["name"] == "turn"


def test_an_action_that_is_not_centred_has_its_offset(task: Build, panda: Any, tmp_path: Path) -> None:
    pipeline = Pipeline(task().interface)
    made = policy(pipeline.observer.spec.size, pipeline.actions.size)
    save_bundle(Bundle(made, task().interface, panda.fingerprint()), tmp_path / "lift")
    export_onnx(tmp_path / "lift")
    fields = metadata(tmp_path / "lift")["outputs"]["action"]["fields"]
    low, high = (torch.tensor([v for field in fields for v in field[end]]) for end in ("low", "high"))
    unit = torch.rand(5, 4) * 2 - 1
    physical = low + (unit + 1) / 2 * (high - low)
    assert torch.allclose(physical, pipeline.actions.to_physical(unit), atol=1e-7)
    assert load_bundle(tmp_path / "lift", "onnx").policy.config.history == 1


@pytest.mark.parametrize(
    ("name", "value", "ours"),
    [
        ("task", "go2-dance", "go2-velocity in policy.json"),
        ("robot", "go1", "go2 on robot go2"),
        ("joint_names", ["FR_hip_joint"], "'FL_hip_joint', 'FL_thigh_joint'"),
        ("stiffness", [20.0] * 12, "40.0] on robot go2"),
        ("damping", [0.5] * 12, "1.0] on robot go2"),
        ("home", [0.0] * 12, "[0.1, 0.8, -1.5"),
        ("history", 5, "3 in policy.json"),
        ("control_rate", 100.0, "50.0 in policy.json"),
        ("command_rate", 200.0, "500.0 on robot go2"),
        ("gait", 1.5, "2.75 in policy.json"),
        ("command", [], "'velocity'"),
    ],
)
def test_a_mismatch_names_the_field_and_both_values(saved: Path, name: str, value: Any, ours: str) -> None:
    say(saved, **{name: value})
    refused(saved, "policy.onnx", f"{name} is {value}", ours)
    say(saved, **{name: ...})
    refused(saved, "policy.onnx", f"has no {name} ")


def test_another_meaning_of_an_input_is_refused_by_its_place(saved: Path) -> None:
    said = metadata(saved)
    said["inputs"]["observation"]["fields"][0]["unit"] = "deg/s"
    say(saved, inputs=said["inputs"])
    refused(saved, "inputs.observation.fields.0.unit is deg/s", "rad/s in policy.json")
    said["inputs"]["observation"]["fields"][0]["unit"] = "rad/s"
    say(saved, inputs=said["inputs"], controller=said["controller"] | {"reach": 0.25})
    refused(saved, "controller.reach is 0.25", "0.6 in policy.json")


def test_a_robot_with_other_gains_is_refused(saved: Path, go2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    soft = replace(go2, joints=tuple(replace(j, stiffness=25.0) for j in go2.joints))
    monkeypatch.setattr("policies.onnx.robots.get", lambda name: soft)
    refused(saved, "stiffness is [40.0", "[25.0", "on robot go2")
    with pytest.raises(BundleError, match="stiffness differ"):
        export_onnx(saved)


def test_a_file_beside_newer_weights_is_refused(saved: Path) -> None:
    old, bundle = (saved / "policy.onnx").read_bytes(), load_bundle(saved)
    with torch.no_grad():
        bundle.policy.actor[-1].bias.add_(1e-6)
    save_bundle(bundle, saved)
    refused(saved, "no policy.onnx", f"robot-rl export {saved}")  # gone with the bundle that it was made of
    (saved / "policy.onnx").write_bytes(old)
    refused(saved, "different weights", f"robot-rl export {saved}")


def test_weights_that_changed_in_the_file_are_refused(saved: Path) -> None:
    model = onnx.load(saved / "policy.onnx")
    network = next(w for w in model.graph.initializer if list(w.dims) == [12, 8])
    network.raw_data = (onnx.numpy_helper.to_array(network) + np.float32(0.01)).tobytes()
    onnx.save(model, saved / "policy.onnx")
    refused(saved, "differs from policy.safetensors", "differ by")


@pytest.mark.parametrize("damage", ["empty", "half", "garbage", "another model", "another size"])
def test_a_damaged_or_other_file_is_named(saved: Path, damage: str) -> None:
    file, data = saved / "policy.onnx", (saved / "policy.onnx").read_bytes()
    said = metadata(saved)
    broken: dict[str, Callable[[], bytes]] = {
        "empty": lambda: b"", "half": lambda: data[: len(data) // 2], "garbage": lambda: b"\xff\xfe" * 200,
        "another model": lambda: graph(5, 3), "another size": lambda: build_graph(policy(46, 12, history=3), said),
    }  # fmt: skip
    file.write_bytes(broken[damage]())
    refused(saved, str(file), f"robot-rl export {saved}")


def test_a_policy_that_remembers_is_refused(task: Build, panda: Any, residual: Build, tmp_path: Path) -> None:
    save_bundle(Bundle(residual(), task().interface, panda.fingerprint()), tmp_path / "lift")
    refused(tmp_path / "lift", "a residual policy has no ONNX form", "--runtime torch")
    with pytest.raises(BundleError, match="a residual policy has no ONNX form"):
        export_onnx(tmp_path / "lift")
    assert not (tmp_path / "lift" / "policy.onnx").exists()


def test_a_policy_of_another_size_than_its_interface_is_refused(walk: Build, go2: Any, tmp_path: Path) -> None:
    save_bundle(Bundle(policy(46, 12), walk().interface, go2.fingerprint()), tmp_path / "walk")
    with pytest.raises(BundleError, match="reads 46 numbers and writes 12, its interface has 47 and 12"):
        export_onnx(tmp_path / "walk")


def test_a_full_disk_leaves_the_old_file(saved: Path) -> None:
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
def test_a_missing_package_comes_with_the_command(saved: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"package {package}, .*pip install .*\[onnx\]"):
        export_onnx(saved)
    if package == "onnxruntime":
        with pytest.raises(UserError, match="package onnxruntime, .*pip install"):
            load_bundle(saved, "onnx")
    else:
        load_bundle(saved, "onnx")  # a robot's computer needs the runtime alone


def test_what_does_not_fit_the_memory_is_refused(saved: Path) -> None:
    one, rng = load_bundle(saved, "onnx").policy, torch.Generator()
    one.act({"observation.state": torch.zeros(2, 47)}, rng)
    with pytest.raises(ValueError, match="history of 2 environments, the observation has 3"):
        one.act({"observation.state": torch.zeros(3, 47)}, rng)
    with pytest.raises(ValueError, match=r"shape \(2, 46\); the policy reads \(B, 47\)"):
        one.act({"observation.state": torch.zeros(2, 46)}, rng)
