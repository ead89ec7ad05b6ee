"""Bundles: round trips, and refusal of damaged, forged or mismatched ones with the file's name."""

import hashlib
import json
import pickle
import re
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from policies.base import build_policy
from policies.bundle import Bundle, load_bundle, save_bundle
from policies.errors import BundleError
from robot_rl.interface.shield import ShieldConfig
from robot_rl.util.errors import ConfigError, UserError

Build = Callable[..., Any]


@pytest.fixture
def bundle(task: Build, panda: Any, residual: Build) -> Bundle:
    provenance = {"task": "panda-lift", "seed": 3, "evaluation": {"success": 0.5}}
    return Bundle(residual(), task().interface, panda.fingerprint(), provenance, {"q.weight": torch.ones(2, 2)})


@pytest.fixture
def saved(bundle: Bundle, tmp_path: Path) -> Path:
    save_bundle(bundle, tmp_path / "lift")
    return tmp_path / "lift"


def observation() -> dict[str, torch.Tensor]:
    return {"observation.state": torch.randn(4, 3, generator=torch.Generator().manual_seed(0))}


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    meta = json.loads((folder / "policy.json").read_text())
    change(meta)
    (folder / "policy.json").write_text(json.dumps(meta))


def sign(folder: Path) -> None:
    """Update the checksums of the files."""
    sums = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.glob("*.safetensors")}
    edit(folder, lambda meta: meta.update(sha256=sums))


def test_round_trip_by_json_and_safetensors(bundle: Bundle, saved: Path) -> None:
    torch.nn.init.normal_(bundle.policy.actor.trunk[-1].weight)
    bundle.policy.normalizer.fit(torch.randn(50, 3))
    save_bundle(bundle, saved)  # replaces the previous bundle
    again = load_bundle(saved)
    for name in ("interface", "robot", "provenance"):
        assert getattr(again, name) == getattr(bundle, name)
    assert again.policy.config == bundle.policy.config and again.policy.base.config == bundle.policy.base.config
    assert torch.equal(again.critic["q.weight"], torch.ones(2, 2))
    assert not again.policy.training
    for k in range(3):
        actions = [p.act(observation(), torch.Generator().manual_seed(k)) for p in (bundle.policy, again.policy)]
        assert torch.equal(*actions)
    names = {"policy.json", "policy.safetensors", "critic.safetensors"}
    assert {p.name for p in saved.iterdir()} == names
    assert [p.name for p in saved.parent.iterdir()] == ["lift"], "no temporary files"
    for file in saved.iterdir():
        head = file.read_bytes()
        assert not head.startswith((b"\x80", b"PK")), f"{file.name} looks like a pickle or torch archive"
    saved.rename(saved.parent / "bundle")
    assert load_bundle(saved.parent).provenance == bundle.provenance, "a run folder"


@pytest.mark.parametrize("file", ["policy.json", "policy.safetensors", "critic.safetensors"])
@pytest.mark.parametrize("damage", ["empty", "half", "garbage", "pickle", "missing"])
def test_damaged_or_missing_file_is_named(saved: Path, file: str, damage: str) -> None:
    data = (saved / file).read_bytes()
    broken = {
        "empty": b"", "half": data[: len(data) // 2], "garbage": b"\xff\xfe" * 200, "pickle": pickle.dumps({"a": 1}),
    }  # fmt: skip
    if damage != "missing":
        (saved / file).write_bytes(broken[damage])
    else:
        (saved / file).unlink()
        if file == "critic.safetensors":
            assert load_bundle(saved).critic == {}, "the critic is optional"
            return
    with pytest.raises(BundleError, match=file):
        load_bundle(saved)


def test_folder_without_a_bundle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "stopped").mkdir()
    for name in ("config.json", "checkpoint.safetensors"):
        (tmp_path / "stopped" / name).touch()
    with pytest.raises(BundleError, match="make one with `robot-rl bundle .*stopped`"):
        load_bundle(tmp_path / "stopped")
    with pytest.raises(BundleError, match="nowhere is no bundle"):
        load_bundle(tmp_path / "nowhere")


