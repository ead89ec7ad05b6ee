"""Registries: names of the project and of installed packages, import paths, and broken packages."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from robot_rl.util.errors import ConfigError, UnknownName
from robot_rl.util.registry import Registry

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install packages with metadata in pip's format on the path."""

    def put(name: str, entry_points: str = "", **modules: str) -> Path:
        folder = tmp_path / name
        metadata = folder / f"{name.replace('-', '_')}-1.5.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        (metadata / "entry_points.txt").write_text(entry_points)
        for module, text in modules.items():
            (folder / f"{module}.py").write_text(text)
            monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.syspath_prepend(folder)
        return folder

    return put


def things(**entries: Any) -> Registry:
    return Registry("thing", {name: (path, f"our {name}") for name, path in entries.items()})


def test_names_of_installed_packages_are_listed_without_import_and_paths_imported(install: Install) -> None:
    registry = things(ours="json:loads")
    assert list(registry) == ["ours"]
    install("a-lab", "[robot_rl.things]\ntheirs = a_lab_things:X\n", a_lab_things="X = object()")
    assert list(registry) == ["ours", "theirs"]
    assert "a-lab 1.5" in registry.describe("theirs") and "a_lab_things" not in sys.modules
    assert registry.get("theirs") is sys.modules["a_lab_things"].X
    install("b-lab", b_lab_things="X = 3")
    assert things().get("b_lab_things:X") == 3
    with pytest.raises(ConfigError, match="no 'Y'"):
        things().get("b_lab_things:Y")
    with pytest.raises(ConfigError, match="no module named 'b_lab_thing'.*pip install -e"):
        things().get("b_lab_thing:X")


def test_name_conflicts_between_packages_and_with_the_project(install: Install) -> None:
    install("c-lab", "[robot_rl.things]\nboth = c_lab_things:X\n", c_lab_things="X = 1")
    install("d-lab", "[robot_rl.things]\nboth = d_lab_things:X\nown = d_lab_things:X\n", d_lab_things="X = 2")
    registry = things()
    with pytest.raises(ConfigError, match=r"(?=.*c-lab 1.5)(?=.*d-lab 1.5)(?=.*import path)"):
        registry.get("both")
    assert list(registry) == ["both", "own"] and registry.get("own") == 2
    assert "c-lab" in registry.describe("both") and "d-lab" in registry.describe("both")
    registry = things(own="json:loads")
    assert registry.get("own").__name__ == "loads" and "d-lab 1.5" in registry.describe("own")


@pytest.mark.parametrize(
    "text", ["import a_module_that_is_not_there", "1 / 0", "def X(", "X = undefined", "raise OSError('disk')", "Y = 1"]
)
def test_broken_package_is_named_and_affects_no_other(install: Install, text: str) -> None:
    install("f-lab", "[robot_rl.things]\nbroken = f_lab_things:X\n", f_lab_things=text)
    registry = things(ours="json:loads")
    assert list(registry) == ["broken", "ours"]
    assert registry.describe("broken") and registry.get("ours")
    with pytest.raises(ConfigError, match="f-lab 1.5"):
        registry.get("broken")
    with pytest.raises(UnknownName, match="did you mean broken"):
        registry.get("brokn")


def test_entry_points_of_wrong_kind_are_refused_and_damaged_ones_hide_no_others(install: Install) -> None:
    from robot_rl.robots import robots

    points = "[robot_rl.robots]\nnothing = g_lab_things\nnumber = g_lab_things:X\n"
    install("g-lab", points, g_lab_things="X = 1")
    for name, message in (("nothing", "g-lab"), ("number", "g-lab.*is a int and no RobotSpec")):
        with pytest.raises(ConfigError, match=message):
            robots.get(name)
    install("h-lab", "[robot_rl.things]\nthis is no entry point\n")
    install("k-lab", "[robot_rl.things]\ntheirs = k_lab_things:X\n", k_lab_things="X = 1")
    with pytest.warns(UserWarning, match="package h-lab is damaged"):
        assert list(things(ours="json:loads")) == ["ours", "theirs"]


def test_tasks_are_named_by_lookup_key_and_found_by_robot(install: Install, monkeypatch: Any) -> None:
    from robot_rl.robots import robots
    from sim.tasks import task_of, tasks

    text = "from sim.tasks import tasks\nTASK = tasks.get('panda-lift')\n"
    points = "[robot_rl.tasks]\na-lift = i_lab_tasks:TASK\naa-broken = i_lab_nothing:TASK\n"
    install("i-lab", points, i_lab_tasks=text)
    for name in ("a-lift", "i_lab_tasks:TASK"):
        assert tasks.get(name).name == name, "bundles store this name"
    assert task_of("panda").name == "panda-lift", "the project's task comes first"
    assert task_of("panda", "a-lift").name == "a-lift"
    monkeypatch.setitem(robots.entries, "idle", replace(robots.get("panda"), name="idle"))
    with pytest.raises(ConfigError, match="no task is for robot 'idle'.*i-lab"):
        task_of("idle")


def test_model_file_is_found_relative_to_the_spec(install: Install) -> None:
    from robot_rl.robots import robots
    from sim.scenes import robot_model

    text = """
from dataclasses import replace
from robot_rl.robots.panda import PANDA
OWN, SHIPPED, GONE = PANDA, replace(PANDA), PANDA
OWN, GONE = replace(PANDA, model="models/own.xml"), replace(PANDA, model="models/gone.xml")
"""
    folder = install("j-lab", "[robot_rl.robots]\nown = j_lab_robots:OWN\n", j_lab_robots=text)
    (folder / "models").mkdir()
    (folder / "models" / "own.xml").write_text("<mujoco/>")
    assert robot_model(robots.get("own")) == robot_model(robots.get("j_lab_robots:OWN")) == folder / "models/own.xml"
    assert robot_model(robots.get("j_lab_robots:SHIPPED")) == robot_model(robots.get("panda"))
    with pytest.raises(Exception, match=rf"models/gone.xml is not beside the spec of .* \({folder}/models/gone.xml\)"):
        robot_model(robots.get("j_lab_robots:GONE"))


@pytest.mark.parametrize(("spec", "message"), [
    ("Joint('turn', -1.0, 1.0, velocty=3.0, acceleration=1.0, effort=1.0)",
     r"line 3: Joint has no field 'velocty'; did you mean velocity"),
    ("Joint('turn', -1.0, 1.0, 3.0)",
     r"line 3: Joint lacks acceleration, effort; it needs name, low, high, velocity, acceleration, effort"),
    ("replace(PANDA, hom=())", r"line 3: RobotSpec has no field 'hom'; did you mean home"),
    ("Tool('tip', (0.0, 0.0, 0.0), *range(9))", r"line 3: Tool takes from .*; its fields are name, position, quat"),
    ("replace(PANDA, home=(9.0,) * 7)", r"line 3: robot 'panda', joint1: home 9.0 rad is outside"),
])  # fmt: skip
def test_wrong_fields_are_named_with_file_and_line(install: Install, spec: str, message: str) -> None:
    from robot_rl.robots import robots

    imports = "from dataclasses import replace; from robot_rl.robots.panda import PANDA\n"
    imports += "from robot_rl.interface.robot import Joint, RobotSpec, Tool\n"
    folder = install("l-lab", "[robot_rl.robots]\nwrong = l_lab_robots:ARM\n", l_lab_robots=f"{imports}ARM = {spec}\n")
    with pytest.raises(ConfigError, match=f"{folder}/l_lab_robots.py: {message}"):
        robots.get("wrong")
