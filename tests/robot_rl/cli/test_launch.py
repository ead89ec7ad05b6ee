"""`robot-rl launch` refuses wrong arguments before it starts a process."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import robot_rl.cli.launch as launch
from policies.bundle import load_bundle, save_bundle
from real.teleop import joystick
from robot_rl.cli.bench.loop import acting
from robot_rl.cli.main import main
from robot_rl.robots import robots


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the processes that launch would start."""
    names: list[str] = []

    class Runner:
        def __init__(self, nodes: Any, *_: Any):
            names.extend(node.name for node in nodes if node.condition)

        def run(self) -> int:
            return 0

    monkeypatch.setattr(launch, "ProcessRunner", Runner)
    return names


@pytest.fixture
def bundles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bundles of an arm and of a legged robot (in a run folder), a stopped run, and a damaged bundle."""
    monkeypatch.chdir(tmp_path)
    save_bundle(acting(robots.get("panda"), None), tmp_path / "arm")
    save_bundle(acting(robots.get("go2"), None), tmp_path / "walk" / "bundle")
    (tmp_path / "stopped").mkdir()
    for name in ("config.json", "checkpoint.safetensors"):
        (tmp_path / "stopped" / name).touch()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "policy.json").write_text('{"interface": []}')


@pytest.mark.parametrize(("words", "message"), [
    ("quadruped policy:=walk robot:=panda twin:=true", "robot 'panda', which does not walk: use launch arm"),
    ("arm policy:=arm robot:=go2 twin:=true", "robot 'go2', which walks: use launch quadruped"),
    ("arm policy:=runs/nope twin:=true", "runs/nope is no bundle: it has no policy.json"),
    ("arm policy:=stopped", "stopped is a run that was stopped before its bundle: make one with `robot-rl bundle "),
    ("arm policy:=damaged", "damaged/policy.json is damaged or foreign"),
    ("arm policy:=arm robot:=ur5e", "bundle arm is for robot 'panda', not for 'ur5e'; add robot:=panda"),
    ("arm policy:=walk", "bundle walk/bundle is for robot 'go2', which walks: use launch quadruped robot:=go2"),
    ("finetune policy:=walk teleop:=none", "for robot 'go2', which walks: use launch quadruped robot:=go2"),
    ("quadruped policy:=arm", "bundle arm is for robot 'panda', which does not walk: use launch arm robot:=panda"),
    ("arm policy:=arm twin:=true task:=panda-lfit", "unknown task 'panda-lfit'; did you mean panda-lift"),
    ("finetune policy:=arm teleop:=none out:=stopped", "out:=stopped holds a session or dataset; add resume:=true"),
    ("twin robot:=go2 task:=panda-lift", "task 'panda-lift' is for robot 'panda', not 'go2'"),
])  # fmt: skip
def test_wrong_arguments_are_refused_early(bundles: None, started: Any, capsys: Any, words: str, message: str) -> None:
    assert main(["launch", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert message in err and err.startswith("robot-rl: ") and err.count("\n") == 1 and not out
    assert not started


def test_missing_gamepad_is_refused_early(bundles: None, started: list[str], capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(joystick, "glob", lambda pattern: [])
    for words in (["arm", "policy:=arm", "teleop:=gamepad"], ["finetune", "policy:=arm"]):
        assert main(["launch", *words]) == 2 and not started
        err = capsys.readouterr().err
        assert err.startswith("robot-rl: there is no gamepad") and "teleop:=keyboard" in err and err.count("\n") == 1


@pytest.mark.parametrize(("words", "names"), [
    ("quadruped policy:=walk twin:=true", ["twin", "guard", "deploy"]),
    ("arm policy:=arm twin:=true task:=panda-lift", ["twin", "deploy"]),
    ("finetune policy:=arm teleop:=none", ["finetune"]),
    ("record task:=panda-lift twin:=true", ["twin", "teleop", "record"]),
    ("twin robot:=go2 task:=go2-velocity", ["twin"]),
])  # fmt: skip
def test_valid_launch_starts_its_processes(bundles: None, started: list[str], words: str, names: list[str]) -> None:
    assert main(["launch", *words.split()]) == 0 and started == names


def test_variant_of_a_robot_is_launched_with_its_policies(
    bundles: None, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    variant = replace(robots.get("panda"), name="panda-forward", variant_of="panda")
    monkeypatch.setitem(robots.entries, variant.name, variant)  # type: ignore[index]
    assert main(["launch", "arm", "policy:=arm", "robot:=panda-forward", "twin:=true"]) == 0
    load_bundle(Path("arm")).check_robot(variant)
    assert started == ["twin", "deploy"]