@pytest.mark.parametrize("change", {
    "another format": lambda m: m.update(format=99),
    "no format": lambda m: m.pop("format"),
    "no policy": lambda m: m.pop("policy"),
    "no checksums": lambda m: m.pop("sha256"),
    "negative horizon": lambda m: m["interface"].update(horizon=-5),
    "speed above the limit": lambda m: m["interface"]["shield"].update(velocity=100),
    "robot is no table": lambda m: m.update(robot="panda"),
    "unknown robot": lambda m: m["interface"].update(robot="pandoro"),
    "unknown class": lambda m: m["policy"].update({"class": "transformer"}),
    "unknown setting": lambda m: m["policy"]["config"].update(depth=3),
    "no base": lambda m: m["policy"].pop("base"),
    "residual on residual": lambda m: m["policy"].update(base=dict(m["policy"])),
    "size is a word": lambda m: m["policy"]["base"]["size"].update(observation="three"),
    "a negative scale": lambda m: m["policy"]["config"].update(scale=-1.0),
    "no denoising steps": lambda m: m["policy"]["base"]["config"].update(sample_steps=0),
    "interface without horizon": lambda m: m["interface"].update(horzon=m["interface"].pop("horizon")),
    "interface is a list": lambda m: m.update(interface=[]),
}.items(), ids=lambda item: item[0])  # fmt: skip
def test_invalid_description_is_refused(saved: Path, change: tuple[str, Callable[[dict[str, Any]], Any]]) -> None:
    edit(saved, change[1])
    with pytest.raises(BundleError, match=r"policy\.json"):
        load_bundle(saved)


@pytest.mark.parametrize("damage", ["shape", "missing", "extra", "nan"])
def test_weights_of_another_network_are_refused(saved: Path, damage: str) -> None:
    weights = load_file(saved / "policy.safetensors")
    name = "actor.trunk.0.weight"
    if damage == "shape":
        weights[name] = weights[name][:, 1:].contiguous()
    elif damage == "missing":
        del weights[name]
    elif damage == "extra":
        weights["actor.more"] = torch.ones(1)
    else:
        weights[name][0, 0] = torch.nan
    save_file(weights, saved / "policy.safetensors")
    with pytest.raises(BundleError, match=r"policy\.safetensors is not what was saved"):
        load_bundle(saved)
    sign(saved)
    with pytest.raises(BundleError, match=r"policy\.safetensors"):
        load_bundle(saved)


@pytest.mark.parametrize("file", ["policy.safetensors", "critic.safetensors"])
def test_changed_weights_are_refused(saved: Path, file: str) -> None:
    """Only the checksum shows the change of one bit."""
    data = bytearray((saved / file).read_bytes())
    data[-1] ^= 0x01
    (saved / file).write_bytes(data)
    with pytest.raises(BundleError, match=rf"{re.escape(file)} is not what was saved: its sha256 is another") as error:
        load_bundle(saved)
    assert error.value.code == 2
    sign(saved)
    load_bundle(saved)


def test_other_robots_are_refused_by_field(saved: Path, panda: Any, diffusion: Callable[..., Any]) -> None:
    bundle = replace(load_bundle(saved), policy=diffusion(21, 4))
    bundle.check_robot(panda)
    short = replace(panda, joints=(replace(panda.joints[0], high=1.0), *panda.joints[1:]))
    slow = replace(panda, joints=(replace(panda.joints[0], velocity=1.0), *panda.joints[1:]))
    for other, name in (
        (replace(panda, name="ur5e"), "name"),
        (short, "high"),
        (slow, "velocity"),
        (replace(panda, gripper=None), "gripper_width"),
        (replace(panda, command_rate=100.0), "command_rate"),
        (replace(panda, state_rate=100.0), "state_rate"),
        (replace(panda, gripper=replace(panda.gripper, force=20.0)), "gripper_force"),
        (replace(panda, tool=replace(panda.tool, quat=(1.0, 0.0, 0.0, 0.0))), "tool_quat"),
        (replace(panda, tool=replace(panda.tool, workspace=((0.2, -0.3, 0.0), (0.7, 0.3, 0.5)))), "workspace"),
        (replace(panda, joints=(replace(panda.joints[0], axis=(0.0, 1.0, 0.0)), *panda.joints[1:])), "joint_axis"),
    ):
        with pytest.raises(BundleError, match=rf"\b{name}\b.*differ") as error:
            bundle.check_robot(other)
        assert "'panda'" in str(error.value)


@pytest.mark.parametrize(("change", "message"), [
    (lambda m: m["interface"].update(observations=["joint_positon"]), "unknown observation term 'joint_positon'"),
    (lambda m: m["interface"].update(failure="fallen:abc"), "test 'fallen:abc' is written"),
    (lambda m: m["interface"].update(success="reached:cub:0.06"), "observes no object 'cub'; did you mean cube"),
    (lambda m: m["interface"]["controller"].update(rate=60), r"at 60 Hz .* a rate of 66\.6667 Hz would do"),
    (lambda m: m["interface"]["shield"].update(margin=2.0), r"shield\.margin is 2 rad, which leaves joint"),
])  # fmt: skip
def test_interface_for_another_robot_is_refused(saved: Path, panda: Any, change: Any, message: str) -> None:
    edit(saved, change)
    with pytest.raises(BundleError, match=rf"bundle .*lift .*{message}") as error:
        load_bundle(saved).check_robot(panda)
    assert error.value.code == 2


@pytest.mark.parametrize(("name", "value"), [
    ("shield", ShieldConfig(velocity=1.0)), ("success", ""), ("success_hold", 9), ("failure", "fallen:60:0.15"),
    ("horizon", 7),
])  # fmt: skip
def test_task_with_other_shield_or_tests_is_refused(bundle: Bundle, name: str, value: Any) -> None:
    bundle.check_task(bundle.interface)
    with pytest.raises(BundleError, match=f"trained for other {name} than task 'panda-lift' has"):
        bundle.check_task(replace(bundle.interface, **{name: value}))


@pytest.mark.parametrize("name", ["velocity", "workspace"])
def test_bundle_without_a_robot_field_is_refused(saved: Path, panda: Any, name: str) -> None:
    edit(saved, lambda meta: meta["robot"].pop(name))
    with pytest.raises(BundleError, match=rf"does not hold the robot's {name}.*train it again"):
        load_bundle(saved).check_robot(panda)


@pytest.mark.parametrize("fault", ["full disk", "failing rename"])
def test_failed_save_keeps_the_old_bundle(saved: Path, bundle: Bundle, monkeypatch: Any, fault: str) -> None:
    before, rename = {p.name: p.read_bytes() for p in saved.iterdir()}, Path.rename
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)

    def refuse(self: Path, target: Path) -> Path:
        if self.suffix == ".part":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    try:
        if fault == "full disk":
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
        else:
            monkeypatch.setattr(Path, "rename", refuse)
        with pytest.raises(UserError, match="cannot write the bundle"):
            save_bundle(bundle, saved)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert {p.name: p.read_bytes() for p in saved.iterdir()} == before
    assert [p.name for p in saved.parent.iterdir()] == ["lift"]


IMPORTS = {
    "policy": lambda m: m["policy"].update({"class": "evil_module:X"}),
    "base": lambda m: m["policy"]["base"].update({"class": "evil_module:X"}),
    "robot": lambda m: m["interface"].update(robot="evil_module:X"),
    "observation": lambda m: m["interface"].update(observations=["evil_module:X:1"]),
    "success": lambda m: m["interface"].update(success="evil_module:X:0.1"),
    "failure": lambda m: m["interface"].update(failure="evil_module:X"),
    "instruction": lambda m: m["interface"].update(instructions=[{"text": "go", "success": "evil_module:X"}]),
    "task": lambda m: m.update(task="evil_module:X"),
    "task of the interface": lambda m: m["interface"].update(task="evil_module:X"),
    "gym": lambda m: m.update(task="gym:evil_module:X-v0"),
}


@pytest.mark.parametrize("where", IMPORTS)
def test_untrusted_packages_are_not_imported(saved: Path, tmp_path: Path, monkeypatch: Any, where: str) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("ROBOT_RL_IMPORTS", raising=False)
    (tmp_path / "evil_module.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nX = 1\n")
    edit(saved, IMPORTS[where])
    with pytest.raises(ConfigError, match="would import package 'evil_module'.*ROBOT_RL_IMPORTS=evil_module"):
        load_bundle(saved)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("package", "message"), [("os", "own 'os'"), ("nowhere_lab.act", "not installed here")])
def test_standard_and_missing_packages_have_their_own_message(saved: Path, package: str, message: str) -> None:
    edit(saved, lambda m: m["policy"].update({"class": f"{package}:X"}))
    with pytest.raises(ConfigError, match=message) as refused:
        load_bundle(saved)
    assert "ROBOT_RL_IMPORTS" not in str(refused.value)


def test_classes_of_installed_packages_are_found(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    metadata = tmp_path / "my_lab-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-lab\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[robot_rl.policies]\nmine = my_lab_policies:Mine\n")
    (tmp_path / "my_lab_policies.py").write_text(
        "from policies.residual import ResidualPolicy as Residual\nclass Mine(Residual):\n    class_name = 'mine'\n"
    )
    for name in ("mine", "my_lab_policies:Mine"):
        edit(saved, lambda m, name=name: m["policy"].update({"class": name}))
        assert type(load_bundle(saved).policy).__name__ == "Mine"


HUGE = {
    "width": lambda m: m["policy"]["base"]["config"].update(hidden=10**9),
    "layers": lambda m: m["policy"]["base"]["config"].update(layers=10**9),
    "observation": lambda m: m["policy"]["base"]["size"].update(observation=10**9),
    "actor": lambda m: m["policy"]["config"]["actor"].update(hidden=[10**9, 10**9]),
    "beyond int64": lambda m: m["policy"]["base"]["config"].update(hidden=10**30),
}


@pytest.mark.parametrize("what", HUGE)
def test_sizes_are_checked_before_allocation(saved: Path, what: str) -> None:
    edit(saved, HUGE[what])
    before, limits = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, limits[1]))
    try:
        with pytest.raises(BundleError):
            load_bundle(saved)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "kB"


def test_loading_draws_as_much_from_torchs_generator_as_building(saved: Path) -> None:
    torch.manual_seed(0)
    load_bundle(saved)
    first = torch.rand(1)
    torch.manual_seed(0)
    build_policy(json.loads((saved / "policy.json").read_text())["policy"])
    assert torch.equal(first, torch.rand(1))


FORGED_TEXT = {
    "nesting": lambda text: "[" * 100_000,
    "infinity": lambda text: re.sub(r'"scale": [0-9.]+', '"scale": 1e400', text),
    "huge integer": lambda text: re.sub(r'"hidden": \d+', '"hidden": ' + "9" * 5000, text),
    "no text": lambda text: text.replace('"format": 1', '"format": [1]'),
    "list": lambda text: "[1]",
    "task": lambda text: text.replace('"task": "panda-lift",', '"task": ["panda-lift"],', 1),
    "sums": lambda text: re.sub(r'"sha256": {[^}]*}', '"sha256": 3', text),
}


@pytest.mark.parametrize("what", FORGED_TEXT)
def test_forged_json_is_refused(saved: Path, what: str) -> None:
    file = saved / "policy.json"
    changed = FORGED_TEXT[what](file.read_text())
    assert changed != file.read_text()
    file.write_text(changed)
    with pytest.raises(BundleError, match=re.escape(str(saved))) as caught:
        load_bundle(saved)
    assert caught.value.code == 2


def test_invalid_safetensors_headers_types_and_numbers_are_refused(saved: Path) -> None:
    weights = saved / "policy.safetensors"
    whole = weights.read_bytes()
    for data in ((2**62).to_bytes(8, "little") + whole[8:], b"", whole[:7], whole.replace(b'"F32"', b'"F99"', 1)):
        weights.write_bytes(data)
        sign(saved)
        with pytest.raises(BundleError, match=r"policy\.safetensors is damaged"):
            load_bundle(saved)
    weights.write_bytes(whole)
    save_file({k: v.to(torch.float8_e4m3fn) for k, v in load_file(weights).items()}, weights)
    sign(saved)
    with pytest.raises(BundleError, match="is torch.float8_e4m3fn in it"):
        load_bundle(saved)
    weights.write_bytes(whole)
    save_file({"q.weight": torch.tensor([[1.0, torch.nan]])}, saved / "critic.safetensors")
    sign(saved)
    with pytest.raises(BundleError, match=r"critic\.safetensors holds non-finite weights"):
        load_bundle(saved)


@pytest.mark.parametrize("name", ["policy.json", "policy.safetensors", "critic.safetensors"])
def test_links_out_of_the_folder_are_refused(saved: Path, tmp_path: Path, name: str) -> None:
    (saved / name).rename(tmp_path / name)
    (saved / name).symlink_to(tmp_path / name)
    with pytest.raises(BundleError, match=f"{name} is a link out of"):
        load_bundle(saved)
